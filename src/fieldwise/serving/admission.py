"""Who is let in when more is asked than can be answered: only as many as will have their answer in time.

Requests beyond that are refused at once, before their bodies are read, at a small cost; else all would wait too long,
and the work for those that have given up would be lost.
"""

import asyncio
from contextvars import ContextVar

__all__ = ["DEADLINE", "Admission"]

DEADLINE: ContextVar[float] = ContextVar("DEADLINE")  # by the event loop's clock: when a request's time is over
SHARE = 0.8  # of a request's time that waiting may be expected to take
MEMORY = 0.1  # weight of the newest batch in what a request takes


class Admission:
    """Requests under way, and how long the next one would wait for its answer.

    Args:
        most: requests that may be under way.
        timeout: seconds that an answer may take.

    >>> one = Admission(most=3, timeout=1.0)
    >>> one.enter(), one.enter()
    (True, True)
    >>> one.took(4.0, 10)
    >>> one.expected, one.enter()
    (0.8, False)
    >>> one.leave()
    >>> one.enter()
    True
    """

    def __init__(self, most: int, timeout: float) -> None:
        self.most, self.timeout = most, timeout
        self.under_way = 0
        self._each = 0.0

    @property
    def expected(self) -> float:
        """Seconds until those that are under way are answered."""
        return self.under_way * self._each

    def enter(self) -> bool:
        """Count a request in, unless it could not be answered in time."""
        if self.under_way >= self.most or self.expected >= SHARE * self.timeout:
            return False
        self.under_way += 1
        return True

    def leave(self) -> None:
        """A request that was counted in is answered."""
        self.under_way -= 1

    def took(self, seconds: float, requests: int) -> None:
        """Learn from a batch what a request takes."""
        each = seconds / requests
        self._each = each if not self._each else (1 - MEMORY) * self._each + MEMORY * each

    def deadline(self) -> float:
        """When the time of the request is over that this task answers; from now on where none has begun."""
        now = asyncio.get_running_loop().time()
        return DEADLINE.get(now + self.timeout)
