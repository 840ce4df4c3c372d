"""Reports on long work over rows: its phase, rows, rate, time left and memory, for people or for machines."""

import json
import sys
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

EVERY = 5.0  # seconds between two lines
STATUS = Path("/proc/self/status")


class Reports:
    """What is told the phases of some work and their rows; this one shows nothing."""

    def begin(self, phase: str, rows: int | None = None, **facts: Any) -> None:
        """Begin a phase, which ends the one before; `rows` is the number of its rows, if known."""

    def add(self, rows: int, **facts: Any) -> None:
        """Count further rows as done."""

    def note(self, **facts: Any) -> None:
        """Something has happened, such as an evaluation."""


NO_REPORTS = Reports()


class _Timed(Reports, ABC):
    """A context whose thread shows the state of the work every few seconds, also while no rows are done."""

    def __init__(self, every: float = EVERY, out: IO[str] | None = None) -> None:
        self._every, self._out = every, out
        self._phase, self._rows, self._began = "", 0, time.perf_counter()
        self._facts: dict[str, Any] = {}
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._total: int | None = None
        self._thread = threading.Thread(target=self._tell, name="fieldwise-reports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._end()

    def begin(self, phase: str, rows: int | None = None, **facts: Any) -> None:
        """See `Reports.begin`."""
        with self._lock:
            self._end()
            self._phase, self._rows, self._total, self._facts = phase, 0, rows, facts
            self._began = time.perf_counter()

    def add(self, rows: int, **facts: Any) -> None:
        """See `Reports.add`."""
        with self._lock:
            self._rows += rows
            self._facts |= facts

    def state(self) -> dict[str, Any]:
        """The phase with its rows, and what was told with them; a function among those is called for its value.

        `rows` is None in a phase whose rows are not counted.
        """
        seconds = time.perf_counter() - self._began
        rate = self._rows / seconds if self._rows and seconds > 0 else None
        left = None if rate is None or self._total is None else max(0, self._total - self._rows) / rate
        memory = memory_mib()
        return {
            "phase": self._phase,
            **{name: value() if callable(value) else value for name, value in self._facts.items()},
            "rows": self._rows if self._rows or self._total is not None else None,
            "rows_total": self._total,
            "rows_per_second": None if rate is None else round(rate),
            "seconds": round(seconds, 1),
            "seconds_left": None if left is None else round(left, 1),
            "memory_mib": None if memory is None else round(memory),
        }

    def _tell(self) -> None:
        while not self._ended.wait(self._every):
            with self._lock:
                if self._phase:
                    self._show(self.state())

    @abstractmethod
    def _end(self) -> None:
        """Handle the end of the phase."""

    @abstractmethod
    def _show(self, state: dict[str, Any]) -> None:
        """Show the state of the work."""

    def _print(self, line: str) -> None:
        print(line, file=self._out or sys.stderr, flush=True)


class JsonReports(_Timed):
    """Prints a line of JSON on standard error every few seconds, at the end of each phase, and for each note."""

    def note(self, **facts: Any) -> None:
        """Something has happened: a line of its own."""
        with self._lock:
            self._print(json.dumps({"phase": self._phase, **facts}))

    def _end(self) -> None:
        if self._phase:
            self._show(self.state())

    def _show(self, state: dict[str, Any]) -> None:
        self._print(json.dumps(state))


class LineReports(_Timed):
    """Prints a sentence on standard error every few seconds; nothing for work that is done sooner, and no notes."""

    def _end(self) -> None:
        """Show nothing: the next phase follows."""

    def _show(self, state: dict[str, Any]) -> None:
        of = "" if state["rows_total"] is None else f" of {state['rows_total']:,}"
        parts = [f"{state['rows']:,}{of} rows" if state["rows"] else f"{state['seconds']:,.0f} s so far"]
        if state["rows_per_second"] is not None:
            parts.append(f"{state['rows_per_second']:,} rows/s")
        if state["seconds_left"] is not None:
            parts.append(f"{state['seconds_left']:,.0f} s left")
        if state["memory_mib"] is not None:
            parts.append(f"{state['memory_mib']:,} MiB")
        self._print(f"{state['phase']}: {', '.join(parts)}")


def memory_mib() -> float | None:
    """Memory of this process in MiB: anonymous memory on Linux, elsewhere the peak so far; None on Windows."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1024
    return peak_mib()


def peak_mib() -> float | None:
    """The peak memory of this process in MiB; None if the system does not report it (Windows)."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
