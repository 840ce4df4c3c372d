"""Assembling encoded columns into rows, in blocks of rows that threads share.

Letters: N rows, S columns.
"""

from collections.abc import Sequence

import numpy as np
import torch

from fieldwise.layout import Bags
from fieldwise.storage.threads import each

__all__ = ["Room", "interleave", "rows_of"]

BLOCK = 65_536  # rows


class Room:
    """Memory for the matrices of one piece of rows after another: a new array's pages are cleared by the system first.

    A matrix holds its rows until the next one of the same type is wanted.
    """

    def __init__(self) -> None:
        self._held: dict[type[np.generic], np.ndarray] = {}

    def empty(self, rows: int, columns: int, kind: type[np.generic]) -> np.ndarray:
        """A matrix whose numbers are undefined."""
        held = self._held.get(kind)
        if held is None or held.size < rows * columns:
            held = self._held[kind] = np.empty(rows * columns, kind)
        return held[: rows * columns].reshape(rows, columns)


def rows_of(
    columns: Sequence[np.ndarray],
    rows: int,
    kind: type[np.generic],
    *,
    add: Sequence[int] | None = None,
    room: Room | None = None,
) -> np.ndarray:
    """Columns as a matrix of rows, optionally with a number added to each column.

    Args:
        columns: the columns.
        rows: N.
        kind: type of the matrix.
        add: a number for each column.
        room: where the matrix lies; in memory of its own if omitted.

    Shape:
        columns: S times [N].
        returns [N, S] of type `kind`, in row-major order.

    >>> rows_of([np.array([0, 1]), np.array([5, 6])], 2, np.int32, add=[10, 0]).tolist()
    [[10, 5], [11, 6]]
    """
    out = (room or Room()).empty(rows, len(columns), kind)

    def write(start: int) -> None:
        block = out[start : start + BLOCK]
        for k, column in enumerate(columns):
            cells = column[start : start + BLOCK]
            if add is None:
                block[:, k] = cells
            else:
                np.add(cells, add[k], out=block[:, k], casting="same_kind")

    each(write, range(0, rows if columns else 0, BLOCK), rows=rows)
    return out


def interleave(bags: Sequence[Bags], rows: int) -> Bags:
    """The bags of N rows, row by row and within a row field by field.

    Args:
        bags: bags of each field, one per row.
        rows: N.
    """
    if not bags:
        return Bags.of(torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int64))
    if len(bags) == 1:
        return bags[0]
    return Bags.joined(bags).take(torch.arange(len(bags) * rows).view(len(bags), rows).t())
