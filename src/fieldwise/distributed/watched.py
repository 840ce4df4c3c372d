"""Watching processes that train together: signals go to all of them, and one's failure ends the others."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

__all__ = ["LOST", "Running", "Started", "exit_code", "passing_signals", "tell_failure", "watch"]

LOST = 3  # exit code of a process that ends because another one has
PATIENCE = 30.0  # seconds that the others have to end by themselves, and again after SIGTERM
GLANCE = 0.05
ASKS = getattr(signal, "SIGUSR1", None)  # for a checkpoint; ignored by processes that train nothing
FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


class Running(Protocol):
    """Interface of a process, here or on another machine: the part of `subprocess.Popen` that is used."""

    @property
    def returncode(self) -> int | None:
        """The exit code, as found by the last `poll`; None while it runs; -N after signal N."""

    def poll(self) -> int | None:
        """The exit code now."""

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""


@dataclass(kw_only=True, eq=False)
class Started:
    """A process of a training.

    Args:
        rank: its number.
        process: the process.
        errors: what it has written to standard error, unless that was shown already.
    """

    rank: int
    process: Running
    errors: Callable[[], str]

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.returncode


def watch(started: Sequence[Started], received: Sequence[int]) -> Started | None:
    """Wait for all processes; returns the one that failed first, if any did. The others then end too.

    After a signal they take the time that saving takes.

    Args:
        started: the processes.
        received: the signals that this process has got meanwhile (`passing_signals`).
    """
    failed: Started | None = None
    deadline, harsh = float("inf"), False
    while running := [one for one in started if one.process.poll() is None]:
        ended = [one for one in started if one.code]
        if failed is None and ended and not received:
            failed, deadline = min(ended, key=_blame), time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            for one in running:
                one.process.kill() if harsh else one.process.terminate()
            harsh, deadline = True, time.monotonic() + PATIENCE
        time.sleep(GLANCE)
    own = [one for one in started if one.code not in (0, LOST)]
    if failed is None or failed.code == LOST:
        failed = min(own or [one for one in started if one.code], key=_blame, default=None)
    elif failed.code == started[0].code and (failed.code or 0) > 0:  # process 0 has said the same
        failed = started[0]
    return failed


def exit_code(failed: Started | None) -> int:
    """The exit code of a command whose processes have ended; `failed` is from `watch`."""
    code = 0 if failed is None else failed.code or 0
    return 1 if code < 0 else code


def tell_failure(failed: Started, size: int) -> None:
    """Write to standard error why one of `size` processes failed, unless it has."""
    code = failed.code or 0
    if code < 0 and code not in (-signal.SIGTERM, -signal.SIGINT):
        print(
            f"fieldwise: process {failed.rank} of {size} was ended by signal {-code} (the system does that when memory "
            "is full), and the others with it: the same command resumes from the last checkpoint, if there is one",
            file=sys.stderr,
        )
    elif said := failed.errors().strip():
        print(said.replace("fieldwise: ", f"fieldwise: process {failed.rank} of {size}: "), file=sys.stderr)


@contextlib.contextmanager
def passing_signals(started: Sequence[Started]) -> Iterator[list[int]]:
    """A context in which signals go to all processes; gives the list of those that end them."""
    received: list[int] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        if number != ASKS:
            received.append(number)
        for one in started:
            with contextlib.suppress(OSError):
                one.process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    heeded = [number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN or number == ASKS]
    before = {number: signal.signal(number, passed_on) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _blame(one: Started) -> tuple[bool, bool, int]:
    """Processes that ended only since another one did come last, and among them the silent one."""
    lost = one.code == LOST
    return lost, lost and one.rank == 0, one.rank
