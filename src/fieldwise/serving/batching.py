"""Batching: requests that wait for the single worker are answered together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from fieldwise.serving.faults import FAULTS
from fieldwise.serving.shares import VISIT, Visit

__all__ = ["BatchLimits", "Batcher", "BusyError"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Waiting = tuple[Asked, "asyncio.Future[Answer]", Visit]

TURNS = 4  # of the event loop: answers are sent, requests read, their tasks begun, and requests added to the queue
GAP = 0.001  # seconds without a new request, after which no others are awaited
PART = 0.5  # of the last batch's time, after which no others are awaited


class BusyError(Exception):
    """Too many requests are waiting."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Limits of batches and of the queue.

    Args:
        most: maximum requests of a batch.
        budget: maximum cost of a batch with more than one request.
        window: seconds that a request waits for others if the worker is idle; 0 starts at once.
        waiting: maximum number of waiting requests.
    """

    most: int = 32
    budget: int = 0
    window: float = 0.0
    waiting: int = 1000


class Batcher(Generic[Asked, Answer]):
    """Collects requests for a worker: those that arrive while it is busy form its next batch.

    A batcher belongs to one event loop. Client addresses take turns. Requests that have timed out are removed from
    their batch. If a whole batch fails, each of its requests is retried alone, so that only the faulty one fails.

    Args:
        worker: runs one batch at a time of this batcher.
        run: returns the responses of some requests, in order, with an exception in place of a failed one.
        limits: limits of batches and of the queue.
        cost: returns the cost of a request.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> async def ask_three():
    ...     answer = lambda xs: [f"{x} of {len(xs)}" for x in xs]
    ...     batcher = Batcher(ThreadPoolExecutor(1), answer, BatchLimits(window=0.01))
    ...     return await asyncio.gather(*(batcher.ask(x) for x in "abc"))
    >>> asyncio.run(ask_three())
    ['a of 3', 'b of 3', 'c of 3']
    """

    def __init__(
        self,
        worker: Executor,
        run: Callable[[list[Asked]], Sequence[Answer | BaseException]],
        limits: BatchLimits | None = None,
        *,
        cost: Callable[[Asked], int] = lambda _: 0,
    ) -> None:
        self.worker, self.run, self.limits, self.cost = worker, run, limits or BatchLimits(), cost
        self._waiting: dict[str, deque[Waiting[Asked, Answer]]] = {}  # by address, the next one's turn first
        self._count = self._last = 0  # requests waiting, and in the newest batch unless its work was limited
        self._seconds, self._enough, self._arrived = 0.0, 0, asyncio.Event()  # that batch's time; a number that waits
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, request: Asked) -> Answer:
        """The response to a request.

        Errors:
            BusyError: too many requests are waiting.
            Exception: the exception that `run` returned for it.
        """
        if self._count >= self.limits.waiting:
            raise BusyError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        visit = VISIT.get(None) or Visit()
        self._waiting.setdefault(visit.address, deque()).append((request, future, visit))
        self._count += 1
        if self._count >= self._enough:
            self._arrived.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await future

    @property
    def at_work(self) -> bool:
        """Whether requests are being answered, or are waiting."""
        return self._serving is not None

    async def _serve(self) -> None:
        if self.limits.window and self._count < self.limits.most:
            await asyncio.sleep(self.limits.window)
        try:
            while True:
                await self._gather()
                if not (batch := self._next()):
                    break
                is_full = bool(self._waiting) and len(batch) < self.limits.most  # of work: more would not fit
                self._last = 0 if is_full else len(batch)
                await self._answer(batch)
        finally:
            self._serving, self._last = None, 0

    async def _gather(self) -> None:
        """Wait a moment for those who were just answered, who may ask again.

        A batch of one takes almost as long as one of several: without this wait the same clients form two halves that
        take turns.
        """
        loop = asyncio.get_running_loop()
        self._enough, until = min(self._count + self._last, self.limits.most), loop.time() + PART * self._seconds
        for _ in range(TURNS):
            if self._count >= self._enough:
                return
            await asyncio.sleep(0)
        before = -1
        while before < self._count < self._enough and (left := until - loop.time()) > 0:
            before = self._count
            self._arrived.clear()
            timer = loop.call_later(min(GAP, left), self._arrived.set)
            await self._arrived.wait()
            timer.cancel()

    async def _answer(self, batch: "list[Waiting[Asked, Answer]]") -> None:
        answers: Sequence[Answer | BaseException]
        try:
            seconds, answers = await asyncio.get_running_loop().run_in_executor(self.worker, self._timed, batch)
            self._seconds = seconds
            self._charge(batch, seconds)
        except FAULTS as e:
            if len(batch) > 1:
                for one in batch:
                    if not one[1].done():
                        await self._answer([one])
                return
            answers = [e]
        for (_, future, _), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _charge(self, batch: "list[Waiting[Asked, Answer]]", seconds: float) -> None:
        """Divide a batch's time among its requests, by their cost and an equal part."""
        costs = [1 + self.cost(request) for request, *_ in batch]
        for (_, _, visit), cost in zip(batch, costs, strict=True):
            visit.add(seconds * cost / sum(costs))

    def _timed(self, batch: "list[Waiting[Asked, Answer]]") -> tuple[float, Sequence[Answer | BaseException]]:
        began = time.perf_counter()
        answers = self.run([one for one, *_ in batch])
        return time.perf_counter() - began, answers

    def _next(self) -> "list[Waiting[Asked, Answer]]":
        """The next batch: one request of each address in turn, those of an address in order."""
        batch: list[Waiting[Asked, Answer]] = []
        work = 0
        while self._waiting and len(batch) < self.limits.most:
            address, queue = next(iter(self._waiting.items()))
            one = queue[0]
            wanted = not one[1].done()
            work += self.cost(one[0]) if wanted else 0
            if batch and work > self.limits.budget:
                break
            queue.popleft()
            self._count -= 1
            del self._waiting[address]
            if queue:
                self._waiting[address] = queue
            if wanted:
                batch.append(one)
        return batch
