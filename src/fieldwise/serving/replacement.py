"""A bundle or an index that changes on disk takes its predecessor's place while serving; a damaged one does not."""

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from fieldwise.errors import FieldwiseError
from fieldwise.serving.faults import FAULTS
from fieldwise.serving.service import Service

__all__ = ["Live", "Watcher"]

State = tuple[tuple[int, int, int] | None, ...]


class Live:
    """The service that answers now. Who answers a request, or a batch of them, reads `service` once.

    Args:
        service: the first one.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.replaced = 0
        self.refused: str | None = None
        self.passing = False  # the refusal was for want of something that may come back
        self.watched: Callable[[], str] = lambda: "off"

    def replace(self, load: Callable[[], Service]) -> bool:
        """Load another service and let it take over once it has answered; on an error the one before goes on.

        Returns:
            Whether it took over; `refused` says why not.
        """
        try:
            service = load()
            service.warm_up(self.service)
        except FieldwiseError as e:
            self.refused, self.passing = str(e), False
            return False
        except FAULTS as e:  # whatever it is, the one before goes on and the next one is looked for
            self.refused, self.passing = f"{type(e).__name__}: {e}", isinstance(e, OSError | MemoryError)
            logging.getLogger(__name__).exception("a newer service could not be loaded")
            return False
        self.service, self.refused, self.passing = service, None, False
        self.replaced += 1
        _give_back()
        return True


def _give_back() -> None:
    """Hand what the service before held back to the system, where the C library can; glibc keeps a part of it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Watcher:
    """Looks at files from time to time, and loads anew when they have changed and then stayed as they are for one look.

    Writers of bundles and indexes rename a complete manifest into its place last: that is the file to watch.

    Args:
        live: whose service is replaced.
        load: reads it anew.
        files: the manifests.
        every: seconds between looks.
        note: hears of every replacement and refusal.
        state: of the files before the first service was loaded from them; now where left out.
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
        self.live, self.load, self.files, self.every, self.note = live, load, tuple(files), every, note
        self._loaded = self._seen = self.state(self.files) if state is None else state
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fieldwise-watcher", daemon=True)
        self._gone: tuple[str, ...] = ()

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        self._thread.start()
        self.live.watched = lambda: self.about

    @property
    def about(self) -> str:
        """Whether it looks: `ok`, `dead`, or which files are gone; what was loaded of them is served on."""
        if not self._thread.is_alive():
            return "dead"
        return f"gone: {', '.join(self._gone)}" if self._gone else "ok"

    def stop(self) -> None:
        """Look no more; waits for a replacement under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """One look; what could not be read for want of memory or files is tried again at the next."""
        before, self._seen = self._seen, self.state(self.files)
        gone = tuple(str(file) for file, one in zip(self.files, self._seen, strict=True) if one is None)
        if gone != self._gone and self._seen == before:  # not in the moment of a replacement
            self._gone = gone
            self.note(f"gone, what was there goes on: {', '.join(gone)}" if gone else "what was gone is there again")
        if self._seen == self._loaded or self._seen != before or None in self._seen:
            return
        self._loaded, said = self._seen, self.live.refused
        if self.live.replace(self.load):
            self.note(f"replaced: {self.live.service.about}")
        elif self.live.refused != said:
            self.note(f"not replaced, what was there goes on: {self.live.refused}")
        if self.live.passing:
            self._loaded = ()

    def _watch(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self.look()
            except FAULTS:  # the next look may find what can be loaded
                logging.getLogger(__name__).exception("a look for newer bundles failed")

    @staticmethod
    def state(files: Sequence[Path]) -> State:
        """What tells one version of some files from another."""
        found: list[tuple[int, int, int] | None] = []
        for file in files:
            try:
                about = file.stat()
                found.append((about.st_ino, about.st_size, about.st_mtime_ns))
            except OSError:
                found.append(None)
        return tuple(found)
