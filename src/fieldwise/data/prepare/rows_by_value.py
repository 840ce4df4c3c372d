"""Rows by the values of a column, such as their user.

Letters: N rows, K different texts.
"""

from collections.abc import Iterator
from functools import reduce

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import coded
from fieldwise.storage.scratch import MemoryBudget


def distinct_rows(frame: pl.DataFrame, *, budget: MemoryBudget) -> pl.DataFrame:
    """The different rows of a table, in memory and in any order."""
    distinct_of_chunks = (frame[chunk].unique() for chunk in budget.chunk_slices(frame.height))
    return reduce(_union, distinct_of_chunks)


def _union(first: pl.DataFrame, second: pl.DataFrame) -> pl.DataFrame:
    """The different rows of two tables."""
    return pl.concat([first, second]).unique()


def shuffled_rows(rows: int, seed: int, *, budget: MemoryBudget) -> np.ndarray:
    """The numbers of all rows [N] int64, in an order drawn by a seed."""
    numbers = budget.fill(rows, np.int64, lambda chunk: np.arange(chunk.start, chunk.stop))
    np.random.default_rng(seed).shuffle(numbers)
    return numbers


def rank_texts(column: pl.Series, *, budget: MemoryBudget) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each cell's text (see `as_text`) among the column's sorted texts, from 1, and the rows of each rank.

    Rank 0 is a missing cell. The different texts are held in memory.
    """
    texts = pl.Series(dtype=pl.String)
    for chunk in budget.chunk_slices(len(column)):
        texts = pl.concat([texts, coded(column[chunk]).texts]).unique()
    texts = texts.sort()
    ranks_of_texts = pl.int_range(1, len(texts) + 1, eager=True)

    ranks = budget.empty(len(column), np.int32)
    counts = np.zeros(len(texts) + 1, dtype=np.int64)
    for chunk in budget.chunk_slices(len(column)):
        cells = coded(column[chunk])
        ranks_in_chunk = cells.texts.replace_strict(
            texts, ranks_of_texts, default=0, return_dtype=pl.Int32
        )
        ranks[chunk] = cells.look_up(ranks_in_chunk.to_numpy(), 0)
        counts += np.bincount(ranks[chunk], minlength=len(counts))
    return ranks, counts


def group_rows(
    ranks: np.ndarray, counts: np.ndarray, values: np.ndarray, *, budget: MemoryBudget
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All rows with a rank above 0, by consecutive ranks, about a chunk at a time; the rows of a rank stay together.

    `ranks` and `counts` are those of `rank_texts`. Rows of one rank come in the order of `values`
    [N]; equal ones in that of the table. Yields the rows' numbers, the rank of each, less the first
    one's, and the rows of each rank.
    """
    starts = np.cumsum(counts) - counts
    by_rank = _rows_by_rank(ranks, starts, budget=budget)
    chunk_rows = budget.chunk_rows or max(len(ranks), 1)
    first = 1
    while first < len(starts):
        chunk_end = starts[first] + chunk_rows
        if starts[-1] + counts[-1] <= chunk_end:
            end = len(starts)
        else:
            end = max(first + 1, int(np.searchsorted(starts, chunk_end, side="right")) - 1)
        group_sizes = counts[first:end]
        rows = by_rank[starts[first] : starts[first] + int(group_sizes.sum())]
        groups = np.repeat(np.arange(len(group_sizes)), group_sizes)
        yield rows[np.lexsort((values[rows], groups))], groups, group_sizes
        first = end


def _rows_by_rank(ranks: np.ndarray, starts: np.ndarray, *, budget: MemoryBudget) -> np.ndarray:
    """The numbers of all rows by rank [N], those of a rank from its start, in the order of the table."""
    by_rank = budget.empty(len(ranks), np.int64)
    next_places = starts.copy()
    for chunk in budget.chunk_slices(len(ranks)):
        order = np.argsort(ranks[chunk], kind="stable")
        rank = ranks[chunk][order]
        counts = np.bincount(rank, minlength=len(starts))
        first_of_rank = np.cumsum(counts) - counts
        number_in_rank = np.arange(len(rank)) - first_of_rank[rank]
        by_rank[next_places[rank] + number_in_rank] = order + chunk.start
        next_places += counts
    return by_rank
