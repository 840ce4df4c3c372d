"""Reports on long work over rows: its phase, rows, rate, time left and memory, for people or for machines."""

import json
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from fieldwise.storage.machine import number_in

SECONDS_BETWEEN_LINES = 5.0


class Reports:
    """Receives the phases of some work and their rows; this base class shows nothing."""

    def begin(self, phase: str, rows: int | None = None, **facts: Any) -> None:
        """Begin a phase, which ends the one before; `rows` is the number of its rows, if known."""

    def add(self, rows: int, **facts: Any) -> None:
        """Count further rows as done."""

    def note(self, **facts: Any) -> None:
        """Something has happened, such as an evaluation."""


NO_REPORTS = Reports()


class ShownReports(Reports):
    """A context whose thread prints the state of the work on standard error, also while no rows are done.

    Args:
        as_json: print lines of JSON, also at the end of each phase and for each note; else
            sentences, none for work that is done sooner.
        every: seconds between two lines.
        out: where they go instead.
    """

    def __init__(
        self, *, as_json: bool, every: float = SECONDS_BETWEEN_LINES, out: IO[str] | None = None
    ) -> None:
        self._as_json = as_json
        self._every = every
        self._out = out
        self._phase = ""
        self._rows = 0
        self._began = time.perf_counter()
        self._facts: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._total: int | None = None
        self._thread = threading.Thread(
            target=self._show_regularly, name="fieldwise-reports", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.begin("")

    def begin(self, phase: str, rows: int | None = None, **facts: Any) -> None:
        """Begin a phase; JSON has a line with the state at the end of the one before."""
        with self._lock:
            if self._as_json and self._phase:
                self._show(self.state())
            self._phase = phase
            self._rows = 0
            self._total = rows
            self._facts = facts
            self._began = time.perf_counter()

    def add(self, rows: int, **facts: Any) -> None:
        """Count further rows, and replace facts of the phase; the next line has them."""
        with self._lock:
            self._rows += rows
            self._facts |= facts

    def note(self, **facts: Any) -> None:
        """Print a line of JSON with facts about something that has happened; no sentence."""
        with self._lock:
            if self._as_json:
                self._show({"phase": self._phase, **facts})

    def state(self) -> dict[str, Any]:
        """The phase with its rows and facts; a fact that is a function is called for its value.

        `rows` is None in a phase whose rows are not counted.
        """
        seconds = time.perf_counter() - self._began
        rows_are_counted = self._rows > 0 or self._total is not None
        rows_per_second = None
        seconds_left = None
        if self._rows and seconds > 0:
            rate = self._rows / seconds
            rows_per_second = round(rate)
            if self._total is not None:
                seconds_left = round(max(0, self._total - self._rows) / rate, 1)
        facts = {name: value() if callable(value) else value for name, value in self._facts.items()}
        memory = memory_mib()
        return {
            "phase": self._phase,
            **facts,
            "rows": self._rows if rows_are_counted else None,
            "rows_total": self._total,
            "rows_per_second": rows_per_second,
            "seconds": round(seconds, 1),
            "seconds_left": seconds_left,
            "memory_mib": None if memory is None else round(memory),
        }

    def _show_regularly(self) -> None:
        while not self._ended.wait(self._every):
            with self._lock:
                if self._phase:
                    self._show(self.state())

    def _show(self, facts: dict[str, Any]) -> None:
        line = json.dumps(facts) if self._as_json else _sentence(facts)
        print(line, file=self._out or sys.stderr, flush=True)


_UNITS = {"rows_per_second": "rows/s", "seconds_left": "s left", "memory_mib": "MiB"}


def _sentence(facts: dict[str, Any]) -> str:
    """The state of some work (`ShownReports.state`) for people."""
    if facts["rows"]:
        total = "" if facts["rows_total"] is None else f" of {facts['rows_total']:,}"
        done = f"{facts['rows']:,}{total} rows"
    else:
        done = f"{facts['seconds']:,.0f} s so far"
    parts = [done]
    for name, unit in _UNITS.items():
        if facts[name] is not None:
            parts.append(f"{facts[name]:,.0f} {unit}")
    return f"{facts['phase']}: {', '.join(parts)}"


def memory_mib() -> float | None:
    """Memory of this process in MiB: anonymous memory on Linux, elsewhere the peak so far; None on Windows."""
    anonymous = number_in(Path("/proc/self/status"), r"^RssAnon:\s*(\d+)")
    return peak_mib() if anonymous is None else anonymous / 1024


def peak_mib() -> float | None:
    """The peak memory of this process in MiB; None if the system does not report it (Windows)."""
    try:
        import resource
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
