"""Replacement of bundles and indexes that change on disk while serving; damaged ones are rejected."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fieldwise.errors import FieldwiseError
from fieldwise.serving.rows import FAULTS
from fieldwise.serving.service import Service
from fieldwise.storage.files import FileState, file_state
from fieldwise.storage.machine import return_freed_memory

State = tuple[FileState | None, ...]
"""Of each file; None if it is missing."""


@dataclass(frozen=True, kw_only=True)
class WatcherStatus:
    """Whether the files of a server are polled, and which of them are missing: the loaded service stays active."""

    state: Literal["off", "ok", "gone", "dead"]
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"gone: {', '.join(self.missing)}" if self.missing else self.state


class Live:
    """Holder of the current service. A request, or a batch of requests, reads `service` once."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.replaced = 0
        self.refused: str | None = None
        self.is_temporary = False
        """Whether the cause of the rejection may pass."""
        self.watched: Callable[[], WatcherStatus] = lambda: WatcherStatus(state="off")
        self.on_change: Callable[[Live], None] = lambda _: None
        """Called after every replacement or rejection."""

    def replace(self, load: Callable[[], Service]) -> bool:
        """Load another service and switch to it after a warm-up; if it fails, False, and `refused` has the reason."""
        try:
            service = load()
            service.warm_up(self.service)
        except FAULTS as e:  # any fault: the current service continues, and the next one is tried
            is_user_error = isinstance(e, FieldwiseError)
            self.refused = str(e) if is_user_error else f"{type(e).__name__}: {e}"
            self.is_temporary = isinstance(e, OSError | MemoryError) and not is_user_error
            if not is_user_error:
                logging.getLogger(__name__).exception("a newer service could not be loaded")
            return False
        else:
            self.service = service
            self.refused = None
            self.is_temporary = False
            self.replaced += 1
            return_freed_memory()
            return True
        finally:
            self.on_change(self)


class Watcher:
    """Polls files, and reloads when they have changed and then stayed the same for one poll.

    Writers of bundles and indexes rename a complete manifest into place last, so this is the file
    to watch.

    Args:
        live: the holder of the service.
        load: loads the newer service.
        files: the watched files.
        every: seconds between polls.
        note: called with a message after every replacement and rejection.
        state: of the files before the first service was loaded; the current one if omitted.
    """

    def __init__(
        self,
        live: Live,
        load: Callable[[], Service],
        files: Sequence[Path],
        *,
        every: float,
        note: Callable[[str], None] = lambda _: None,
        state: State | None = None,
    ) -> None:
        self.live = live
        self.load = load
        self.files = tuple(files)
        self.every = every
        self.note = note
        self._loaded_state = self.state(self.files) if state is None else state
        self._last_state = self._loaded_state
        self._thread = threading.Thread(target=self._watch, name="fieldwise-watcher", daemon=True)
        self._missing: tuple[str, ...] = ()

    def start(self) -> None:
        """Start polling in a separate thread."""
        self._thread.start()
        self.live.watched = lambda: self.status

    @property
    def status(self) -> WatcherStatus:
        """The watcher's status."""
        if not self._thread.is_alive():
            return WatcherStatus(state="dead")
        if self._missing:
            return WatcherStatus(state="gone", missing=self._missing)
        return WatcherStatus(state="ok")

    def poll(self) -> None:
        """Poll once; a failure for lack of memory or files is retried at the next poll."""
        previous = self._last_state
        self._last_state = self.state(self.files)
        is_stable = self._last_state == previous  # else a replacement may be under way
        if is_stable:
            self._note_missing_files()
        if is_stable and self._last_state != self._loaded_state and None not in self._last_state:
            self._reload()

    def _note_missing_files(self) -> None:
        states = zip(self.files, self._last_state, strict=True)
        missing = tuple(str(file) for file, state in states if state is None)
        if missing == self._missing:
            return
        self._missing = missing
        if missing:
            self.note(f"missing, the loaded one stays active: {', '.join(missing)}")
        else:
            self.note("no file is missing any more")

    def _reload(self) -> None:
        self._loaded_state = self._last_state
        refused_before = self.live.refused
        if self.live.replace(self.load):
            self.note(f"replaced: {self.live.service.about}")
        elif self.live.refused != refused_before:
            self.note(f"not replaced, the loaded one stays active: {self.live.refused}")
        if self.live.is_temporary:
            self._loaded_state = ()

    def _watch(self) -> None:
        while True:
            time.sleep(self.every)
            try:
                self.poll()
            except FAULTS:  # the next poll may succeed
                logging.getLogger(__name__).exception("a check for newer bundles failed")

    @staticmethod
    def state(files: Sequence[Path]) -> State:
        """The state of some files, which differs between versions."""
        return tuple(map(_state_or_none, files))


def _state_or_none(file: Path) -> FileState | None:
    try:
        return file_state(file)
    except OSError:
        return None
