"""Encoded columns become rows: block by block, so that what is written stays in the processor's cache.

Letters: N rows, S columns, G bag fields, M ids of all bags.
"""

from collections.abc import Sequence

import numpy as np

from fieldwise.storage.threads import each

__all__ = ["bag_counts", "interleave", "rows_of"]

BLOCK = 65_536  # rows


def rows_of(
    columns: Sequence[np.ndarray], rows: int, kind: type[np.generic], *, add: Sequence[int] | None = None
) -> np.ndarray:
    """Columns as a matrix of rows, where asked with a number of its own added to each column.

    Shape:
        columns: S times [N].
        returns [N, S] of type `kind`, row after row.

    >>> rows_of([np.array([0, 1]), np.array([5, 6])], 2, np.int32, add=[10, 0]).tolist()
    [[10, 5], [11, 6]]
    """
    out = np.empty((rows, len(columns)), dtype=kind)

    def write(start: int) -> None:
        block = np.empty((len(columns), min(BLOCK, rows - start)), dtype=kind)
        for k, column in enumerate(columns):
            block[k] = column[start : start + BLOCK]
            if add is not None:
                block[k] += kind(add[k])
        out[start : start + BLOCK] = block.T

    each(write, range(0, rows if columns else 0, BLOCK), rows=rows)
    return out


def interleave(bags: Sequence[tuple[np.ndarray, np.ndarray]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Order the bags' ids row by row, within a row field by field.

    Args:
        bags: for each bag field its ids, one cell after another, and how many each cell has [N].
        rows: N.

    Shape:
        ids: [M] int32. offsets: [N * G + 1] int64, where each bag begins.
    """
    if not bags:
        return np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
    lengths = np.stack([n for _, n in bags], axis=1)
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths.ravel(), out=offsets[1:])
    if len(bags) == 1:
        return bags[0][0].astype(np.int32, copy=False), offsets
    flat = np.empty(int(offsets[-1]), dtype=np.int32)
    starts = offsets[:-1].reshape(rows, len(bags))
    for g, (ids, n) in enumerate(bags):
        first = np.cumsum(n) - n  # of each cell among this field's ids
        flat[np.repeat(starts[:, g] - first, n) + np.arange(ids.size)] = ids
    return flat, offsets


def bag_counts(hit: np.ndarray, offsets: np.ndarray, bags: int) -> np.ndarray:
    """How many ids of each bag field are marked [G], and how many there are [G]: [2, G] int64.

    Args:
        hit: marks of the ids [M], bool.
        offsets: [N * G + 1], where each bag begins.
        bags: G.
    """
    before = np.concatenate([[0], np.cumsum(hit, dtype=np.int64)])[offsets]
    return np.stack([np.diff(x).reshape(-1, bags).sum(axis=0) for x in (before, offsets)])
