"""Cases: contenders that take turns at the same work, and targets for the ratios of their measures."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

__all__ = [
    "MACHINE",
    "Case",
    "Contender",
    "NotAvailableError",
    "Settings",
    "Size",
    "Target",
    "Timed",
    "steps_to_time",
]

T = TypeVar("T")
Size = Literal["full", "quick", "tiny"]
MACHINE = "machine"
"""The contender in every case that measures the machine's matrix multiplication rate and copy bandwidth."""

Timed = tuple[Callable[[], Mapping[str, float]], Mapping[str, Any]]
"""The result of a contender's function: the turn, which returns measures by name, and facts shown with them."""


class NotAvailableError(Exception):
    """This contender cannot be measured here, for the given reason; the case continues without it."""


def steps_to_time(rows: int, batch: int, steps: int | None) -> tuple[int, float]:
    """Rows in `steps` batches (all rows for None), and the factor that scales their seconds to an epoch.

    >>> steps_to_time(100, 10, 2)
    (20, 5.0)
    """
    timed = rows if steps is None else min(rows, steps * batch)
    return timed, rows / timed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a case is run.

    Args:
        folder: folder for the case's data; it is removed afterwards.
        size: `full`, `quick` for a run of a minute or less, `tiny` for tests.
        rows: number of rows that replaces the size's, in cases with rows.
        threads: threads of every contender.
    """

    folder: Path
    size: Size = "full"
    rows: int | None = None
    threads: int = 2

    def pick(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    def rows_of(self, full: int, quick: int, tiny: int) -> int:
        """The given number of rows, or the one for this size."""
        return self.rows or self.pick(full, quick, tiny)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of a case's processes.

    Args:
        name: displayed name.
        make: `module:function` in `benchmarks.contenders` that takes the options and returns a
            `Timed`.
        options: plain values passed to the function; `threads` is added.
        peers: whether it runs in the environment of other libraries.
    """

    name: str
    make: str
    options: Mapping[str, Any] = field(default_factory=dict)
    peers: bool = False


@dataclass(frozen=True)
class Target:
    """`contender` shall need at most 1 / `goal` of the seconds that `reference` needs."""

    contender: str
    reference: str
    goal: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """A measurement of several contenders.

    Args:
        title: title of the measurement.
        about: description with everything that a reader needs to interpret the numbers.
        measures: measures that are shown; contenders are compared by the first.
    """

    title: str
    about: str
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    measures: tuple[str, ...] = ("seconds",)
