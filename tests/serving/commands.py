"""`fieldwise serve` as a process of its own, for tests of what only a whole server shows."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx


class Running:
    """A server that listens: its process, its address, and what it has written to standard error so far."""

    def __init__(self, process, place, log):
        self.process, self.place, self._log = process, place, log
        self.port = int(place.rpartition(":")[2])

    @property
    def log(self):
        return self._log.read_text()

    def get(self, path, **more):
        return httpx.get(self.place + path, timeout=30, **more)


@contextmanager
def serving(folder, *arguments, before=None, **environment):
    """Serve from a folder until the block ends; `before` runs in the child before it becomes the server."""
    log = folder / f"serve-{time.monotonic_ns()}.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "fieldwise", "serve", *map(str, arguments), "--port", "0", "--threads", "1"],
            cwd=folder,
            stderr=stderr,
            env={**{k: v for k, v in os.environ.items() if k != "FIELDWISE_TOKEN"}, **environment},
            preexec_fn=before,
        )
    try:
        deadline = time.monotonic() + 90
        while not (place := re.search(r"serving at (http://\S+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        running = Running(process, place[1], log)
        while True:
            try:
                running.get("/healthz")
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
