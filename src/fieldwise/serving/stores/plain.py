"""Tables and database values as the plain values that requests have: text, numbers, booleans, null, lists of these."""

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
        first_row: number of its first row in the table that it is a slice of, for errors.

    Errors:
        DataError: an infinity, or a column of nested or binary values.

    >>> from datetime import date
    >>> plain_table(pl.DataFrame({"since": [date(2026, 1, 2)], "price": [float("nan")]})).row(0)
    ('2026-01-02', None)
    """
    return pl.DataFrame([_plain_column(column, first_row) for column in frame.iter_columns()])


def plain_value(value: Any) -> Any:
    """One value of a database's driver, as `plain_table` has it; what is not plain stays as it is.

    A time or a decimal that no table could hold is `UNREADABLE`.

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
    """A column that names each row once, as texts.

    Errors:
        DataError: an id twice, or none.
    """
    texts = as_text(column)
    wrong = texts.is_duplicated() | texts.is_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"an id has one row, but {texts[row]!r} in column {column.name!r} stands twice or is no name (row {row}, "
            "counting from 0): give a table with a row each, not a log"
        )
    return texts


def _plain_column(column: pl.Series, first_row: int) -> pl.Series:
    kind = column.dtype
    if kind.is_float():
        if column.is_infinite().any():
            row = int(column.is_infinite().arg_max() or 0)
            raise DataError(
                f"numbers must be finite: column {column.name!r} holds {column[row]!r} in row {first_row + row} "
                "(counting from 0); mend the cell or leave it empty"
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
