"""Long work in pieces, between which the worker answers other requests."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, TypeVar

from fieldwise.serving.batching import BusyError
from fieldwise.serving.shares import charge, timed_call

__all__ = ["Pieces"]

T = TypeVar("T")
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
        self._waiting = 0

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
                for piece in await self._rested(pieces):
                    found += await self._rested(piece)
                return found
        finally:
            self._waiting -= 1

    async def _rested(self, call: Callable[[], T]) -> T:
        """The result of a call in the worker, after a rest if others are served."""
        seconds, found = await asyncio.get_running_loop().run_in_executor(self.worker, timed_call, call)
        charge(seconds)
        if self.others():
            await asyncio.sleep(REST * seconds)
        return found
