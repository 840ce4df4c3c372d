"""Parallel work on the columns of a table: polars and NumPy release the interpreter lock while they compute."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import polars as pl

__all__ = ["ahead", "each"]

T = TypeVar("T")
R = TypeVar("R")


FEW_ROWS = 65_536  # with fewer rows, threads cost more than they gain


def each(work: Callable[[T], R], items: Iterable[T], *, rows: int) -> list[R]:
    """The results of `work` for every item, in order; if several raise, the first item's error is raised.

    Uses as many threads as polars (set by POLARS_MAX_THREADS).

    Args:
        work: applied to each item, such as a column.
        items: the items.
        rows: number of rows of the table; with few rows the items are processed one after another.

    >>> each(len, ["a", "bc"], rows=2)
    [1, 2]
    """
    known = list(items)
    threads = min(pl.thread_pool_size(), len(known))
    if threads < 2 or rows < FEW_ROWS:
        return [work(item) for item in known]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, known))


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
