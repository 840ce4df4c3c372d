"""Ids whose rows make a query fail, so that they are not asked for together with others again and again."""

import time
from collections.abc import Callable, Hashable, Sequence

__all__ = ["Quarantine"]

PAUSE, MOST_PAUSE = 2.0, 120.0  # seconds in which a row that failed is not asked for: twice as many at each failure
AGAIN = 2  # rows whose pause is over that are tried again at one lookup, each alone
MOST = 10_000  # remembered rows; the oldest are forgotten


class Quarantine:
    """Rows that failed, by id and requested columns.

    Args:
        clock: returns seconds.

    >>> quarantine = Quarantine()
    >>> quarantine.add("bad", "all")
    2.0
    >>> quarantine.split(["good", "bad"], "all")
    (['good'], [], ['bad'])
    >>> quarantine.add("bad", "all")
    4.0
    >>> quarantine.remove("bad", "all")
    >>> quarantine.split(["good", "bad"], "all")
    (['good', 'bad'], [], [])
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._rows: dict[tuple[Hashable, Hashable], tuple[float, float]] = {}  # end of the pause, and its length

    def add(self, one: Hashable, columns: Hashable) -> float:
        """Remember that a row failed; returns the seconds in which it is not asked for."""
        _, last = self._rows.pop((one, columns), (0.0, PAUSE / 2))
        pause = min(MOST_PAUSE, 2 * last)
        self._rows[one, columns] = self.clock() + pause, pause
        if len(self._rows) > MOST:
            del self._rows[next(iter(self._rows))]
        return pause

    def remove(self, one: Hashable, columns: Hashable) -> None:
        """Forget a row that was read."""
        self._rows.pop((one, columns), None)

    def split(self, ids: Sequence[str], columns: Hashable) -> tuple[list[str], list[str], list[str]]:
        """The ids to ask for together, those to try again alone, whose pause begins anew, and those to leave alone."""
        if not self._rows:
            return list(ids), [], []
        now = self.clock()
        known = [one for one in ids if (one, columns) in self._rows]
        again = [one for one in known if self._rows[one, columns][0] <= now][:AGAIN]
        for one in again:
            pause = self._rows[one, columns][1]
            self._rows[one, columns] = now + pause, pause
        left, failing = set(known) - set(again), set(known)
        return [one for one in ids if one not in failing], again, [one for one in known if one in left]
