"""A command in a session of its own: what it printed and when, its memory, its seconds."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.large.memory import Memory, members

__all__ = ["ROOT", "Watched", "environment_with", "fieldwise", "watched"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Watched:
    """What a command did.

    Args:
        code: exit status; negative for a signal.
        out: standard output.
        lines: lines of standard error, each with its second since the start.
        seconds: from start to end.
        cpu: processor seconds of its processes.
        memory: samples of its memory.
    """

    code: int
    out: str
    lines: Sequence[tuple[float, str]]
    seconds: float
    cpu: float
    memory: Memory

    @property
    def error(self) -> str:
        """The last line of standard error."""
        return self.lines[-1][1] if self.lines else ""

    def checked(self) -> "Watched":
        """Itself; ends this program if the command failed."""
        if self.code != 0:
            told = "\n".join(line for _, line in self.lines[-20:])
            sys.exit(f"the command failed with status {self.code}:\n{told}")
        return self


def fieldwise(*words: object) -> list[str]:
    """A command of this checkout's program."""
    return [sys.executable, "-m", "fieldwise", *(str(word) for word in words)]


def environment_with(folder: Path, threads: int | None = None) -> dict[str, str]:
    """This environment, with the program's cache and temporary files in `folder`."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    found = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    if threads is not None:
        found |= {"POLARS_MAX_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return found


def watched(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, show: bool = False, cwd: Path = ROOT
) -> Watched:
    """Run a command to its end; all of its processes are ended with this one.

    Args:
        command: its words.
        env: its environment.
        show: whether its standard error is shown too.
        cwd: its folder.
    """
    began, used, lines = time.perf_counter(), _cpu(), list[tuple[float, str]]()
    child = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stderr is not None
    errors = child.stderr

    def read() -> None:
        for line in errors:
            lines.append((time.perf_counter() - began, line.rstrip("\n")))
            if show:
                print(line, end="", file=sys.stderr, flush=True)

    reader = threading.Thread(target=read, daemon=True)
    try:
        with Memory(child.pid) as memory:
            memory.began = began
            reader.start()
            out = child.stdout.read()
            code = child.wait()
            seconds = time.perf_counter() - began
    finally:
        end(child)
    reader.join(10)
    child.stdout.close()
    errors.close()
    return Watched(code, out, lines, seconds, _cpu() - used, memory)


def end(child: "subprocess.Popen[str]") -> None:
    """Kill what is left of a child's session."""
    for pid in members(child.pid):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    child.wait()


def _cpu() -> float:
    """Processor seconds of all children that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime
