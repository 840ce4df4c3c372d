"""A column that orders rows, as values that sort: numbers, dates, or text that holds either."""

import numpy as np
import polars as pl

from fieldwise.errors import DataError

__all__ = ["order_values"]


def order_values(frame: pl.DataFrame, name: str, what: str) -> np.ndarray:
    """Sortable values of column `name`, one a row (int64 or float64, [N]).

    Args:
        frame: the table.
        name: the column.
        what: what the column is for, as errors call it: `time`, `order`.

    Errors:
        DataError: no such column, an absent value, text that is neither a number nor a date.

    >>> order_values(pl.DataFrame({"day": ["2026-01-02", "2026-01-01"]}), "day", "time").argmin()
    np.int64(1)
    """
    if name not in frame.columns:
        raise DataError(f"the {what} column {name!r} must be in the table, found only: {', '.join(frame.columns)}")
    column = frame.get_column(name)
    if column.dtype.is_temporal():
        values = column.to_physical()
    elif column.dtype == pl.String:
        values = _from_text(column)
    elif column.dtype.is_numeric():
        values = column.fill_nan(None) if column.dtype.is_float() else column
    elif column.dtype == pl.Null:
        values = column.cast(pl.Float64)
    else:
        raise DataError(f"the {what} column must hold numbers or dates: column {name!r} is of type {column.dtype}")
    if values.null_count():
        row = int(values.is_null().arg_max() or 0)
        raise DataError(
            f"every row needs its {what} (a number or a date) to be ordered by: column {name!r} holds {column[row]!r} "
            f"in row {row} (counting from 0), {values.null_count()} of {len(values)} rows have none; fill them, or "
            "order by another column"
        )
    return values.to_numpy()


def _from_text(column: pl.Series) -> pl.Series:
    """Numbers where every present cell is one, else dates; what is neither becomes null."""
    text = column.str.strip_chars().replace("", None)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    if number.null_count() == text.null_count():
        return number
    try:
        moment = text.str.to_datetime(strict=False, time_unit="us").to_physical()
    except pl.exceptions.PolarsError:  # no date format fits the first cells
        return number
    return moment if moment.null_count() < number.null_count() else number
