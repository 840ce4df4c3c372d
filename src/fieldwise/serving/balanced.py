"""A server that takes its share of the connections to a socket from which several processes accept."""

import asyncio
import contextlib
import errno
import logging
import select
import socket
import time
from pathlib import Path

import numpy as np
import uvicorn

from fieldwise.serving.faults import FAULTS

__all__ = ["BalancedServer", "OpenCounts"]

PACE = 0.001  # seconds between two comparisons with the other processes
PATIENCE = 20  # comparisons, then a connection is accepted all the same
FRESH = 1_000_000_000  # nanoseconds: a process that was not heard of for longer does not count
PAUSE = 0.1  # seconds after a connection could not be accepted, for lack of open files


class OpenCounts:
    """The numbers of open connections of all processes that accept at present, in a file that they share.

    Args:
        path: the file; created by the first process that needs it.
        workers: number of processes.
        own: this process's place, from 0.

    Shape:
        the file: [workers, 2] int64, the connections, and when the process was last there in nanoseconds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = (OpenCounts(Path(folder) / "open", 2, own) for own in (0, 1))
    ...     first.tell(3)
    ...     alone = first.is_ahead()
    ...     second.beat()
    ...     alone, first.is_ahead(), second.is_ahead()
    (False, True, False)
    """

    def __init__(self, path: Path, workers: int, own: int) -> None:
        with path.open("ab") as file:
            file.truncate(16 * workers)
        self._counts = np.memmap(path, np.int64, "r+", shape=(workers, 2))
        self._own = own
        self.tell(0)

    def tell(self, connections: int) -> None:
        """Set the number of this process's connections."""
        self._counts[self._own, 0] = connections

    def beat(self) -> None:
        """Tell that this process is there; one that starts, hangs or has died takes no connection."""
        self._counts[self._own, 1] = time.monotonic_ns()

    def is_ahead(self) -> bool:
        """Whether this process has more connections than another one that is there."""
        there = self._counts[self._counts[:, 1] > time.monotonic_ns() - FRESH, 0]
        return bool((self._counts[self._own, 0] > there).any())


class BalancedServer(uvicorn.Server):
    """uvicorn's server with an accept loop of its own: it waits a little while another process has fewer connections.

    A kernel that wakes all of them gives most connections to one, which then has the most to do.

    Args:
        config: of uvicorn.
        listening: the shared socket.
        counts: of all processes.
    """

    def __init__(self, config: uvicorn.Config, listening: socket.socket, counts: OpenCounts) -> None:
        super().__init__(config)
        self._listening, self._counts = listening, counts
        self._task: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start without a listener of uvicorn's, then accept."""
        await super().startup(sockets=[])
        self._listening.setblocking(False)
        self._task = asyncio.create_task(self._accept())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then finish what is open."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._listening.close()
        await super().shutdown(sockets=[])

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        self._counts.beat()
        return await super().on_tick(counter)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._asked()
            for _ in range(PATIENCE):
                if not (self._counts.is_ahead() and self._is_asked()):
                    break
                await asyncio.sleep(PACE)
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:  # another process was faster
                continue
            except OSError as e:
                if e.errno == errno.EINVAL:  # the first process has stopped listening: all stop now
                    return
                logging.getLogger(__name__).exception("a connection could not be accepted")
                await asyncio.sleep(PAUSE)
                continue
            try:
                connection.setblocking(False)
                await loop.connect_accepted_socket(self._protocol, connection)
            except FAULTS:  # of this connection: without this loop the process would accept no other one
                connection.close()
                logging.getLogger(__name__).exception("a connection could not be served")

    async def _asked(self) -> None:
        """Wait until a connection is asked for."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listening, asked.set)
        try:
            await asked.wait()
        finally:
            loop.remove_reader(self._listening)

    def _is_asked(self) -> bool:
        return bool(select.select([self._listening], [], [], 0)[0])

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
