"""Work on chunks of a table that several machines may share: here those of a Ray cluster, by Ray Data.

A piece of work is a function of this package and plain values: paths, numbers and texts go to where
it is done, numbers and texts come back, and rows lie in files of a folder that all machines see. So
the same functions serve any engine.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from fieldwise import errors
from fieldwise.errors import (
    Argument,
    ConfigError,
    FieldwiseError,
    LostProcessError,
    Row,
    first_line,
)

Task = Mapping[str, Any]
"""What a piece of work is given: plain values that JSON can hold."""
Work = Callable[[Task], dict[str, Any]]
"""Plain values to plain values; a function of a module, so that its name is enough to find it elsewhere."""
Engine = Callable[[Work, Iterable[Task]], Iterator[dict[str, Any]]]
"""Gives the answers in the tasks' order, or raises the first error; takes few tasks of an iterator ahead of them."""

TASKS_AHEAD = 2  # a core
WORKERS = {
    "POLARS_MAX_THREADS": "1",  # a task has one core; Ray itself limits OpenMP
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",  # Ray's own print would write to standard error twice
}
QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_TRAIN_METRICS_ENABLED": "0"}


def done_here(work: Work, task: str) -> str:
    """Do a task, given as JSON, in this process: the answer, or the user error, as text for `answered`.

    An error of a class defined elsewhere becomes one of the class of `fieldwise.errors` above it.

    >>> def double(given):
    ...     return {"twice": 2 * given["n"]}
    >>> answered(done_here(double, '{"n": 4}'))
    {'twice': 8}
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            done: dict[str, Any] = {"answer": work(json.loads(task))}
        except FieldwiseError as e:
            classes = [cls.__name__ for cls in type(e).__mro__ if cls.__module__ == errors.__name__]
            done = {"error": classes[0], "sentence": [_plain(part) for part in e.args]}
    done["warnings"] = [
        str(warning.message) for warning in caught if warning.category is UserWarning
    ]
    return json.dumps(done)


def answered(text: str) -> dict[str, Any]:
    """The answer from `done_here`; its warnings are given here, and a user error is raised."""
    done = json.loads(text)
    for sentence in done["warnings"]:
        warnings.warn(sentence, stacklevel=2)
    if "error" in done:
        raise getattr(errors, done["error"])(*map(_part, done["sentence"]))
    return dict(done["answer"])


def _plain(part: object) -> str | list[Any]:
    """A part of an error's sentence as JSON holds it: a text, or a fact's class and values."""
    if isinstance(part, Row | Argument):
        return [type(part).__name__, asdict(part)]
    return str(part)


def _part(plain: str | list[Any]) -> object:
    """A part of an error's sentence from its JSON."""
    if isinstance(plain, str):
        return plain
    name, values = plain
    return getattr(errors, name)(**values)


@contextlib.contextmanager
def ray_cluster(say: Callable[[str], None]) -> Iterator[Engine]:
    """A context that is connected to the Ray cluster in RAY_ADDRESS; gives its engine.

    Without RAY_ADDRESS a cluster is started on this machine, which `say` prints, and ends with the
    context.

    Errors:
        ConfigError: no cluster can be reached, or started. LostProcessError: Ray could not finish
            the context's work.
    """
    os.environ |= QUIET | os.environ
    import ray.exceptions

    address = os.environ.get("RAY_ADDRESS") or "local"
    handler = signal.getsignal(signal.SIGTERM)
    # a test may be connected already
    local = address == "local"
    owned = not ray.is_initialized()
    try:
        # Ray itself would try for minutes, and then end the process
        if owned and address not in ("auto", "local"):
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        if owned:
            about = {
                "log_to_driver": False,
                "logging_level": logging.WARNING,
                "runtime_env": {"env_vars": WORKERS},
            }
            ray.init(address=address, include_dashboard=False if local else None, **about)
    # Ray raises `Exception` itself where a process of its own does not start in time
    except Exception as e:
        failed = f"there is no Ray cluster at {address}"
        more = ", or unset it to start one here"
        if local:
            failed = "Ray could not start a cluster on this machine"
            more = ""
        raise ConfigError(
            f"{failed} ({type(e).__name__}: {first_line(e)}): set RAY_ADDRESS to HOST:PORT, or to auto on a machine of "
            f"a cluster that runs{more}"
        ) from None
    finally:  # Ray's own handler ends the process at once, as with an error
        signal.signal(signal.SIGTERM, handler)
    if owned and local:
        say("no Ray cluster is named (RAY_ADDRESS): one is started on this machine")
    try:
        yield _done_by_ray
    except ray.exceptions.RayError as e:
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        why = lines[-1] if lines else type(e).__name__
        raise LostProcessError(
            f"Ray could not finish the work ({why}): all machines of the cluster need this version of fieldwise, the "
            "same files by the same paths and enough memory; the same command goes on at the stage that was reached"
        ) from None
    finally:
        if owned:
            ray.shutdown()


def _done_by_ray(work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """The engine of the cluster: a task takes one core, and is done again if its machine is lost."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    ahead = TASKS_AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = iter(tasks)
    tasks_at_once = len(tasks) if isinstance(tasks, Sequence) else ahead
    while next_tasks := list(islice(left, tasks_at_once)):
        items = [{"task": json.dumps(task)} for task in next_tasks]
        rows = ray.data.from_items(items, override_num_blocks=len(items))
        done = rows.map(lambda row: {"answer": done_here(work, row["task"])}, num_cpus=1)
        yield from (answered(row["answer"]) for row in done.iter_rows())
