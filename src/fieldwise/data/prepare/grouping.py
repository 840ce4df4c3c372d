"""Rows by the value of a column, such as their user: ranks of the values, and the rows of some values at a time.

Letters: N rows, K different texts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.coded import coded
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["Ranks", "SomeRows", "group_rows", "rank_texts"]


@dataclass(frozen=True, eq=False)
class Ranks:
    """The rank of each cell's text among the column's sorted texts, from 1; 0 is a missing cell.

    Shape:
        ranks: [N] int32.
        counts: [K + 1] int64, rows of each rank.
        missing: the first row without a value, if there is one.
    """

    ranks: np.ndarray
    counts: np.ndarray
    missing: tuple[int, ...] = ()


def rank_texts(column: pl.Series, scratch: Scratch = IN_MEMORY) -> Ranks:
    """Ranks of a column's cells, as text (see `as_text`).

    The different texts are held in memory, the ranks in `scratch`.

    >>> rank_texts(pl.Series(["b", None, "a", "b"])).ranks.tolist()
    [2, 0, 1, 2]
    """
    texts = pl.Series("text", [], dtype=pl.String)
    for at in scratch.pieces(len(column)):
        cells = coded(column[at])
        texts = pl.concat([texts, cells.texts.filter(cells.counts() > 0).alias("text")]).unique()
    known = texts.sort().to_frame().with_row_index("rank", offset=1)
    ranks = scratch.empty(len(column), np.int32)
    counts = np.zeros(known.height + 1, dtype=np.int64)
    missing: list[int] = []
    for at in scratch.pieces(len(column)):
        cells = coded(column[at])
        own = cells.texts.alias("text").to_frame().join(known, on="text", how="left", maintain_order="left")
        ranks[at] = cells.look_up(own.get_column("rank").fill_null(0).to_numpy().astype(np.int32), 0)
        counts += np.bincount(ranks[at], minlength=len(counts))
        if not missing and counts[0]:
            missing.append(at.start + int(np.argmax(ranks[at] == 0)))
    return Ranks(ranks, counts, tuple(missing))


@dataclass(frozen=True, eq=False)
class SomeRows:
    """All rows of some values, those of one value together.

    Shape:
        rows: [M] int64, row numbers; those of one value ascend, until they are sorted otherwise.
        codes: [M] int64, the value of each row, from 0.
        counts: [values] int64, rows of each value.
    """

    rows: np.ndarray
    codes: np.ndarray
    counts: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """For each row the place behind its value's last row [M]."""
        ends: np.ndarray = np.cumsum(self.counts)[self.codes]
        return ends

    def sorted_by(self, values: np.ndarray) -> "SomeRows":
        """The same rows, those of one value in the order of `values` [N]; equal ones keep their order."""
        order = np.lexsort((values[self.rows], self.codes))
        return SomeRows(self.rows[order], self.codes, self.counts)


def group_rows(ranks: Ranks, scratch: Scratch = IN_MEMORY) -> Iterator[SomeRows]:
    """All rows with a value, by consecutive ranks, about a piece at a time; one value's rows are never parted."""
    starts = np.cumsum(ranks.counts) - ranks.counts
    grouped, place = scratch.empty(len(ranks.ranks), np.int64), starts.copy()
    for at in scratch.pieces(len(ranks.ranks)):
        order = np.argsort(ranks.ranks[at], kind="stable")
        rank = ranks.ranks[at][order]
        own = np.bincount(rank, minlength=len(place))
        grouped[place[rank] + np.arange(len(rank)) - (np.cumsum(own) - own)[rank]] = order + at.start
        place += own
    first, most = 1, scratch.piece or max(len(ranks.ranks), 1)
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
        last = len(starts) if starts[-1] + ranks.counts[-1] <= starts[first] + most else last
        counts = ranks.counts[first:last]
        rows = grouped[starts[first] : starts[first] + int(counts.sum())]
        yield SomeRows(np.array(rows), np.repeat(np.arange(len(counts)), counts), counts)
        first = last
