"""Tasks on a Ray cluster, by Ray Data."""

import contextlib
import importlib
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fieldwise.distributed.engine import Task, Work, answered, done_here
from fieldwise.errors import ConfigError, FieldwiseError, LostProcessError, MissingExtraError

__all__ = ["RayEngine", "library", "ray_cluster", "ray_failure"]

NEEDED = "work on a Ray cluster needs Ray, which is not installed: pip install 'fieldwise[ray]'"
LOCAL = "local"
ANSWER_SECONDS = 5.0
AHEAD = 2  # tasks a core that are sent at once
WORKERS = {
    "POLARS_MAX_THREADS": "1",  # a task has one core; Ray itself limits OpenMP
    "TRAIN_ENABLE_SHARE_CUDA_VISIBLE_DEVICES": "1",  # processes of one machine see all of their GPUs
}
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # else Ray announces a change of its own
LOGGERS = {"ray.data": logging.WARNING, "ray.data._internal.progress": logging.ERROR}
HOST = re.compile(r"(?P<host>.+):(?P<port>\d+)")


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Does tasks on the Ray cluster that this process is connected to, each on one core.

    Ray does a task again if its machine is lost. Only texts go from machine to machine.
    """

    def map(self, work: Work, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
        """See `Engine.map`."""
        if not tasks:
            return
        data = library("ray.data")
        for name, level in LOGGERS.items():
            logging.getLogger(name).setLevel(level)
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        items = [{"task": task.to_json()} for task in tasks]
        rows = data.from_items(items, override_num_blocks=len(items)).map(_done, fn_kwargs={"work": work}, num_cpus=1)
        with ray_failure():
            for row in rows.iter_rows():
                yield answered(row["answer"])

    def stream(self, work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
        """See `Engine.stream`."""
        left = iter(tasks)
        ahead = AHEAD * max(1, int(library("ray").cluster_resources().get("CPU", 1)))
        while some := list(islice(left, ahead)):
            yield from self.map(work, some)


def _done(row: dict[str, Any], work: Work) -> dict[str, Any]:
    return {"answer": done_here(work, row["task"])}


@contextlib.contextmanager
def ray_cluster(address: str | None, say: Callable[[str], None]) -> Iterator[None]:
    """A context in which this process is connected to a Ray cluster.

    Args:
        address: of a running cluster (`HOST:PORT`, or `auto` for the one on this machine); by default that in
            RAY_ADDRESS, and without it a cluster is started on this machine, and ends with the context.
        say: told that one is started.

    Errors:
        MissingExtraError: Ray is not installed. ConfigError: no cluster can be reached at the address, or started.
    """
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is not None:
        _check_address(address)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = library("ray")
    if ray.is_initialized():  # a program that is connected already, such as a test, keeps its connection
        yield
        return
    try:
        with _own_handlers():
            ray.init(
                address=address or LOCAL,
                include_dashboard=False if address is None else None,
                log_to_driver=False,
                logging_level=logging.WARNING,
                runtime_env={"env_vars": WORKERS},
            )
    except Exception as e:  # Ray raises `Exception` itself where a process of its own does not start in time
        raise _unreachable(address, f"{type(e).__name__}: {e}") from None
    if address is None:
        cores = int(ray.cluster_resources().get("CPU", 0))
        say(f"no Ray cluster is named (--ray-address, RAY_ADDRESS): one is started on this machine, with {cores} cores")
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """A context after which SIGTERM does what it did before: Ray ends the process by it at once, as with an error."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ray_failure() -> Iterator[None]:
    """A context in which Ray's own errors become one sentence.

    Errors:
        LostProcessError: a machine or a process of the cluster is lost, or fieldwise cannot be imported there.
    """
    try:
        yield
    except FieldwiseError:
        raise
    except library("ray.exceptions").RayError as e:
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        why = lines[-1] if lines else type(e).__name__
        raise LostProcessError(
            f"Ray could not finish the work ({type(e).__name__}: {why}): all machines of the cluster need fieldwise "
            "and enough memory; the same command goes on at the stage that was reached"
        ) from None


def library(name: str) -> Any:
    """A module of Ray.

    Errors:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(NEEDED) from None


def _check_address(address: str) -> None:
    """Check that something answers at `HOST:PORT`: Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"the command must run on a machine of the Ray cluster, found the address {address} of Ray's client: give "
            "HOST:PORT or auto there, or start the command with `ray job submit`"
        )
    found = HOST.fullmatch(address)
    if found is None:
        if address in ("auto", LOCAL):
            return
        raise ConfigError(f"--ray-address must be HOST:PORT or auto, found {address!r}")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as e:
        raise _unreachable(address, str(e)) from None


def _unreachable(address: str | None, why: str) -> ConfigError:
    first = (why.strip().splitlines() or ["no answer"])[0].rstrip(".")
    if address is None:
        return ConfigError(
            f"Ray could not start a cluster on this machine ({first}): see its logs in /tmp/ray/session_latest/logs, "
            "or name a cluster that runs in RAY_ADDRESS"
        )
    return ConfigError(
        f"no Ray cluster can be reached at {address} ({first}): check the address, and that `ray status` shows the "
        "cluster on this machine"
    )
