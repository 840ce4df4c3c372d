"""Settings of `fieldwise auto`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldwise.data.prepare.settings import SplitSettings
from fieldwise.errors import ConfigError
from fieldwise.runs.data_settings import check_seed
from fieldwise.schema import Schema

__all__ = ["AutoSettings"]


@dataclass(frozen=True, kw_only=True)
class AutoSettings:
    """Settings of `auto`.

    Args:
        label: column of the label. Default: guessed from the column names.
        positive: the label's positive values, if they cannot be inferred from the table.
        minutes: time budget of the whole run, including reading and writing.
        out: folder for schema, recipe, leaderboard, bundle and report. Default: nothing is written.
        seed: seed of the split, of weights and row order, and of the search.
        schema: a schema to use instead of an inferred one.
        split: how the rows are split. Default: by time if the table has a time column, else at random.
        keep: columns that remain fields even if they are constant, id-like or label-like.
        overwrite: whether to replace an earlier result in `out`.
        device: where networks are trained and score; LightGBM and the linear models of the audit stay on the CPU.
        began: start of the time budget, by `time.perf_counter()`. Default: the time of the call.

    Errors:
        ConfigError: the minutes are not positive, or the seed is out of range.
    """

    label: str | None = None
    positive: Sequence[str] = ()
    minutes: float = 10.0
    out: Path | None = None
    seed: int = 0
    schema: Schema | None = None
    split: SplitSettings | None = None
    keep: Collection[str] = ()
    overwrite: bool = False
    device: str = "cpu"
    began: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf"):
            raise ConfigError(f"minutes must be above 0 and finite, found {self.minutes}")
        check_seed(self.seed)
