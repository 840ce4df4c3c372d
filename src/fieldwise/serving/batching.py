"""Requests that wait for the one worker are answered together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

from fieldwise.serving.faults import FAULTS

__all__ = ["BatchLimits", "Batcher", "BusyError"]

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Waiting = list[tuple[Asked, "asyncio.Future[Answer]"]]


class BusyError(Exception):
    """More requests wait than may."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """How much is answered at once, and how much may wait.

    Args:
        most: requests of a batch.
        budget: how much work a batch may be, unless it is one request.
        window: seconds that a request which finds the worker free waits for others; 0 starts at once.
        waiting: requests that may wait.
    """

    most: int = 32
    budget: int = 0
    window: float = 0.0
    waiting: int = 1000


class Batcher(Generic[Asked, Answer]):
    """Collects requests for a worker: those that came while it was at work are its next batch.

    Belongs to one event loop. A request whose asker has given up (a timeout) is left out of its batch. When a batch
    fails as a whole, each of its requests is answered alone, so that one fails for itself.

    Args:
        worker: runs one batch at a time of this batcher.
        run: answers some requests, in their order; an error of one of them stands in its place.
        limits: of batches and of the queue.
        cost: how much work a request is.
        took: hears of each batch how many seconds it took, and of how many requests it was.

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
        took: Callable[[float, int], None] = lambda *_: None,
    ) -> None:
        self.took = took
        self.worker, self.run, self.limits, self.cost = worker, run, limits or BatchLimits(), cost
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, request: Asked) -> Answer:
        """The answer to a request.

        Errors:
            BusyError: too many wait.
            Exception: what `run` gave in the answer's place.
        """
        if len(self._waiting) >= self.limits.waiting:
            raise BusyError
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await future

    @property
    def at_work(self) -> bool:
        """Whether requests are answered, or wait."""
        return self._serving is not None

    async def _serve(self) -> None:
        if self.limits.window and len(self._waiting) < self.limits.most:
            await asyncio.sleep(self.limits.window)
        try:
            while batch := self._next():
                await self._answer(batch)
        finally:
            self._serving = None

    async def _answer(self, batch: "Waiting[Asked, Answer]") -> None:
        answers: Sequence[Answer | BaseException]
        try:
            seconds, answers = await asyncio.get_running_loop().run_in_executor(self.worker, self._timed, batch)
            self.took(seconds, len(batch))
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

    def _timed(self, batch: "Waiting[Asked, Answer]") -> tuple[float, Sequence[Answer | BaseException]]:
        began = time.perf_counter()
        answers = self.run([one for one, _ in batch])
        return time.perf_counter() - began, answers

    def _next(self) -> "Waiting[Asked, Answer]":
        batch: Waiting[Asked, Answer] = []
        work = 0
        while self._waiting and len(batch) < self.limits.most:
            request, future = self._waiting[0]
            work += 0 if future.done() else self.cost(request)
            if batch and work > self.limits.budget:
                break
            self._waiting.popleft()
            if not future.done():
                batch.append((request, future))
        return batch
