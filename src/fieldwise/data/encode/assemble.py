"""Assembling encoded columns into rows, in blocks of rows that threads share.

Letters: N rows, S columns.
"""

from collections.abc import Sequence

import numpy as np
import torch

from fieldwise.layout import Bags
from fieldwise.storage.threads import each

__all__ = ["interleave", "rows_of"]

BLOCK = 65_536  # rows


def rows_of(
    columns: Sequence[np.ndarray], rows: int, kind: type[np.generic], *, add: Sequence[int] | None = None
) -> np.ndarray:
    """Columns as a matrix of rows, optionally with a number added to each column.

    Shape:
        columns: S times [N].
        returns [N, S] of type `kind`, in row-major order.

    >>> rows_of([np.array([0, 1]), np.array([5, 6])], 2, np.int32, add=[10, 0]).tolist()
    [[10, 5], [11, 6]]
    """
    out = np.empty((rows, len(columns)), dtype=kind)

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
