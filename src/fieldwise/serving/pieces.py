"""Work that takes long, in pieces between which the worker answers other requests."""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from fieldwise.serving.batching import BusyError

__all__ = ["Pieces"]

REST = 4  # times as long as a piece took that the next one waits while others are served: a fifth of the worker


class Pieces:
    """A queue for work in pieces, of which one has its turn at a time.

    Args:
        worker: runs the pieces.
        most: of such works that may wait; further ones are refused.
        others: whether other requests are served or wait now.
    """

    def __init__(self, worker: Executor, most: int, others: Callable[[], bool]) -> None:
        self.worker, self.most, self.others = worker, most, others
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, pieces: Callable[[], Iterable[Callable[[], list[Any]]]]) -> list[Any]:
        """What all pieces of a work return, one after the other.

        Args:
            pieces: run in the worker too, gives the pieces.

        Errors:
            BusyError: too many wait.
        """
        if self._waiting >= self.most:
            raise BusyError
        self._waiting += 1
        try:
            async with self._turn:
                found: list[Any] = []
                for piece in await self._done(pieces):
                    began = time.perf_counter()
                    found += await self._done(piece)
                    if self.others():
                        await asyncio.sleep(REST * (time.perf_counter() - began))
                return found
        finally:
            self._waiting -= 1

    async def _done(self, call: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, call)
