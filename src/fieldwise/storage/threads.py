"""Work on the columns of a table at once: polars and NumPy leave the interpreter while they compute."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import polars as pl

__all__ = ["each"]

T = TypeVar("T")
R = TypeVar("R")


FEW_ROWS = 65_536  # below, handing columns to threads costs more than it gains


def each(work: Callable[[T], R], items: Iterable[T], *, rows: int) -> list[R]:
    """`work` of every item, in the items' order; of several errors the first item's is raised.

    There are as many threads as polars has (POLARS_MAX_THREADS sets them).

    Args:
        work: what is done with one item, such as a column.
        items: what there is.
        rows: of the table; of few rows the items are worked on one after another.

    >>> each(len, ["a", "bc"], rows=2)
    [1, 2]
    """
    known = list(items)
    threads = min(pl.thread_pool_size(), len(known))
    if threads < 2 or rows < FEW_ROWS:
        return [work(item) for item in known]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, known))
