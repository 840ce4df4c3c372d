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

CHECKPOINT_SIGNAL = getattr(signal, "SIGUSR1", None)  # asks a training for a checkpoint
# not all on Windows
END_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def as_interrupts() -> Iterator[list[int]]:
    """A context in which SIGTERM and SIGHUP raise `KeyboardInterrupt`; yields a list that receives the first of them.

    Further signals are ignored, because the first has already begun the shutdown, and a stopping
    system sends several. A signal that is ignored from the start (`nohup`) stays ignored. SIGUSR1,
    which asks a training for a checkpoint and would end any other process, is ignored where nothing
    is trained.
    """
    received: list[int] = []
    owner = os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        # a child that was forked off: it ends as if this handler were not there
        if os.getpid() != owner:
            die_by(number)
        if received:
            return
        received.append(number)
        # the terminal is gone, and a failed write would end the saving
        if number == getattr(signal, "SIGHUP", None):
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
    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, interrupt)
    if CHECKPOINT_SIGNAL is not None:
        before[CHECKPOINT_SIGNAL] = signal.getsignal(CHECKPOINT_SIGNAL)
        if before[CHECKPOINT_SIGNAL] is signal.SIG_DFL:
            signal.signal(CHECKPOINT_SIGNAL, signal.SIG_IGN)
    try:
        yield received
    finally:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def restore_signals() -> None:
    """Restore the default effect of SIGTERM and SIGHUP, for commands that handle them themselves."""
    if threading.current_thread() is threading.main_thread():
        for number in END_SIGNALS:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """Ask the system to send this process SIGTERM when its parent ends; on Linux only."""
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
