"""Cells that are vectors, as a matrix, with the checks of their lengths and numbers."""

import math
from typing import Any

import numpy as np
import polars as pl

from fieldwise.errors import DataError, Row
from fieldwise.schema.fields import LONGEST_VECTOR


def scale_of(n: int, squares: float) -> float:
    """1 over the root mean square of the lengths of n vectors with this sum of squares; 1 if all are zeros."""
    return math.sqrt(n / squares) if squares else 1.0


def read_vectors(
    cells: pl.Series, what: str, *, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of a column's cells that have one [P, K], float16 or float32, and which cells are missing [N].

    Null and the empty list are missing. Errors name the first cell that is no vector of `width`
    numbers, or of as many as the first one has.
    """
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
    check_width(width, what)
    dtype = pl.Float16 if inner == pl.Float16 else pl.Float32
    values = lists.list.explode(empty_as_null=False, keep_nulls=False).cast(dtype)
    matrix = values.fill_null(float("nan")).to_numpy().reshape(-1, width or 1)[:, :width]
    check_finite(matrix, what, lambda vector: Row(int(present[vector])))
    return matrix, is_missing


def check_width(width: int, what: str) -> None:
    """Check that vectors are not too long."""
    if width > LONGEST_VECTOR:
        raise DataError(
            f"a vector has at most {LONGEST_VECTOR:,} numbers: {what} has {width:,}; project it to fewer, for example "
            "by PCA"
        )


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
