"""Ids whose rows make a query fail, so that they are not asked for together with others again and again."""

import time
from collections.abc import Callable, Hashable, Sequence

__all__ = ["FailingRows"]

PAUSE = 2.0  # seconds in which a row that failed is not asked for
AGAIN = 2  # rows that failed earlier and are tried again in one lookup, each alone
MOST = 10_000  # remembered rows; the oldest are forgotten


class FailingRows:
    """Rows that failed, by id and requested columns.

    Args:
        clock: returns seconds.

    >>> failing = FailingRows()
    >>> failing.add("bad", "all")
    >>> failing.split(["good", "bad"], "all")
    (['good'], [], ['bad'])
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._until: dict[tuple[Hashable, Hashable], float] = {}

    def add(self, one: Hashable, columns: Hashable) -> None:
        """Remember that a row failed."""
        self._until.pop((one, columns), None)
        self._until[one, columns] = self.clock() + PAUSE
        if len(self._until) > MOST:
            del self._until[next(iter(self._until))]

    def split(
        self, ids: Sequence[Hashable], columns: Hashable
    ) -> tuple[list[Hashable], list[Hashable], list[Hashable]]:
        """The ids to ask for together, those to try again alone, which are forgotten, and those to leave alone."""
        if not self._until:
            return list(ids), [], []
        now = self.clock()
        known = [one for one in ids if (one, columns) in self._until]
        again = [one for one in known if self._until[one, columns] <= now][:AGAIN]
        for one in again:
            del self._until[one, columns]
        failing = set(known)
        return [one for one in ids if one not in failing], again, [one for one in known if one not in again]
