"""Queues for the single worker: requests that are answered together, and long work in chunks between them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Generic, TypeVar

from fieldwise.serving.rows import FAULTS, RequestError
from fieldwise.serving.settings import ServerSettings

T = TypeVar("T")
RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")
Waiting = tuple[RequestT, "asyncio.Future[AnswerT]"]

EVENT_LOOP_TURNS = 4
"""In which answers are sent, requests read, their tasks begun, and requests added to the queue."""
ARRIVAL_GAP_S = 0.001
"""Without a new request for this time, no others are awaited."""
AWAITED_SHARE = 0.5
"""Of the last batch's time, after which no others are awaited."""
MAX_HOLD_UP_S = 0.05
"""Chunks without a pause; a longer chunk is alone."""
REST_PER_WORK = 9
"""The pause after a chunk, in multiples of its time, while others are served: at most a tenth of the worker."""


class Batcher(Generic[RequestT, AnswerT]):
    """Collects requests for a worker: those that arrive while it is busy form its next batch.

    A batcher belongs to one event loop. Requests that have timed out are removed from their batch.
    If a whole batch fails, each of its requests is retried alone, so that only the faulty one
    fails.

    Args:
        worker: runs one batch at a time of this batcher.
        run: returns the responses of requests, or exceptions, in order.
        most: maximum requests of a batch.
        budget: maximum cost of a batch with more than one request.
        waiting: maximum requests that wait; further ones are refused.
        cost: the cost of a request.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> async def ask_three():
    ...     answer = lambda xs: [f"{x} of {len(xs)}" for x in xs]
    ...     batcher = Batcher(ThreadPoolExecutor(1), answer)
    ...     return await asyncio.gather(*(batcher.ask(x) for x in "abc"))
    >>> asyncio.run(ask_three())
    ['a of 3', 'b of 3', 'c of 3']
    """

    def __init__(
        self,
        worker: Executor,
        run: Callable[[list[RequestT]], Sequence[AnswerT | BaseException]],
        *,
        most: int = ServerSettings.max_batch,
        budget: int = 0,
        waiting: int = ServerSettings.max_waiting,
        cost: Callable[[RequestT], int] = lambda _: 0,
    ) -> None:
        self.worker = worker
        self.run = run
        self.cost = cost
        self.most = most
        self.budget = budget
        self.waiting = waiting
        self._waiting: deque[Waiting[RequestT, AnswerT]] = deque()
        self._last_count = 0
        """Requests in the newest batch, unless its work was limited."""
        self._last_seconds = 0.0
        self._awaited_count = 0
        """How many waiting requests end a pause."""
        self._arrived = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, request: RequestT) -> AnswerT:
        """The response to a request, or the exception that `run` returned; a RequestError if too many requests wait."""
        _check_queue(len(self._waiting), self.waiting)
        future: asyncio.Future[AnswerT] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if len(self._waiting) >= self._awaited_count:
            self._arrived.set()
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        return await future

    @property
    def at_work(self) -> bool:
        """Whether requests are being answered, or are waiting."""
        return self._serving is not None

    async def _serve(self) -> None:
        try:
            while True:
                await self._await_others()
                batch = self._next_batch()
                if not batch:
                    break
                # the cost limited the batch: more would not fit
                is_limited = bool(self._waiting) and len(batch) < self.most
                self._last_count = 0 if is_limited else len(batch)
                await self._answer(batch)
        finally:
            self._serving = None
            self._last_count = 0

    async def _await_others(self) -> None:
        """Wait a moment for those who were just answered, who may ask again.

        A batch of one takes almost as long as one of several: without this wait the same clients
        form two halves that take turns.
        """
        loop = asyncio.get_running_loop()
        self._awaited_count = min(len(self._waiting) + self._last_count, self.most)
        deadline = loop.time() + AWAITED_SHARE * self._last_seconds
        for _ in range(EVENT_LOOP_TURNS):
            if len(self._waiting) >= self._awaited_count:
                return
            await asyncio.sleep(0)

        count_before = -1
        while count_before < len(self._waiting) < self._awaited_count:
            remaining = deadline - loop.time()
            if remaining <= 0:
                return
            count_before = len(self._waiting)
            self._arrived.clear()
            timer = loop.call_later(min(ARRIVAL_GAP_S, remaining), self._arrived.set)
            await self._arrived.wait()
            timer.cancel()

    async def _answer(self, batch: "list[Waiting[RequestT, AnswerT]]") -> None:
        answers: Sequence[AnswerT | BaseException]
        try:
            loop = asyncio.get_running_loop()
            requests = [request for request, _ in batch]
            self._last_seconds, answers = await loop.run_in_executor(
                self.worker, _timed, lambda: self.run(requests)
            )
        except FAULTS as e:
            if len(batch) > 1:
                for request, future in batch:
                    if not future.done():
                        await self._answer([(request, future)])
                return
            answers = [e]
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _next_batch(self) -> "list[Waiting[RequestT, AnswerT]]":
        """The next batch, in the order of arrival."""
        batch: list[Waiting[RequestT, AnswerT]] = []
        batch_cost = 0
        while self._waiting and len(batch) < self.most:
            request, future = self._waiting[0]
            if not future.done():
                batch_cost += self.cost(request)
                if batch and batch_cost > self.budget:
                    break
                batch.append((request, future))
            self._waiting.popleft()
        return batch


class ChunkQueue:
    """A queue for long work in chunks, one work at a time; every 50 ms the worker answers other requests.

    Args:
        worker: runs the chunks.
        waiting: maximum number of works; further ones are refused.
        others: says whether other requests are being served or waiting.
    """

    def __init__(self, worker: Executor, waiting: int, others: Callable[[], bool]) -> None:
        self.worker = worker
        self.waiting = waiting
        self.others = others
        self._turn = asyncio.Lock()
        self._count = 0
        self._rests_until = 0.0

    async def run(self, chunks: Callable[[], Sequence[Callable[[], list[Any]]]]) -> list[Any]:
        """Run the chunks of a work and return their concatenated results; `chunks` itself runs in the worker too."""
        _check_queue(self._count, self.waiting)
        self._count += 1
        try:
            async with self._turn:
                remaining = deque(await self._run_rested(chunks))
                results: list[Any] = []
                while remaining:
                    results += await self._run_rested(partial(_run_next_chunks, remaining))
                return results
        finally:
            self._count -= 1

    async def _run_rested(self, call: Callable[[], T]) -> T:
        """The result of a call in the worker, after the rest that the last one owes if others are served."""
        loop = asyncio.get_running_loop()
        rest = self._rests_until - loop.time()
        if rest > 0 and self.others():
            await asyncio.sleep(rest)
        began = loop.time()
        seconds, result = await loop.run_in_executor(self.worker, _timed, call)
        # the worker was others' while this call waited for it
        self._rests_until = began + (1 + REST_PER_WORK) * seconds
        return result


def _run_next_chunks(remaining: "deque[Callable[[], list[T]]]") -> list[T]:
    """The results of the next chunks, as many as hold others up for a moment if each takes as long as the last."""
    results: list[T] = []
    began = time.perf_counter()
    chunk_began = began
    while remaining:
        chunk = remaining.popleft()
        results += chunk()
        chunk_ended = time.perf_counter()
        total_seconds = chunk_ended - began
        if total_seconds + chunk_ended - chunk_began > MAX_HOLD_UP_S:
            break
        chunk_began = chunk_ended
    return results


def _check_queue(length: int, most: int) -> None:
    """Raise a RequestError, with status 503, if a queue is full."""
    if length >= most:
        raise RequestError(
            f"{most:,} requests may wait, and the queue is full: try again later", "server", 503
        )


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a call took, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result
