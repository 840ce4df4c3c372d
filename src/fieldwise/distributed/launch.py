"""Starting the processes of a training on one machine, and ending all of them when one fails."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fieldwise.distributed.watched import Started, exit_code, passing_signals, tell_failure, watch
from fieldwise.storage.cores import available_cores

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["LAUNCHED", "end_with_parent", "process_environment", "shared_store", "start"]

LAUNCHED = "FIELDWISE_LAUNCHED"  # set in processes that fieldwise itself starts, here or on a Ray cluster
HERE = "127.0.0.1"


def start(command: Sequence[str], size: int) -> int:
    """Run a command in processes that train together; returns the exit code of the first that fails, or 0.

    Process 0 writes to this process's streams; of the others only an error is shown. Signals are passed on to all.

    Args:
        command: the command line of a process.
        size: how many processes.
    """
    store = shared_store()
    started: list[Started] = []
    popened: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        try:
            for rank in range(size):
                errors = None if rank == 0 else stack.enter_context(tempfile.TemporaryFile())
                popened.append(_process(command, _environment(rank, size, store.port), errors))
                started.append(Started(rank=rank, process=popened[-1], errors=partial(_text, errors)))
            with passing_signals(started) as received:
                failed = watch(started, received)
        finally:
            for process in popened:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if failed is not None:
            tell_failure(failed, size)
    if received:  # now this process ends by it as one alone would
        os.kill(os.getpid(), received[0])
    return exit_code(failed)


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


def shared_store(address: str = HERE) -> "TCPStore":
    """What the processes share besides the group.

    It has no password, so it listens on one address of this machine alone, by default one that only itself can reach.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, 0), family=family)  # PyTorch itself would listen on all interfaces
    port = listening.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def process_environment(place: Mapping[str, int], address: str, port: int) -> dict[str, str]:
    """The variables that tell a process its place: those of `torchrun`.

    Args:
        place: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
        address: where the shared store is.
        port: its port.
    """
    named = {
        **place,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is not process 0's own
        "TORCHELASTIC_RESTART_COUNT": 0,
        LAUNCHED: 1,
    }
    return {name: str(value) for name, value in named.items()}


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The environment of a process on this machine."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    environment = {**os.environ, **process_environment(place, HERE, port)}
    environment.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // size)))
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


def _text(errors: IO[bytes] | None) -> str:
    if errors is None:
        return ""
    errors.seek(0)
    return errors.read().decode(errors="replace")
