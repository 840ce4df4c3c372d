"""What a case is: contenders that take turns at the same work, and the targets that their ratios are held to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

__all__ = ["MACHINE", "Case", "Contender", "Plot", "Settings", "Size", "Target", "Timed"]

T = TypeVar("T")
Size = Literal["full", "quick", "tiny"]
MACHINE = "machine"
"""The contender that every case has: the machine's own matrix rate and copy bandwidth."""

Timed = tuple[Callable[[], Mapping[str, float]], Mapping[str, Any]]
"""What a contender's function gives: the turn, which returns measures by name, and facts to show beside them."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a case is run.

    Args:
        folder: where the case may write its data; it is removed afterwards.
        size: `full`, `quick` for a look of a minute or less, `tiny` for tests.
        rows: of the cases that have rows, in place of the size's.
        threads: of every contender, but those that say otherwise.
    """

    folder: Path
    size: Size = "full"
    rows: int | None = None
    threads: int = 2

    def pick(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    def rows_of(self, full: int, quick: int, tiny: int) -> int:
        """Rows asked for, or those of this size."""
        return self.rows or self.pick(full, quick, tiny)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of a case's processes.

    Args:
        name: shown.
        make: `module:function` below `benchmarks.contenders`; takes the options, returns a `Timed`.
        options: plain values, given to the function; `threads` is added.
        peers: whether it runs in the peers' environment.
        threads: where they differ from the case's.
    """

    name: str
    make: str
    options: Mapping[str, Any] = field(default_factory=dict)
    peers: bool = False
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """`top / bottom` shall be at least `goal`; each is (contender, measure).

    >>> Target.faster("fieldwise", "FuxiCTR", 20).top
    ('FuxiCTR', 'seconds')
    """

    what: str
    top: tuple[str, str]
    bottom: tuple[str, str]
    goal: float
    unit: Literal["times", "share", "exact"] = "times"

    @classmethod
    def faster(
        cls, one: str, other: str, goal: float, *, measure: str = "seconds", what: str | None = None
    ) -> "Target":
        """`one` needs at most 1/goal of what `other` needs."""
        return cls(what=what or f"{one} against {other}", top=(other, measure), bottom=(one, measure), goal=goal)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Measures named by numbers (`4`, `8`, ...) as lines over those numbers."""

    x: str
    y: str = "seconds"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Args:
    title: title of the measurement.
    about: how, with everything that a reader needs to judge the numbers.
    measures: those shown, first the one that contenders are compared by.
    """

    title: str
    about: str
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    measures: tuple[str, ...] = ("seconds",)
    plot: Plot | None = None
