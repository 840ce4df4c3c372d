"""The server's one thread for models."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

__all__ = ["Worker"]


class Worker(ThreadPoolExecutor):
    """An executor of one thread that others can let run.

    >>> worker = Worker()
    >>> worker.submit(lambda: 2).result(), worker.let_run(60)
    (2, None)
    """

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="fieldwise")
        self._lock, self._under_way, self._idle = threading.Lock(), 0, threading.Event()
        self._idle.set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """As for every executor."""
        with self._lock:
            self._under_way += 1
            self._idle.clear()
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._done)
        return future

    def let_run(self, seconds: float) -> None:
        """Block the calling thread for some seconds, or until this one has nothing to do: at once if it has nothing."""
        self._idle.wait(seconds)

    def _done(self, _: "Future[Any]") -> None:
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
