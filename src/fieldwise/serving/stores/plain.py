"""Conversion of tables and database values to a request's plain values: text, numbers, booleans, null, lists."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl

from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.errors import DataError
from fieldwise.serving.faults import FAULTS
from fieldwise.serving.stores.base import UNREADABLE

__all__ = ["check_ids", "plain_table", "plain_value"]


def plain_table(frame: pl.DataFrame, *, first_row: int = 0) -> pl.DataFrame:
    """The table with plain values: times and decimals as text, durations as seconds, NaN as null.

    Args:
        frame: any table.
        first_row: for a slice, the number of its first row in the whole table, for error messages.

    Errors:
        DataError: a value is infinite, or a column has nested or binary values.

    >>> from datetime import date
    >>> plain_table(pl.DataFrame({"since": [date(2026, 1, 2)], "price": [float("nan")]})).row(0)
    ('2026-01-02', None)
    """
    return pl.DataFrame([_plain_column(column, first_row) for column in frame.iter_columns()])


def plain_value(value: Any) -> Any:
    """One value of a database driver, converted as by `plain_table`; values of other types are returned unchanged.

    A time or a decimal that a table cannot hold becomes `UNREADABLE`.

    >>> plain_value([Decimal("1.50"), float("nan"), Decimal("NaN"), Decimal("Infinity")])
    ['1.5', None, None, UNREADABLE]
    """
    if isinstance(value, (float, Decimal)) and math.isnan(value):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return UNREADABLE
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    if isinstance(value, (datetime, date, time, timedelta, Decimal)):
        try:
            return _plain_column(pl.Series("", [value]), 0)[0]
        except FAULTS:
            return UNREADABLE
    return str(value) if isinstance(value, UUID) else value


def check_ids(column: pl.Series) -> pl.Series:
    """A column of unique ids, as text.

    Errors:
        DataError: an id is missing or occurs twice.
    """
    texts = as_text(column)
    wrong = texts.is_duplicated() | texts.is_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"every id must be present and unique, found {texts[row]!r} in column {column.name!r} (row {row}, counting "
            "from 0), which is missing or occurs twice: give a table with one row per id, not a log"
        )
    return texts


def _plain_column(column: pl.Series, first_row: int) -> pl.Series:
    kind = column.dtype
    if kind.is_float():
        if column.is_infinite().any():
            row = int(column.is_infinite().arg_max() or 0)
            raise DataError(
                f"numbers must be finite: column {column.name!r} holds {column[row]!r} in row {first_row + row} "
                "(counting from 0); correct the cell or leave it empty"
            )
        return column.fill_nan(None)
    if kind == pl.Duration:
        return column.dt.total_seconds()
    if isinstance(kind, (pl.List, pl.Array)):
        lists = column.cast(pl.List(kind.inner))
        if not _is_plain(kind.inner):
            absent = lists.is_null()
            lists = as_list(lists, "|").to_frame().select(pl.when(~absent).then(pl.first())).to_series()
        return lists.rename(column.name)
    return column if _is_plain(kind) else as_text(column)


def _is_plain(kind: Any) -> bool:
    return bool(kind.is_integer()) or kind in (pl.String, pl.Boolean, pl.Null)
