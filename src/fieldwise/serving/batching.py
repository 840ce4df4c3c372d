"""Batching: requests that wait for the single worker are answered together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from fieldwise.serving.faults import FAULTS

__all__ = ["DEADLINE", "BatchLimits", "Batcher", "BusyError", "deadline"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Waiting = tuple[Asked, "asyncio.Future[Answer]"]

DEADLINE: ContextVar[float] = ContextVar("DEADLINE")  # time limit of a request, by the event loop's clock

TURNS = 4  # of the event loop: answers are sent, requests read, their tasks begun, and requests added to the queue
GAP = 0.001  # seconds without a new request, after which no others are awaited
PART = 0.5  # of the last batch's time, after which no others are awaited


def deadline(timeout: float) -> float:
    """The time limit of the current task's request; if none is set, these seconds from now."""
    return DEADLINE.get(asyncio.get_running_loop().time() + timeout)


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
    waiting: int = 256


class Batcher(Generic[Asked, Answer]):
    """Collects requests for a worker: those that arrive while it is busy form its next batch.

    A batcher belongs to one event loop. Requests that have timed out are removed from their batch. If a whole
    batch fails, each of its requests is retried alone, so that only the faulty one fails.

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
        self._waiting: deque[Waiting[Asked, Answer]] = deque()
        self._last = 0  # requests in the newest batch, unless its work was limited
        self._seconds, self._enough, self._arrived = 0.0, 0, asyncio.Event()  # that batch's time; a number that waits
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, request: Asked) -> Answer:
        """The response to a request.

        Errors:
            BusyError: too many requests are waiting.
            Exception: the exception that `run` returned for it.
        """
        if len(self._waiting) >= self.limits.waiting:
            raise BusyError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if len(self._waiting) >= self._enough:
            self._arrived.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await future

    @property
    def at_work(self) -> bool:
        """Whether requests are being answered, or are waiting."""
        return self._serving is not None

    async def _serve(self) -> None:
        if self.limits.window and len(self._waiting) < self.limits.most:
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
        self._enough, until = min(len(self._waiting) + self._last, self.limits.most), loop.time() + PART * self._seconds
        for _ in range(TURNS):
            if len(self._waiting) >= self._enough:
                return
            await asyncio.sleep(0)
        before = -1
        while before < len(self._waiting) < self._enough and (left := until - loop.time()) > 0:
            before = len(self._waiting)
            self._arrived.clear()
            timer = loop.call_later(min(GAP, left), self._arrived.set)
            await self._arrived.wait()
            timer.cancel()

    async def _answer(self, batch: "list[Waiting[Asked, Answer]]") -> None:
        answers: Sequence[Answer | BaseException]
        try:
            self._seconds, answers = await asyncio.get_running_loop().run_in_executor(self.worker, self._timed, batch)
        except FAULTS as e:
            if len(batch) > 1:
                for one in batch:
                    if not one[1].done():
                        await self._answer([one])
                return
            answers = [e]
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _timed(self, batch: "list[Waiting[Asked, Answer]]") -> tuple[float, Sequence[Answer | BaseException]]:
        began = time.perf_counter()
        answers = self.run([request for request, _ in batch])
        return time.perf_counter() - began, answers

    def _next(self) -> "list[Waiting[Asked, Answer]]":
        """The next batch, in the order of arrival."""
        batch: list[Waiting[Asked, Answer]] = []
        work = 0
        while self._waiting and len(batch) < self.limits.most:
            request, future = self._waiting[0]
            if not future.done():
                work += self.cost(request)
                if batch and work > self.limits.budget:
                    break
                batch.append((request, future))
            self._waiting.popleft()
        return batch
