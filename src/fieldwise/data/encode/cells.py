"""Encoding a field's column as row ids and numbers, with its fitted part."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.coded import coded
from fieldwise.data.encode.columns import as_list, as_number, as_text
from fieldwise.data.encode.fitted import MISSING, Bins, Fitted, Hashing, Scaling, Vocabulary
from fieldwise.schema import Field
from fieldwise.schema.fields import ListField

__all__ = ["Cells", "bag_cells", "number_cells", "single_cells", "with_nan"]

INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)


@dataclass(frozen=True, eq=False)
class Cells:
    """A field's encoded column.

    Shape:
        ids: [N] int32, local row ids; for a bag [M], those of all cells, one cell after another; an empty cell has the
            single id `missing`.
        numbers: [N] float32, only for encoding `value`.
        lengths: [N] int64, only for a bag: number of ids per cell, at least 1.
    """

    ids: np.ndarray
    numbers: np.ndarray | None = None
    lengths: np.ndarray | None = None


def single_cells(f: Field, fitted: Fitted, column: pl.Series, first_row: int = 0) -> Cells:
    """Encode a column with one value per cell; errors count its rows from `first_row`.

    Errors:
        DataError: a numeric cell is not a number.
    """
    if isinstance(fitted, (Scaling, Bins)):
        what = f"column {f.column!r} (field {f.name!r})"
        form = f.number_format if f.cell == "number" else None
        return number_cells(f, fitted, with_nan(as_number(column, what, first_row=first_row, form=form)))
    if column.dtype == pl.String:
        return Cells(fitted.ids(as_text(column)))
    if isinstance(fitted, Vocabulary) and column.dtype in INTEGERS:
        return Cells(fitted.ids_of_integers(column))
    cells = coded(column)
    return Cells(cells.look_up(fitted.ids(cells.texts), MISSING))


def with_nan(number: pl.Series) -> np.ndarray:
    """The result of `as_number`, with NaN for null."""
    return number.fill_null(float("nan")).to_numpy()


def number_cells(f: Field, fitted: Scaling | Bins, given: np.ndarray) -> Cells:
    """Encode numbers, with NaN for missing ones."""
    if isinstance(fitted, Bins):
        return Cells(fitted.ids(given))
    absent = np.isnan(given)
    fill = 1.0 if f.cell == "number" and f.missing == "vector" else 0.0
    scaled = np.where(absent, fill, fitted.values(given)).astype(np.float32)
    return Cells(np.where(absent, np.int32(MISSING), np.int32(1)), numbers=scaled)


def bag_cells(f: ListField, fitted: Vocabulary | Hashing, column: pl.Series) -> Cells:
    """Encode a bag or sequence column; a sequence keeps its newest `max_length` values, in order."""
    known = _distinct_ids(f, fitted, column)
    lists = as_list(column, f.separator) if known is None else column
    lists = lists if f.max_length is None else lists.list.tail(f.max_length)
    lengths = np.maximum(lists.list.len().fill_null(0).to_numpy().astype(np.int64), 1)
    flat = lists.list.explode(empty_as_null=True)
    if known is None:
        return Cells(fitted.ids(flat), lengths=lengths)
    ids = flat.to_frame("value").join(known, on="value", how="left", maintain_order="left").get_column("id")
    return Cells(ids.fill_null(MISSING).to_numpy(), lengths=lengths)


def _distinct_ids(f: ListField, fitted: Vocabulary | Hashing, column: pl.Series) -> pl.DataFrame | None:
    """The ids of the distinct values of a column of lists, since histories often repeat items and text is slow.

    None if cells are text or nested, or if a value is missing or blank, which only `as_list` removes.
    """
    if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
        return None  # `as_list` refuses nested values
    value = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
    texts = as_list(value.to_frame().select(pl.concat_list("value")).to_series(), f.separator)
    if (texts.list.len() == 0).any():
        return None
    return pl.DataFrame([value, pl.Series("id", fitted.ids(texts.list.first()))])
