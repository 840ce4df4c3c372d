"""`fieldwise serve` as a process of its own, for tests of what only a whole server shows."""

import contextlib

import httpx
import pytest
from forked import Command
from serving.servers import until

pytest.importorskip(
    "fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'"
)  # skips the tests that import this


class Running:
    """A server that listens: its process, and its address."""

    def __init__(self, process, place):
        self.process, self.place = process, place
        self.port = int(place.rpartition(":")[2])

    @property
    def log(self):
        """What it has written to standard error so far."""
        return self.process.errors

    def get(self, path, **more):
        return httpx.get(self.place + path, timeout=120, **more)

    def answers(self):
        with contextlib.suppress(httpx.TransportError):
            return self.get("/healthz").status_code


@contextlib.contextmanager
def serving(folder, *arguments, before="", **environment):
    """Serve from a folder until the block ends; the child runs the Python `before` before it becomes the server."""
    words = ["serve", *arguments, "--port", "0", "--timeout", "120"]  # a busy machine answers late
    process = Command(
        *words, folder=folder, before=before, **{"FIELDWISE_TOKEN": None, **environment}
    )
    try:
        running = Running(process, process.heard(r"serving at (http://[^\s;]+)")[1].rstrip("/"))
        until(running.answers)
        yield running
    finally:
        process.end()
