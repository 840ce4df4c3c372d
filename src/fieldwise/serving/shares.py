"""Shares of the server's time by client address: while the server is busy, the heaviest address waits for the others.

Time is that of the event loop, of the model's thread and of the parser of large bodies, with waits for Python's lock.
Behind a proxy that sends `X-Forwarded-For`, addresses are those of the proxy's clients (docs/how-to/production.md).
"""

import asyncio
import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["VISIT", "Shares", "Visit", "charge", "charged", "timed", "timed_call"]

T = TypeVar("T")
MEMORY = 1.0  # seconds after which use counts for 1/e
BUSY = 0.5  # use of all addresses, in seconds per second, below which no request waits, unless the event loop is late
LATE = 0.02  # mean seconds that the event loop is late, above which the server is busy: other programs use the machine
ABOVE = 1.1  # an address waits above this multiple of the mean use
BURST = 0.015  # seconds of requests of such an address that are answered together while no other is served
BACKLOG = 0.3  # assumed seconds of requests of an address under way, above which it begins no expensive one
EXPENSIVE = 0.01  # assumed seconds of such a request
PACE = 0.01  # seconds between two checks of those that wait
FIRST = 0.001  # assumed seconds of an address's first request
LEARN = 0.2  # weight of the newest request in an address's estimate
MOST_ACCOUNTS = 1000  # more are searched for forgotten ones
MOST_WAIT = 0.05  # seconds that a request for the server's health waits at most


@dataclass
class _Account:
    """Use of one address."""

    used: float = 0.0  # decaying sum of seconds
    at: float = 0.0  # time of the sum
    seen: float = 0.0  # time of the newest use
    inside: int = 0  # requests being answered
    pending: float = 0.0  # estimated seconds of the requests being answered
    each: float = FIRST  # estimated seconds of a request
    waiting: "deque[_Turn]" = field(default_factory=deque)

    def use(self, now: float) -> float:
        """Seconds of use per second, at present."""
        if now > self.at:
            self.used *= math.exp((self.at - now) / MEMORY)
            self.at = now
        return self.used / MEMORY

    def add(self, seconds: float, now: float) -> None:
        self.use(now)
        self.used, self.seen = self.used + seconds, now

    def give_up(self, turn: "_Turn") -> None:
        """Take a turn out of the queue, unless it was passed over there while its request ended."""
        with contextlib.suppress(ValueError):
            self.waiting.remove(turn)


class _Turn:
    """A request that waits; `begun` is done, with the seconds counted for it, once it may begin."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.begun: asyncio.Future[float] = asyncio.get_running_loop().create_future()


class Shares:
    """Accounts of addresses, and a queue for each.

    >>> shares = Shares(clock=lambda: 0.0)
    >>> async def two():
    ...     await shares.enter("a")
    ...     await shares.enter("b")
    ...     shares.add("a", 5.0)  # seconds: far above the mean
    ...     return shares.is_over("a"), shares.is_over("b")
    >>> asyncio.run(two())
    (True, False)
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, delayed: Callable[[], None] = lambda: None
    ) -> None:
        self.clock, self.delayed = clock, delayed
        self._accounts: dict[str, _Account] = {}
        self._all = _Account()  # of all addresses together
        self._waiting: dict[str, _Account] = {}
        self._pump: asyncio.TimerHandle | None = None
        self._present, self._counted = 1, -math.inf  # number of addresses in use, and when it was counted
        self._late, self._beat = 0.0, False  # mean lateness of the event loop, and whether it is measured

    async def enter(self, address: str, *, least: float = 0.0, most: float | None = None) -> float:
        """Begin a request of an address, after a wait if the address is over its share.

        Args:
            address: the client's.
            least: seconds of the server's time that it will take at least.
            most: maximum seconds to wait; then it begins.

        Returns:
            The seconds that were counted for it, which `leave` takes back.
        """
        account = self._account(address)
        passes = least <= EXPENSIVE < account.waiting[0].least if account.waiting else True
        if not passes or self.is_over(address, least):
            self.delayed()
            return await self._wait(address, account, _Turn(least), most)
        return self._begin(account, least)

    def leave(self, address: str, counted: float, seconds: float) -> None:
        """End a request that `enter` counted, and that took `seconds` of the server's time."""
        account = self._account(address)
        self._end(account, counted)
        self.add(address, seconds - counted)
        account.each += LEARN * (seconds - account.each)

    def add(self, address: str, seconds: float) -> None:
        """Count seconds of the server's time for an address."""
        now = self.clock()
        self._account(address).add(seconds, now)
        self._all.add(seconds, now)

    def is_over(self, address: str, least: float = 0.0) -> bool:
        """Whether an address is above its share of a busy server; a little is let in while no other is served.

        Args:
            address: the client's.
            least: seconds that its next request will take at least.
        """
        account, now = self._account(address), self.clock()
        if least > EXPENSIVE and account.pending > BACKLOG:
            return True  # also if it is alone: who comes next would wait for all of them
        busy = self._all.use(now) > BUSY or self._late > LATE
        if not busy or account.use(now) <= ABOVE * self._all.use(now) / self._number(now):
            return False
        return self._all.inside > account.inside or account.pending > BURST

    def _number(self, now: float) -> int:
        """Number of addresses that used the server just now."""
        if now >= self._counted + PACE:
            self._counted = now
            self._present = sum(one.inside > 0 or one.seen > now - MEMORY for one in self._accounts.values())
        return max(1, self._present)

    def _account(self, address: str) -> _Account:
        found = self._accounts.get(address)
        if found is None:
            if len(self._accounts) >= MOST_ACCOUNTS:
                self._forget()
            found = self._accounts[address] = _Account(at=self.clock())
        return found

    def _forget(self) -> None:
        now = self.clock()
        for address, one in list(self._accounts.items()):
            if not one.inside and not one.waiting and one.use(now) < FIRST:
                del self._accounts[address]

    def _begin(self, account: _Account, least: float) -> float:
        if not self._beat:
            self._beat = True
            self._measure()
        now, expected = self.clock(), max(least, account.each)
        for one in (account, self._all):
            one.inside += 1
            one.pending += expected
            one.add(expected, now)
        return expected

    async def _wait(self, address: str, account: _Account, turn: "_Turn", most: float | None) -> float:
        account.waiting.append(turn)
        self._waiting[address] = account
        self._schedule()
        try:
            return await asyncio.wait_for(turn.begun, most)
        except TimeoutError:
            account.give_up(turn)
            return self._begin(account, turn.least)
        except asyncio.CancelledError:
            if turn.begun.cancelled():
                account.give_up(turn)
            else:
                self._end(account, turn.begun.result())
            raise

    def _end(self, account: _Account, counted: float) -> None:
        for one in (account, self._all):
            one.inside -= 1
            one.pending = one.pending - counted if one.inside else 0.0

    def _measure(self, due: float | None = None) -> None:
        """Measure how late the event loop is, again and again while requests are answered."""
        loop = asyncio.get_running_loop()
        self._late += 0.0 if due is None else LEARN * (max(0.0, loop.time() - due) - self._late)
        self._beat = self._all.inside > 0 or bool(self._waiting) or due is None
        if self._beat:
            due = loop.time() + PACE
            loop.call_at(due, self._measure, due)
        else:
            self._late = 0.0

    def _schedule(self) -> None:
        if self._pump is None:
            self._pump = asyncio.get_running_loop().call_later(PACE, self._let_in)

    def _let_in(self) -> None:
        self._pump = None
        for address, account in list(self._waiting.items()):
            while account.waiting and not self.is_over(address, account.waiting[0].least):
                turn = account.waiting.popleft()
                if not turn.begun.done():
                    turn.begun.set_result(self._begin(account, turn.least))
            if not account.waiting:
                del self._waiting[address]
        if self._waiting:
            self._schedule()


class Visit:
    """A request's address, and the seconds of the server's time that it took so far."""

    def __init__(self, address: str = "") -> None:
        self.address, self.seconds = address, 0.0

    def add(self, seconds: float) -> None:
        """Count seconds for it."""
        self.seconds += seconds


VISIT: ContextVar[Visit] = ContextVar("VISIT")  # of the current request


def charge(seconds: float) -> None:
    """Count seconds for the current request, if there is one."""
    visit = VISIT.get(None)
    if visit is not None:
        visit.add(seconds)


def timed_call(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds and result of a call in another thread, where `charge` does not know the request."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def charged(call: Callable[..., T]) -> Callable[..., T]:
    """Charge a route's processor time in one of the framework's threads, where `timed` does not see it."""

    @functools.wraps(call)
    def run(*arguments: Any, **named: Any) -> T:
        began = time.thread_time()
        try:
            return call(*arguments, **named)
        finally:
            charge(time.thread_time() - began)

    return run


class timed:  # noqa: N801 (read as a verb: `await timed(work())`)
    """Awaits a coroutine and charges its time in the event loop.

    >>> async def spin():
    ...     end = time.thread_time() + 0.01
    ...     while time.thread_time() < end:
    ...         pass
    ...     await asyncio.sleep(0.05)
    >>> async def run():
    ...     visit = Visit()
    ...     VISIT.set(visit)
    ...     await timed(spin())
    ...     return visit.seconds >= 0.01
    >>> asyncio.run(run())
    True
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self.work.send
        value: Any = None
        while True:
            began = time.perf_counter()
            try:
                waited = step(value)
            except StopIteration as e:
                return e.value
            finally:
                charge(time.perf_counter() - began)
            try:
                value = yield waited
                step = self.work.send
            except BaseException as e:  # cancelled, or closed: the coroutine decides
                value, step = e, self.work.throw
