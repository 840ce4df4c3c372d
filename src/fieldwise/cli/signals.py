"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was trained is saved, and a server stops gracefully."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

ASKS = getattr(signal, "SIGUSR1", None)  # for a checkpoint, while a network is trained
ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP


@contextlib.contextmanager
def as_interrupts() -> Iterator[list[int]]:
    """Within it, SIGTERM and SIGHUP raise `KeyboardInterrupt`; gives the list that the first of them is added to.

    Further ones are ignored, since what the first one began is under way: a system that stops sends several. A signal
    that is ignored from the start (`nohup`) stays ignored. SIGUSR1, which asks a training for a checkpoint and would
    end any other process, is ignored where nothing is trained.
    """
    received: list[int] = []
    owner = os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        if os.getpid() != owner:  # a child that was forked off: it ends as if this handler were not there
            die_by(number)
        if received:
            return
        received.append(number)
        if number == getattr(
            signal, "SIGHUP", None
        ):  # what is still written goes nowhere: an error would end the saving
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                for stream in (sys.stdout, sys.stderr):
                    if stream.isatty():
                        os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield received
        return
    before = {number: signal.getsignal(number) for number in ENDS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, interrupt)
    if ASKS is not None:
        before[ASKS] = signal.getsignal(ASKS)
        if before[ASKS] is signal.SIG_DFL:
            signal.signal(ASKS, signal.SIG_IGN)
    try:
        yield received
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def usual_ends() -> None:
    """SIGTERM and SIGHUP do what they did before `as_interrupts`: for commands that handle them themselves."""
    if threading.current_thread() is threading.main_thread():
        for number in ENDS:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """Let the system send this process SIGTERM when the one that started it ends; on Linux alone."""
    if sys.platform == "linux":
        set_signal_of_parents_death = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGTERM)
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():  # it ended before this was called
            die_by(signal.SIGTERM)


def die_by(number: int) -> None:
    """End this process by a signal, so that its parent sees which one it was."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
