"""A Ray cluster, and tasks that Ray Data does there."""

import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from fieldwise.distributed.engine import Task, Work, answered, done_here
from fieldwise.errors import ConfigError, LostProcessError, first_line

__all__ = ["RayEngine", "ray_cluster"]

CONNECT_TIMEOUT_S = 5.0
TASKS_AHEAD = 2  # a core
WORKERS = {
    "POLARS_MAX_THREADS": "1",  # a task has one core; Ray itself limits OpenMP
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # Ray's own print would write to standard error twice
}
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_TRAIN_METRICS_ENABLED": "0"}


class RayEngine:
    """Does tasks on the Ray cluster that this process is connected to, each on one core.

    Ray does a task again if its machine is lost. Only texts go from machine to machine.
    """

    def map(self, work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
        """See `Engine.map`."""
        import ray.data

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        ahead = TASKS_AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        left = iter(tasks)
        while some := list(islice(left, len(tasks) if isinstance(tasks, Sequence) else ahead)):
            items = [{"task": json.dumps(task)} for task in some]
            rows = ray.data.from_items(items, override_num_blocks=len(items))
            for row in rows.map(_done, fn_kwargs={"work": work}, num_cpus=1).iter_rows():
                yield answered(row["answer"])


def _done(row: dict[str, Any], work: Work) -> dict[str, Any]:
    return {"answer": done_here(work, row["task"])}


@contextlib.contextmanager
def ray_cluster(say: Callable[[str], None]) -> Iterator[None]:
    """A context in which this process is connected to a Ray cluster: that in RAY_ADDRESS.

    Without RAY_ADDRESS a cluster is started on this machine, and ends with the context.

    Args:
        say: told that one is started.

    Errors:
        ConfigError: no cluster can be reached, or started. LostProcessError: Ray could not finish the context's work.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray
    import ray.exceptions

    address = os.environ.get("RAY_ADDRESS") or "local"
    with contextlib.ExitStack() as stack:
        handler = signal.getsignal(signal.SIGTERM)
        if not ray.is_initialized():  # a program that is connected already, such as a test, keeps its connection
            try:
                if address not in ("auto", "local"):  # Ray itself would try for minutes, and then end the process
                    host, _, port = address.rpartition(":")
                    socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
                ray.init(
                    address=address,
                    include_dashboard=False if address == "local" else None,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    runtime_env={"env_vars": WORKERS},
                )
            except Exception as e:  # Ray raises `Exception` itself where a process of its own does not start in time
                raise ConfigError(
                    f"there is no Ray cluster at {address} ({type(e).__name__}: {first_line(e)}): set RAY_ADDRESS to "
                    "HOST:PORT or auto for one that `ray status` shows on this machine, or unset it to start one here"
                ) from None
            finally:  # Ray's own handler ends the process at once, as with an error
                signal.signal(signal.SIGTERM, handler)
            stack.callback(ray.shutdown)
            if address == "local":
                say("no Ray cluster is named (RAY_ADDRESS): one is started on this machine")
        try:
            yield
        except ray.exceptions.RayError as e:
            why = ([line.strip() for line in str(e).splitlines() if line.strip()] or [type(e).__name__])[-1]
            raise LostProcessError(
                f"Ray could not finish the work ({why}): all machines of the cluster need this version of fieldwise, "
                "the same files by the same paths and enough memory; the same command goes on at the stage that was "
                "reached"
            ) from None
