"""Ordering rows by a column of numbers, dates, or text with either; the latest row of each id."""

import numpy as np
import polars as pl

from fieldwise.data.read.lines import counting_from
from fieldwise.data.read.moments import READ_FORMATS, check_format, read_moments
from fieldwise.errors import DataError
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["latest_rows", "order_numbers", "order_values"]


def order_values(frame: pl.DataFrame, name: str, what: str, form: str | None = None) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]).

    Args:
        frame: the table.
        name: the column.
        what: the column's purpose in error messages: `time`, `order`.
        form: format of text with dates, such as `%d.%m.%Y`; the supported formats are tried if omitted.

    Errors:
        DataError: no such column, a missing value, text that is neither a number nor a date, dates with ambiguous day
            and month, times with and without an offset from UTC.

    >>> order_values(pl.DataFrame({"day": ["2026-01-02", "2026-01-01"]}), "day", "time").argmin()
    np.int64(1)
    """
    if name not in frame.columns:
        raise DataError(f"the {what} column {name!r} must be in the table, found only: {', '.join(frame.columns)}")
    column = frame.get_column(name)
    if column.dtype.is_temporal():
        values = column.to_physical()
    elif column.dtype == pl.String:
        values = _from_text(column, what, form)
    elif column.dtype.is_numeric():
        values = column.fill_nan(None) if column.dtype.is_float() else column
    elif column.dtype == pl.Null:
        values = column.cast(pl.Float64)
    else:
        raise DataError(f"the {what} column must hold numbers or dates: column {name!r} is of type {column.dtype}")
    if values.null_count():
        row = int(values.is_null().arg_max() or 0)
        if column.dtype == pl.String and (column[row] or "").strip():
            raise DataError(_unread(column, values, row, what, form))
        raise DataError(
            f"every row needs its {what} (a number or a date) for ordering: column {name!r} holds {column[row]!r} "
            f"in row {row} (counting from 0), {values.null_count()} of {len(values)} rows have none; fill them, or "
            "order by another column"
        )
    return values.to_numpy()


def order_numbers(
    frame: pl.DataFrame, name: str, what: str, form: str | None = None, *, scratch: Scratch = IN_MEMORY
) -> np.ndarray:
    """`order_values` of a long table, piece by piece; text without a format at once, since all cells decide it.

    Args:
        frame: the table.
        name: the column.
        what: the column's purpose in error messages.
        form: format of text with dates.
        scratch: where the values lie, and how many rows are processed at once.
    """
    at_once = name not in frame.columns or (frame.schema[name] == pl.String and form is None)
    if at_once or not scratch.several(frame.height):
        return order_values(frame, name, what, form)
    values = scratch.empty(frame.height, order_values(frame.head(1), name, what, form).dtype.type)
    for at in scratch.pieces(frame.height):
        with counting_from(at.start):
            values[at] = order_values(frame[at], name, what, form)
    return values


def latest_rows(log: pl.DataFrame, column: str, time: str | None, form: str | None = None) -> pl.DataFrame:
    """The latest row of each value of a column, in the order of the values, without rows that have none.

    Args:
        log: the rows.
        column: an id, such as the user's.
        time: the column that orders rows; if it is omitted or missing, the last row of the table counts, as for
            equal times.
        form: format of the times, as for `order_values`.

    Errors:
        DataError: as for `order_values`.

    >>> log = pl.DataFrame({"day": [2, 1, 1], "user": ["b", "b", "a"], "device": ["tv", "phone", "pc"]})
    >>> latest_rows(log, "user", "day")["device"].to_list()
    ['pc', 'tv']
    """
    if time is not None and time in log.columns:
        log = log[order_values(log, time, "time", form).argsort(kind="stable")]
    return log.drop_nulls(column).unique(column, keep="last").sort(column)


def _from_text(column: pl.Series, what: str, form: str | None) -> pl.Series:
    """Numbers if every present cell is one, else times; a cell that is neither becomes null."""
    text = column.str.strip_chars().replace("", None)
    if form is not None:
        return check_format(text, form)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    if number.null_count() == text.null_count():
        return number
    found = read_moments(text)
    if found.other is not None:
        first, second = found.other
        raise DataError(
            f"day and month are ambiguous: the {what} column {column.name!r} holds {text.drop_nulls()[0]!r}, and "
            f"every cell can be read as {first!r} and as {second!r}; set the schema's time_format"
        )
    if found.mixed:
        raise DataError(
            f"either all times have an offset from UTC or none: in the {what} column {column.name!r} {found.mixed}; "
            "write the offset into every cell, or convert all to one time zone and omit it"
        )
    return found.values if found.values.null_count() < number.null_count() else number


def _unread(column: pl.Series, values: pl.Series, row: int, what: str, form: str | None) -> str:
    """The sentence for a cell that is neither a number nor a date."""
    many = int((values.is_null() & (column.str.strip_chars() != "")).sum())
    if form is not None:
        rule, fix = f"the schema's time_format {form!r} must fit every cell", "fix the cell or the format"
    else:
        rule = "every row needs a number or a date for ordering"
        fix = f"fix it, or give the schema a time_format; formats read without one: {READ_FORMATS}"
    return (
        f"{rule}: the {what} column {column.name!r} holds {column[row]!r} in row {row} (counting from 0), {many} of "
        f"{len(values)} rows are like it; {fix}"
    )
