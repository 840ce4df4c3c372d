"""The vectors of a table's rows: a matrix that is kept once, in memory or mapped, and its row for each of these.

Letters: N rows, T rows of the matrix, K numbers of a vector.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

NONE = -1
"""The row of the matrix for a cell without a vector."""
ROWS_AT_ONCE = 4_096


@dataclass(frozen=True, eq=False)
class VectorColumn:
    """The vectors of a field in N rows.

    Args:
        rows: [N] int32, the row of the matrix; -1 for a cell without a vector.
        matrix: [T, K] float16 or float32.

    >>> column = VectorColumn(np.array([1, -1], np.int32), np.array([[1, 2], [3, 4]], np.float16))
    >>> column.numbers(slice(0, 2)).tolist()
    [[3.0, 4.0], [0.0, 0.0]]
    """

    rows: np.ndarray
    matrix: np.ndarray

    @classmethod
    def of(cls, vectors: np.ndarray, is_missing: np.ndarray) -> "VectorColumn":
        """The vectors [P, K] of the cells that are not missing [N], equal ones once."""
        first_of_vector, vector_of_cell = _distinct_rows(vectors)
        rows = np.full(len(is_missing), NONE, np.int32)
        rows[~is_missing] = vector_of_cell
        return cls(rows, vectors if first_of_vector is None else vectors[first_of_vector])

    def numbers(self, rows: slice | Tensor) -> Tensor:
        """The vectors of some rows of the table, float32 [n, K]; zeros for a cell without one."""
        row_of_cell = self.rows[rows if isinstance(rows, slice) else rows.numpy()]
        is_missing = row_of_cell == NONE
        if is_missing.all():
            return torch.zeros(len(row_of_cell), self.matrix.shape[1])
        taken = torch.from_numpy(self.matrix.take(row_of_cell.clip(min=0), axis=0))
        # NumPy converts half precision four times as slowly
        numbers = taken.float()
        if is_missing.any():
            numbers[torch.from_numpy(is_missing)] = 0.0
        return numbers

    def take(self, rows: np.ndarray) -> "VectorColumn":
        """The vectors of some rows, by number, from the same matrix."""
        return replace(self, rows=self.rows[rows])

    def equals(self, rows: np.ndarray, other: "VectorColumn", other_rows: np.ndarray) -> np.ndarray:
        """Whether the vectors of some rows equal those of as many rows of another table [n]."""
        result = np.ones(len(rows), bool)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            block = slice(first, first + ROWS_AT_ONCE)
            numbers = self.numbers(torch.from_numpy(rows[block]))
            others = other.numbers(torch.from_numpy(other_rows[block]))
            result[block] = (numbers == others).all(1).numpy()
        return result

    @classmethod
    def joined(cls, columns: Iterable["VectorColumn"]) -> "VectorColumn":
        """The vectors of several tables' rows, one table after another; one matrix of all is not copied."""
        every = list(columns)
        first = every[0]
        if all(column.matrix is first.matrix for column in every):
            return replace(first, rows=np.concatenate([column.rows for column in every]))
        rows = []
        end = 0
        for column in every:
            rows.append(np.where(column.rows == NONE, NONE, column.rows + np.int32(end)))
            end += len(column.matrix)
        matrix = np.concatenate([column.matrix for column in every])
        return replace(first, rows=np.concatenate(rows), matrix=matrix)


def _distinct_rows(vectors: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """The first of each group of equal rows, None if no two are equal, and the group of each row [P], int32."""
    bits = np.ascontiguousarray(vectors).view(np.uint16 if vectors.itemsize == 2 else np.uint32)
    factors = np.random.default_rng(0).integers(1 << 63, size=bits.shape[1], dtype=np.uint64)
    hashes = np.empty(len(bits), np.uint64)
    starts = range(0, len(bits), ROWS_AT_ONCE)
    blocks = [slice(start, start + ROWS_AT_ONCE) for start in starts]
    for block in blocks:
        hashes[block] = bits[block].astype(np.uint64) @ (2 * factors + 1)
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    are_groups_equal = all((bits[block] == bits[first[group[block]]]).all() for block in blocks)
    if len(first) == len(bits) or not are_groups_equal:
        return None, np.arange(len(bits), dtype=np.int32)
    return first, group.astype(np.int32)
