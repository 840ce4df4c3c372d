"""Memory of a process and all that it started, from Linux's counters, several times a second."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Memory", "Sample"]

PROC = Path("/proc")
KINDS = ("RssAnon", "RssFile", "RssShmem")
A_SECOND = 5


@dataclass(frozen=True)
class Sample:
    """Resident memory of all processes together at one moment, in bytes.

    Args:
        at: seconds since the watch began.
        anonymous: what only the processes themselves can give back; the kernel cannot drop it.
        file: pages of mapped files, which the kernel drops when others need memory.
        shared: shared memory and files on tmpfs.
        processes: how many there were.
    """

    at: float
    anonymous: int
    file: int
    shared: int
    processes: int


class Memory:
    """Watches the processes of a session and their descendants while a `with` block runs.

    A process that outlives its parent stays in its session, and is counted. Pages that processes share are counted
    once for each, but processes of equal numbers once: one that was just forked, to start a program, has its parent's.

    Args:
        session: the id of a process that was started with `start_new_session=True`.
    """

    def __init__(self, session: int) -> None:
        self.session, self.began, self.samples = session, time.perf_counter(), list[Sample]()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def now(self) -> Sample:
        """One sample."""
        at = time.perf_counter() - self.began
        found = {memory for pid in members(self.session) if (memory := _memory(pid)) is not None}
        anonymous, file, shared = (sum(one[kind] for one in found) for kind in range(3))
        return Sample(at, anonymous, file, shared, len(found))

    def peak(self, start: float = 0.0, stop: float = float("inf")) -> int:
        """The most anonymous memory of the samples between two moments, 0 without samples."""
        return max((one.anonymous for one in self.samples if start <= one.at < stop), default=0)

    def _watch(self) -> None:
        while not self._end.wait(1 / A_SECOND):
            self.samples.append(self.now())


def members(session: int) -> list[int]:
    """Processes of a session, and the descendants of each, wherever they moved."""
    parents = dict(_parents())
    found = {pid for pid, (_, own) in parents.items() if own == session}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def _parents() -> Iterator[tuple[int, tuple[int, int]]]:
    """Parent and session of every process that has not ended."""
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                yield pid, (int(fields[1]), int(fields[3]))


def _pids() -> Iterable[int]:
    return (int(path.name) for path in PROC.iterdir() if path.name.isdigit())


def _memory(pid: int) -> tuple[int, int, int] | None:
    """Anonymous, file and shared bytes; None if the process has ended."""
    found = {}
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in KINDS:
                found[name] = 1024 * int(rest.split()[0])
    return (found[KINDS[0]], found[KINDS[1]], found[KINDS[2]]) if len(found) == len(KINDS) else None
