"""Vectors: a cell is a list of numbers of one length, which a network projects to the embedding's size.

Local row ids of a field: 0 missing, 1 the vector that is added to the projection of a present one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.kinds.base import Cells, Counted, Kind, register
from fieldwise.data.encode.portable import MISSING, Cell, CellEncoder, vector_numbers
from fieldwise.data.vector_column import VectorColumn
from fieldwise.errors import DataError, Row
from fieldwise.layout import FieldLayout
from fieldwise.schema import Vector
from fieldwise.schema.fields import LONGEST_VECTOR
from fieldwise.storage.scratch import MemoryBudget

PRESENT = 1
"""The row of a cell with a vector."""


@dataclass(frozen=True, kw_only=True)
class VectorLength:
    """The length of a field's vectors, and what they are multiplied by.

    Args:
        width: numbers of a vector.
        scale: 1 over the root mean square of the vectors' Euclidean lengths in the training rows.
    """

    width: int
    scale: float = 1.0
    kind: Literal["vector_length"] = "vector_length"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return 2


def vector_cell(encoder: CellEncoder, value: Any) -> Cell:
    """The row of a present vector, and its numbers; zeros for a missing one."""
    width = encoder.fitted.width
    if value is None or len(value) == 0:
        return [MISSING], [0.0] * width
    numbers = vector_numbers(value)
    if len(numbers) != width:
        raise ValueError(f"a list of {width} numbers is needed, as in training")
    return [1], numbers


@register(Vector)
class VectorKind(Kind[Vector]):
    """A list of numbers per cell.

    The counted values are, by chunk, the length of its vectors (`width`), how many there are (`n`)
    and the sum of their squares (`squares`).
    """

    forms = (VectorLength,)
    plain_types = frozenset({type(None), list, int, float})
    cell = staticmethod(vector_cell)

    def encodes_cell(self, value: object) -> bool:
        """Whether it is null or a list of numbers."""
        return value is None or (isinstance(value, list) and super().encodes_cell(value))

    def count(self, f: Vector, cells: pl.Series, missing: Sequence[str]) -> Counted:
        """Check a chunk's vectors, and sum their squares."""
        vectors, is_missing = read_vectors(f, cells)
        values = pl.DataFrame(schema={"width": pl.Int64, "n": pl.Int64, "squares": pl.Float64})
        if len(vectors):
            squares = float(np.einsum("nk,nk->", vectors, vectors, dtype=np.float64))
            row = [(vectors.shape[1], len(vectors), squares)]
            values = pl.DataFrame(row, schema=values.schema, orient="row")
        return Counted(len(is_missing), len(vectors), values)

    def fit(
        self, f: Vector, values: Iterator[pl.DataFrame], *, budget: MemoryBudget
    ) -> VectorLength:
        """The length that all vectors have, and their scale."""
        width = 0
        n = 0
        squares = 0.0
        for chunk in values:
            for chunk_width, chunk_n, chunk_squares in chunk.iter_rows():
                if width and chunk_width != width:
                    raise DataError(
                        f"vectors must have one length: column {f.column!r} (field {f.name!r}) has cells of {width} "
                        f"and of {chunk_width} numbers; make them with one model"
                    )
                width = chunk_width
                n += chunk_n
                squares += chunk_squares
        return VectorLength(width=width, scale=scale_of(n, squares))

    def column(
        self, f: Vector, fitted: VectorLength, cells: pl.Series, missing: Sequence[str]
    ) -> Cells:
        """The vectors, equal ones once."""
        vectors, is_missing = read_vectors(f, cells, width=fitted.width)
        ids = np.where(is_missing, np.int32(MISSING), np.int32(PRESENT))
        return Cells(ids, vectors=VectorColumn.of(vectors, is_missing))

    def layout(self, f: Vector, fitted: VectorLength, layout: FieldLayout) -> FieldLayout:
        """A vector, which is projected."""
        return replace(
            layout,
            kind="vector",
            width=fitted.width,
            scale=fitted.scale,
            projection=f.projection,
            normalise=f.normalise,
        )


def scale_of(n: int, squares: float) -> float:
    """1 over the root mean square of the lengths of n vectors with this sum of squares; 1 if all are zeros."""
    return math.sqrt(n / squares) if squares else 1.0


def read_vectors(
    f: Vector, cells: pl.Series, *, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of a column's cells that have one [P, K], float16 or float32, and which cells are missing [N].

    Null and the empty list are missing. Errors name the first cell that is no vector of `width`
    numbers, or of as many as the first one has.
    """
    what = f"column {f.column!r} (field {f.name!r})"
    if cells.dtype == pl.Null:
        return np.empty((0, width or 0), np.float32), np.ones(len(cells), bool)
    inner = cells.dtype.inner if isinstance(cells.dtype, (pl.List, pl.Array)) else None
    if not isinstance(inner, pl.DataType) or not (inner.is_numeric() or inner == pl.Null):
        raise DataError(
            f"a vector must be a list of numbers: {what} is of type {cells.dtype}; write lists of floats, as Parquet, "
            "Arrow, JSON Lines and frames hold them"
        )
    lists = cells.arr.to_list() if isinstance(cells.dtype, pl.Array) else cells
    lengths = lists.list.len().fill_null(0).to_numpy()
    is_missing = lengths == 0
    present = np.flatnonzero(~is_missing)
    if width is None:
        width = int(lengths[present[0]]) if len(present) else 0
    is_other = ~is_missing & (lengths != width)
    if is_other.any():
        row = int(is_other.argmax())
        raise DataError(
            f"vectors must have one length: {what} has vectors of {width} numbers, and one of {lengths[row]} in ",
            Row(row),
            "; make them with one model",
        )
    if width > LONGEST_VECTOR:
        raise DataError(
            f"a vector has at most {LONGEST_VECTOR:,} numbers: {what} has {width:,}; project it to fewer, for example "
            "by PCA"
        )
    dtype = pl.Float16 if inner == pl.Float16 else pl.Float32
    values = lists.list.explode(empty_as_null=False, keep_nulls=False).cast(dtype)
    matrix = values.fill_null(float("nan")).to_numpy().reshape(-1, width or 1)[:, :width]
    check_finite(matrix, what, lambda vector: Row(int(present[vector])))
    return matrix, is_missing


def check_finite(matrix: np.ndarray, what: str, place: Any) -> None:
    """Check that all numbers of vectors are finite; `place` is the fact of an error for a vector's number."""
    is_bad = ~np.isfinite(matrix).all(axis=1)
    if is_bad.any():
        vector = int(is_bad.argmax())
        number = matrix[vector][~np.isfinite(matrix[vector])][0]
        found = "NaN or null" if np.isnan(number) else str(number)
        raise DataError(
            f"the numbers of a vector must be finite: {what} holds {found} in ",
            place(vector),
            "; correct the vector, or leave the cell empty",
        )
