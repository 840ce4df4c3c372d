"""Signals that wait for the end of a training step, so that what a run has reached is whole when they act."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Signals", "WholeSteps"]

Handler = Callable[[int, FrameType | None], Any]
HELD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
ASKED = getattr(signal, "SIGUSR1", None)  # Windows has none


@dataclass
class Signals:
    """Signals that wait.

    Args:
        noted: their numbers.
        agreed: whether all processes that train together know that one of them has a signal.
    """

    noted: list[int] = field(default_factory=list)
    agreed: bool = False


class WholeSteps:
    """Delays the handlers of SIGINT, SIGTERM and SIGHUP to the end of a step, and notes SIGUSR1.

    `with steps.installed():` sets the handlers, in the main thread only, and resets them at the end. Within it,
    `with steps:` surrounds what must not be interrupted. A second SIGINT in the same step acts at once.

    Args:
        shared: of processes that train together: a signal waits until all know of it, and then interrupts all of them
            at the end of the same step.

    Attributes:
        whole: False after a step that an error, or such a second signal, broke off.
        asked: whether SIGUSR1 has arrived; reset by the reader.

    >>> steps = WholeSteps()
    >>> with steps.installed():
    ...     with steps:
    ...         pass
    >>> steps.whole
    True
    """

    def __init__(self, shared: Signals | None = None) -> None:
        self.whole, self.asked, self.together = True, False, shared is not None
        self.signals = Signals() if shared is None else shared
        self._before: dict[int, Handler] = {}
        self._owner = os.getpid()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which the handlers are set."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # signals are the main thread's
            for number in HELD:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = before[number] = handler
                    signal.signal(number, self._held)
            if ASKED is not None and signal.getsignal(ASKED) in (signal.SIG_DFL, signal.SIG_IGN):
                before[ASKED] = signal.signal(ASKED, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __enter__(self) -> None:
        self.whole = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.whole = kind is None
        agreed, self.signals.agreed = self.signals.agreed, False  # it acts once
        if self.together and not agreed:
            return
        if self.signals.noted:
            number = self.signals.noted[0]  # further ones do not count: a system that stops sends several
            self.signals.noted.clear()
            self._before[number](number, None)
        if agreed and kind is None:
            raise KeyboardInterrupt

    def _held(self, number: int, frame: FrameType | None) -> None:
        impatient = number == signal.SIGINT and number in self.signals.noted
        waits = self.together or not self.whole
        if not waits or impatient or os.getpid() != self._owner:
            self.signals.noted.clear()
            self._before[number](number, frame)
        else:
            self.signals.noted.append(number)

    def _note(self, _: int, __: FrameType | None) -> None:
        self.asked = True
