"""`--processes N`: PyTorch's elastic launcher, which is `torchrun`'s, runs a command N times on this machine."""

import contextlib
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fieldwise.distributed.environment import EXIT_LOST, LAUNCHED
from fieldwise.storage.cores import available_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

__all__ = ["launch"]

SHUTDOWN_S = 600  # that the processes have to save after a signal
INTERRUPTED = 130
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


def launch(command: Sequence[str], processes: int) -> int:
    """Run a command in processes that train together; returns the exit code of the one that failed first, or 0.

    Process 0 writes to this process's streams. Signals are passed on to all; then this process ends by them too.

    Args:
        command: the command line of a process.
        processes: how many.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="fieldwise-launch-") as folder, _prepared(processes):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=secrets.token_hex(8),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder, local_ranks_filter={0}),
            shutdown_timeout=SHUTDOWN_S,
            signals_to_handle=",".join(signal.Signals(number).name for number in _heeded()),
        )
        received = None
        try:
            elastic_launch(config, command[0])(*command[1:])
        except SignalException as e:
            received = e.sigval
        except ChildFailedError as e:
            return _report(e.failures, processes)
    if received is not None:  # with the handlers from before
        os.kill(os.getpid(), received)
    return 0


@contextlib.contextmanager
def _prepared(processes: int) -> Iterator[None]:
    """A context with the processes' variables, without the launcher's own log, after which signals act as before."""
    added = {LAUNCHED: "1", "OMP_NUM_THREADS": str(max(1, available_cores() // processes))}
    if Path("/sys/class/net/lo").exists():
        added["GLOO_SOCKET_IFNAME"] = "lo"
    before, disabled = dict(os.environ), logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in _heeded()}
    os.environ.update({name: value for name, value in added.items() if name not in os.environ})
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _heeded() -> list[int]:
    """The signals that end this process; those that are ignored (`nohup`) stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _report(failures: "dict[int, ProcessFailure]", processes: int) -> int:
    """Write to standard error why the processes failed, in one sentence; returns the exit code."""
    ended = (INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)  # also by the launcher, once another one had failed
    own = {rank: one for rank, one in failures.items() if one.exitcode not in (EXIT_LOST, *ended)}
    rank, first = min((own or failures).items(), key=lambda item: (item[1].timestamp, item[0]))
    if first.exitcode in ended:
        return INTERRUPTED  # which the command line says
    if first.exitcode < 0:
        print(
            f"fieldwise: process {rank} of {processes} was ended by signal {-first.exitcode} (the system does that "
            "when memory is full), and the others with it: the same command resumes from the last checkpoint, if "
            "there is one",
            file=sys.stderr,
        )
        return 1
    told = first.error_file_data["message"]
    alike = {str(one.error_file_data["message"]) for one in failures.values()} == {str(told)} or rank == 0
    where = "" if alike else f"process {rank} of {processes}: "
    said = told["message"] if isinstance(told, dict) else f"it failed with exit code {first.exitcode}"
    print(f"fieldwise: {where}{said}", file=sys.stderr)
    return first.exitcode
