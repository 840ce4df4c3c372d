"""Admission control: only as many requests as can be answered in time.

Further requests are rejected at once, before their bodies are read, at a small cost. Otherwise all would wait too long,
and the work for requests that have timed out would be wasted.
"""

import asyncio
from contextvars import ContextVar

__all__ = ["DEADLINE", "Admission"]

DEADLINE: ContextVar[float] = ContextVar("DEADLINE")  # time limit of a request, by the event loop's clock
SHARE = 0.8  # maximum expected share of a request's time spent waiting
MEMORY = 0.1  # weight of the newest batch in the moving average of time per request


class Admission:
    """Counts active requests and estimates the wait of the next one.

    Args:
        most: maximum number of active requests.
        timeout: maximum seconds for a response.

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
        """Estimated seconds until all active requests are answered."""
        return self.under_way * self._each

    def enter(self) -> bool:
        """Admit and count a request, unless it cannot be answered in time."""
        if self.under_way >= self.most or self.expected >= SHARE * self.timeout:
            return False
        self.under_way += 1
        return True

    def leave(self) -> None:
        """Count an admitted request as answered."""
        self.under_way -= 1

    def took(self, seconds: float, requests: int) -> None:
        """Update the estimated time per request from a batch."""
        each = seconds / requests
        self._each = each if not self._each else (1 - MEMORY) * self._each + MEMORY * each

    def deadline(self) -> float:
        """The time limit of the current task's request; counted from now if none is set."""
        now = asyncio.get_running_loop().time()
        return DEADLINE.get(now + self.timeout)
