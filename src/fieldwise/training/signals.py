"""Signals during a training: they act between two steps, and in all of its processes at once."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from fieldwise.training.gradient_sync import GradientSync

DEFERRED_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
CHECKPOINT_SIGNAL = getattr(signal, "SIGUSR1", None)
"""Asks for a checkpoint; Windows has none."""


@dataclass
class SignalGuard:
    """Delays the handlers of SIGINT, SIGTERM and SIGHUP to the end of a step, and notes SIGUSR1.

    `with guard.installed():` sets the handlers, in the main thread only, and resets them at the
    end. Within it, `with guard:` surrounds what must not be interrupted. A second SIGINT in the
    same step acts at once. Of processes that train together a signal waits until all know of it,
    and then interrupts all at the end of the same step.
    """

    sync: GradientSync | None = None
    noted: list[int] = field(default_factory=list)  # the signals that wait
    whole: bool = True  # False after a step that an error, or such a second signal, broke off
    requested: bool = False  # whether SIGUSR1 has arrived; reset by the reader
    _handlers: dict[int, Callable[[int, FrameType | None], Any]] = field(default_factory=dict)
    _owner: int = field(default_factory=os.getpid)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which the handlers are set."""
        previous: dict[int, Any] = {}
        # only the main thread may set handlers
        if threading.current_thread() is threading.main_thread():
            for number in DEFERRED_SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    previous[number] = handler
                    signal.signal(number, self._defer)
            # a handler of the user's own stays
            without_handler = (signal.SIG_DFL, signal.SIG_IGN)
            if (
                CHECKPOINT_SIGNAL is not None
                and signal.getsignal(CHECKPOINT_SIGNAL) in without_handler
            ):
                previous[CHECKPOINT_SIGNAL] = signal.signal(
                    CHECKPOINT_SIGNAL, self._request_checkpoint
                )
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def __enter__(self) -> None:
        self.whole = False

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.whole = error_type is None
        agreed = False
        if self.sync is not None:
            agreed = self.sync.agreed
            self.sync.agreed = False  # it acts once
            if not agreed:
                return
        if self.noted:
            number = self.noted[0]  # further ones do not count: a system that stops sends several
            self.noted.clear()
            self._handlers[number](number, None)
        if agreed and error_type is None:
            raise KeyboardInterrupt

    def _defer(self, number: int, frame: FrameType | None) -> None:
        is_second_interrupt = number == signal.SIGINT and number in self.noted
        must_wait = self.sync is not None or not self.whole
        is_forked = os.getpid() != self._owner
        if must_wait and not is_second_interrupt and not is_forked:
            self.noted.append(number)
            return
        self.noted.clear()
        self._handlers[number](number, frame)

    def _request_checkpoint(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
