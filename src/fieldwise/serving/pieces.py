"""Long work in pieces, between which the worker answers other requests."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from fieldwise.serving.batching import BusyError

__all__ = ["Pieces", "timed_call"]

T = TypeVar("T")
TURN = 0.05  # seconds of pieces in one turn, which waits for a batch of other requests
REST = 9  # pause after a piece, in multiples of its time, while others are served: at most a tenth of the worker


class Pieces:
    """A queue for work in pieces; one work runs at a time.

    Args:
        worker: runs the pieces.
        most: maximum number of waiting works; further ones are refused.
        others: returns whether other requests are being served or waiting.
    """

    def __init__(self, worker: Executor, most: int, others: Callable[[], bool]) -> None:
        self.worker, self.most, self.others = worker, most, others
        self._turn = asyncio.Lock()
        self._waiting, self._due = 0, 0.0

    async def run(self, pieces: Callable[[], Iterable[Callable[[], list[Any]]]]) -> list[Any]:
        """Run the pieces of a work and return their concatenated results.

        Args:
            pieces: returns the pieces; runs in the worker too.

        Errors:
            BusyError: too many works are waiting.
        """
        if self._waiting >= self.most:
            raise BusyError
        self._waiting += 1
        try:
            async with self._turn:
                found: list[Any] = []
                left = deque(await self._rested(pieces))
                while left:
                    found += await self._rested(partial(_some, left))
                return found
        finally:
            self._waiting -= 1

    async def _rested(self, call: Callable[[], T]) -> T:
        """The result of a call in the worker, after the rest that the last one owes if others are served."""
        loop = asyncio.get_running_loop()
        if self.others() and (rest := self._due - loop.time()) > 0:
            await asyncio.sleep(rest)
        began = loop.time()
        seconds, found = await loop.run_in_executor(self.worker, timed_call, call)
        self._due = began + (1 + REST) * seconds  # the worker was others' while this call waited for it
        return found


def timed_call(call: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a call took, and its result."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def _some(left: deque[Callable[[], list[Any]]]) -> list[Any]:
    """The results of the next pieces, as many as a turn has time for."""
    began = time.perf_counter()
    found = left.popleft()()
    while left and time.perf_counter() - began < TURN:
        found = found + left.popleft()()
    return found
