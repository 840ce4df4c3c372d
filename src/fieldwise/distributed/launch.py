"""Starting the processes of a training on one machine, and ending all of them when one fails."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["LAUNCHED", "LOST", "end_with_parent", "start"]

LAUNCHED = "FIELDWISE_LAUNCHED"  # set in processes that `start` starts
LOST = 3  # exit code of a process that ends because another one has
PATIENCE = 30.0  # seconds that the others have to end by themselves, and again after SIGTERM
GLANCE = 0.05
ASKS = getattr(signal, "SIGUSR1", None)  # for a checkpoint; ignored by processes that train nothing
FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, name)]


@dataclass(kw_only=True, eq=False)
class _Started:
    """A process, with what it writes to standard error unless it is process 0."""

    rank: int
    process: "subprocess.Popen[bytes]"
    errors: IO[bytes] | None

    @property
    def said(self) -> str:
        if self.errors is None:
            return ""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")


def start(command: Sequence[str], size: int) -> int:
    """Run a command in processes that train together; returns the exit code of the first that fails, or 0.

    Process 0 writes to this process's streams; of the others only an error is shown. Signals are passed on to all.

    Args:
        command: the command line of a process.
        size: how many processes.
    """
    store = _store()
    started: list[_Started] = []
    with contextlib.ExitStack() as stack:
        try:
            for rank in range(size):
                errors = None if rank == 0 else stack.enter_context(tempfile.TemporaryFile())
                process = _process(command, _environment(rank, size, store.port), errors)
                started.append(_Started(rank=rank, process=process, errors=errors))
            with _passing_signals(started) as received:
                failed = _watched(started, received)
        finally:
            for one in started:
                if one.process.poll() is None:
                    one.process.kill()
                one.process.wait()
        if failed is not None:
            _tell(failed, size)
    if received:  # now this process ends by it as one alone would
        os.kill(os.getpid(), received[0])
    return 0 if failed is None else failed.process.returncode if failed.process.returncode > 0 else 1


def end_with_parent() -> None:
    """End this process as SIGTERM would when the one that started it is gone: its standard input then ends."""
    if LAUNCHED not in os.environ:
        return

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="fieldwise-parent", daemon=True).start()


def _store() -> "TCPStore":
    """What the processes share besides the group. It has no password, so only this machine can reach it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    listening = socket.create_server(("127.0.0.1", 0))  # PyTorch itself would listen on all interfaces
    port = listening.getsockname()[1]
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What tells a process its place."""
    named = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is this process's
        "TORCHELASTIC_RESTART_COUNT": 0,
        LAUNCHED: 1,
    }
    environment = {**os.environ, **{name: str(value) for name, value in named.items()}}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // size)))
    if Path("/sys/class/net/lo").exists():
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _process(
    command: Sequence[str], environment: Mapping[str, str], errors: IO[bytes] | None
) -> "subprocess.Popen[bytes]":
    first = errors is None
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=None if first else subprocess.DEVNULL,
        stderr=errors,
        process_group=None if sys.platform == "win32" else 0,  # Ctrl-C arrives here, and is passed on once
    )


@contextlib.contextmanager
def _passing_signals(started: Sequence[_Started]) -> Iterator[list[int]]:
    """A context in which signals go to all processes; gives the list of those that end them."""
    received: list[int] = []

    def passed_on(number: int, _: FrameType | None) -> None:
        if number != ASKS:
            received.append(number)
        for one in started:
            with contextlib.suppress(OSError):
                one.process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    heeded = [number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN or number == ASKS]
    before = {number: signal.signal(number, passed_on) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watched(started: Sequence[_Started], received: Sequence[int]) -> _Started | None:
    """Wait for all processes; returns the one that failed first, if any did. The others then end too.

    After a signal they take the time that saving takes.
    """
    failed: _Started | None = None
    deadline, harsh = float("inf"), False
    while running := [one for one in started if one.process.poll() is None]:
        ended = [one for one in started if one.process.returncode]
        if failed is None and ended and not received:
            failed, deadline = min(ended, key=_blame), time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            for one in running:
                one.process.kill() if harsh else one.process.terminate()
            harsh, deadline = True, time.monotonic() + PATIENCE
        time.sleep(GLANCE)
    own = [one for one in started if one.process.returncode not in (0, LOST)]
    if failed is None or failed.process.returncode == LOST:
        failed = min(own or [one for one in started if one.process.returncode], key=_blame, default=None)
    elif failed.process.returncode == started[0].process.returncode > 0:  # process 0 has said the same
        failed = started[0]
    return failed


def _blame(one: _Started) -> tuple[bool, bool, int]:
    """Processes that ended only since another one did come last, and among them the silent one."""
    lost = one.process.returncode == LOST
    return lost, lost and one.rank == 0, one.rank


def _tell(failed: _Started, size: int) -> None:
    """Write to standard error why a process failed, unless it has."""
    code = failed.process.returncode
    if code < 0 and code not in (-signal.SIGTERM, -signal.SIGINT):
        print(
            f"fieldwise: process {failed.rank} of {size} was ended by signal {-code} (the system does that when memory "
            "is full), and the others with it: the same command resumes from the last checkpoint, if there is one",
            file=sys.stderr,
        )
    elif failed.said:
        said = failed.said.strip().replace("fieldwise: ", f"fieldwise: process {failed.rank} of {size}: ")
        print(said, file=sys.stderr)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
