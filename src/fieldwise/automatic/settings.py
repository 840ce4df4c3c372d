"""Settings of `fieldwise auto`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldwise.config import check_seed
from fieldwise.data.prepare.settings import SplitSettings
from fieldwise.errors import ConfigError
from fieldwise.schema import Schema

Note = Callable[[str], None]
"""A function that is called with each message on the progress."""


@dataclass(frozen=True, kw_only=True)
class AutoSettings:
    """Settings of `fieldwise.auto`, which says what they are, and more that only `run_auto` has.

    Args:
        split: how the rows are split. Default: by time if the table has a time column, else at
            random.
        device: where networks are trained and score; trees stay on the CPU.
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
