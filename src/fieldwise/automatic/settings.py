"""What `fieldwise auto` goes by."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldwise.data.prepare.split_settings import SplitSettings
from fieldwise.errors import ConfigError
from fieldwise.runs.data_settings import check_seed
from fieldwise.schema import Schema

__all__ = ["AutoSettings"]


@dataclass(frozen=True, kw_only=True)
class AutoSettings:
    """What `auto` goes by.

    Args:
        label: the label's column; guessed by its name where left out.
        positive: its positive values, where the table does not tell.
        minutes: of the whole run, reading and writing included.
        out: folder for schema, recipe, leaderboard, bundle and report; nothing is written where left out.
        seed: of the split, of weights and row order, of the search.
        schema: instead of an inferred one.
        split: how the rows are divided; by time where there is one, else at random, where left out.
        keep: columns that stay fields though they are constant, id-like or tell the label.
        again: whether a former result in `out` is replaced.
        began: when the minutes began, by `time.perf_counter()`; at the call where left out.

    Errors:
        ConfigError: minutes that are not positive, a seed out of range.
    """

    label: str | None = None
    positive: Sequence[str] = ()
    minutes: float = 10.0
    out: Path | None = None
    seed: int = 0
    schema: Schema | None = None
    split: SplitSettings | None = None
    keep: Collection[str] = ()
    again: bool = False
    began: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0 and finite, found {self.minutes}")
        check_seed(self.seed)
