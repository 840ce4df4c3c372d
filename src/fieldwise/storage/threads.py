"""The cores that this process may use, and parallel work on the columns of a table."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar


def available_cores() -> int:
    """How many cores this process may use: the machine's, unless `taskset`, Slurm or a container allows fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_set() -> int | None:
    """The threads that OMP_NUM_THREADS sets, as PyTorch and the native operations have them; None if it sets none."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) or None if first.isdecimal() else None


T = TypeVar("T")
R = TypeVar("R")


FEW_ROWS = 65_536  # with fewer rows, threads cost more than they gain


def each(work: Callable[[T], R], items: Iterable[T], *, rows: int) -> list[R]:
    """The results of `work` for every item, in order; if several raise, the first item's error is raised.

    Uses as many threads as polars (set by POLARS_MAX_THREADS).
    With few rows the items are processed one after another.

    >>> each(len, ["a", "bc"], rows=2)
    [1, 2]
    """
    import polars as pl  # slow, and not needed to count cores

    known = list(items)
    threads = min(pl.thread_pool_size(), len(known))
    if threads < 2 or rows < FEW_ROWS:
        return [work(item) for item in known]
    with ThreadPoolExecutor(threads) as pool:  # each has the caller's context variables
        return [one.result() for one in [pool.submit(copy_context().run, work, item) for item in known]]


def ahead(items: Iterable[T]) -> Iterator[T]:
    """The items of an iterable, each of which is made in another thread while the one before is used.

    >>> list(ahead(map(len, ["a", "bc"])))
    [1, 2]
    """
    made = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-ahead") as thread:
        coming = thread.submit(next, made, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, made, end)
            yield item  # type: ignore[misc]
