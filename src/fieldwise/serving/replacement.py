"""Replacement of bundles and indexes that change on disk while serving; damaged ones are rejected."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fieldwise.errors import FieldwiseError
from fieldwise.serving.rows import FAULTS
from fieldwise.serving.service import Service
from fieldwise.storage.machine import return_freed_memory

State = tuple[tuple[int, int, int] | None, ...]


class Live:
    """Holder of the current service. A request, or a batch of requests, reads `service` once."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.replaced = 0
        self.refused: str | None = None
        self.is_temporary = False  # the cause of the rejection
        self.watched: Callable[[], str] = lambda: "off"
        # after every replacement or rejection
        self.on_change: Callable[[Live], None] = lambda _: None

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
    """

    def __init__(
        self,
        live: Live,
        load: Callable[[], Service],
        files: Sequence[Path],
        *,
        every: float,  # seconds between polls
        note: Callable[[str], None] = lambda _: None,  # of every replacement and rejection
        # of the files before the first service was loaded; default: the current one
        state: State | None = None,
    ) -> None:
        self.live = live
        self.load = load
        self.files = tuple(files)
        self.every = every
        self.note = note
        self._loaded = self._seen = self.state(self.files) if state is None else state
        self._thread = threading.Thread(target=self._watch, name="fieldwise-watcher", daemon=True)
        self._gone: tuple[str, ...] = ()

    def start(self) -> None:
        """Start polling in a separate thread."""
        self._thread.start()
        self.live.watched = lambda: self.about

    @property
    def about(self) -> str:
        """The watcher's status: `ok`, `dead`, or the missing files; the loaded service stays active."""
        if not self._thread.is_alive():
            return "dead"
        return f"gone: {', '.join(self._gone)}" if self._gone else "ok"

    def poll(self) -> None:
        """Poll once; a failure for lack of memory or files is retried at the next poll."""
        before = self._seen
        self._seen = self.state(self.files)
        gone = tuple(
            str(file) for file, one in zip(self.files, self._seen, strict=True) if one is None
        )
        if gone != self._gone and self._seen == before:  # not during a replacement
            self._gone = gone
            self.note(
                f"missing, the loaded one stays active: {', '.join(gone)}"
                if gone
                else "no file is missing any more"
            )
        if self._seen == self._loaded or self._seen != before or None in self._seen:
            return
        self._loaded = self._seen
        said = self.live.refused
        if self.live.replace(self.load):
            self.note(f"replaced: {self.live.service.about}")
        elif self.live.refused != said:
            self.note(f"not replaced, the loaded one stays active: {self.live.refused}")
        if self.live.is_temporary:
            self._loaded = ()

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

        def of(file: Path) -> tuple[int, int, int] | None:
            try:
                about = file.stat()
            except OSError:
                return None
            return about.st_ino, about.st_size, about.st_mtime_ns

        return tuple(map(of, files))
