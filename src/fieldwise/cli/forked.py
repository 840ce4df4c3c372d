"""Processes forked from this one, which share the memory of the modules that it has loaded."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

__all__ = ["Forked", "forked"]

GLANCE = 0.02
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()


class Forked:
    """A forked process: the part of `subprocess.Popen` that is used.

    Args:
        pid: its number.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit status if it has ended, -N after signal N; else None."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Errors:
            subprocess.TimeoutExpired: it has not ended in `timeout` seconds.
        """
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired([], timeout or 0.0)
            time.sleep(GLANCE)
        return status

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def forked(work: Callable[[], int], closed: Sequence[int]) -> Forked:
    """Run a function in a forked process, which ends with its result as exit status.

    The process that forks must have no threads that hold locks: it may have loaded PyTorch and Polars, but not computed
    with them. Signal handlers of the child are those of a new process; signals that were ignored stay ignored.

    Args:
        work: called in the child.
        closed: descriptors that the child closes.

    Errors:
        OSError: the system has no process or memory for it.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else both would write what is buffered
    gc.freeze()  # a collection in the child would write to, and so copy, every page of the objects that both share
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # none reaches the child while it has our handlers
    try:
        pid = os.fork()
        if pid == 0:
            _run(work, closed, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Forked(pid)


def _run(work: Callable[[], int], closed: Sequence[int], mask: "set[int | signal.Signals]") -> None:
    """Run `work` and end this process."""
    status = 1
    try:
        for descriptor in closed:
            os.close(descriptor)
        for number in HANDLED:
            if callable(signal.getsignal(number)):
                usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, usual)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
