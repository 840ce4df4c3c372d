"""Admission control: only as many requests as can be answered soon.

Further requests are rejected at once, before their bodies are read, at a small cost. Otherwise all would wait too long,
and the work for requests that have timed out would be wasted.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar

__all__ = ["DEADLINE", "Admission", "deadline"]

DEADLINE: ContextVar[float] = ContextVar("DEADLINE")  # time limit of a request, by the event loop's clock
WAIT, LONGEST_WAIT = 0.05, 0.8  # maximum expected shares of a request's time spent waiting: of most requests, of any
LIGHT = 0.5  # an address below this multiple of the mean may wait twice as long: others fill the queue
MEMORY = 1.0  # seconds after which the rate of answers counts for 1/e


def deadline(timeout: float) -> float:
    """The time limit of the current task's request; if none is set, these seconds from now."""
    return DEADLINE.get(asyncio.get_running_loop().time() + timeout)


class Admission:
    """Counts active requests and estimates the wait of the next one by the rate of answers.

    Args:
        most: maximum number of active requests.
        timeout: maximum seconds for a response.
        batch: number of requests that are admitted even if they wait longer than most may.
        clock: returns seconds.
        work: returns seconds of work, such as the process's processor time, of which those count that pass while
            requests are under way: requests that wait for a feature store cost nothing. All seconds count if omitted.

    >>> now = [0.0]
    >>> one = Admission(most=3, timeout=10.0, clock=lambda: now[0])
    >>> one.enter(), one.enter()
    (True, True)
    >>> now[0] = 1.5
    >>> one.leave()
    >>> one.expected, one.enter(), one.enter()  # seconds
    (1.5, False, False)
    """

    def __init__(
        self,
        most: int,
        timeout: float,
        *,
        batch: int = 0,
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] | None = None,
    ) -> None:
        self.most, self.timeout, self.batch, self.clock, self.work = most, timeout, batch, clock, work or clock
        self.under_way = 0
        self.announced = 0  # requests whose heads were read, and that enter in the event loop's next turn
        self._by_address: Counter[str] = Counter()
        self._answered = self._seconds = 0.0  # answers, and seconds of work; old ones count for less
        self._at = self._worked = -math.inf

    @property
    def expected(self) -> float:
        """Estimated seconds until all active requests are answered."""
        return (self.under_way + self.announced) * self._seconds / self._answered if self._answered else 0.0

    def is_full(self, address: str = "") -> bool:
        """Whether the next request of an address cannot be answered in time."""
        if self.under_way + self.announced >= self.most:
            return True
        wait = self.expected / self.timeout
        if wait < WAIT or self.under_way + self.announced < self.batch:
            return wait >= LONGEST_WAIT
        is_light = self._by_address[address] * len(self._by_address) < LIGHT * self.under_way
        return not is_light or wait >= 2 * WAIT

    def enter(self, address: str = "") -> bool:
        """Admit and count a request, unless it cannot be answered in time."""
        if self.is_full(address):
            return False
        if not self.under_way:
            self._at, self._worked = self.clock(), self.work()
        self.under_way += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str = "") -> None:
        """Count an admitted request as answered."""
        now, worked = self.clock(), self.work()
        passed, work = now - self._at, worked - self._worked
        self._at, self._worked = now, worked
        kept = math.exp(-passed / MEMORY)
        # Work of several threads at once takes no longer than the clock says.
        self._seconds, self._answered = kept * self._seconds + min(passed, work), kept * self._answered + 1
        self.under_way -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
