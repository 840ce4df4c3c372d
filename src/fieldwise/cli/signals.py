"""SIGTERM and SIGHUP end a command as Ctrl-C does: what was trained is saved, and a server stops gracefully."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

CHECKPOINT_SIGNAL = getattr(signal, "SIGUSR1", None)
"""It asks a training for a checkpoint."""
END_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Windows does not have all."""
_PR_SET_PDEATHSIG = 1

_Handler = Callable[[int, FrameType | None], None] | signal.Handlers


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
        if number == getattr(signal, "SIGHUP", None):
            _detach_from_terminal()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield received
        return

    new_handlers: dict[int, _Handler] = dict.fromkeys(END_SIGNALS, interrupt)
    if CHECKPOINT_SIGNAL is not None:
        new_handlers[CHECKPOINT_SIGNAL] = signal.SIG_IGN
    replaced = [number for number in new_handlers if signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, new_handlers[number])
    try:
        yield received
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _detach_from_terminal() -> None:
    """Write what goes to a terminal nowhere: it is gone, and a failed write would end the saving."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():
                os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def restore_signals() -> None:
    """Restore the default effect of SIGTERM and SIGHUP, for commands that handle them themselves."""
    if threading.current_thread() is threading.main_thread():
        for number in END_SIGNALS:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)


def end_with_parent() -> None:
    """Ask the system to send this process SIGTERM when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
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
