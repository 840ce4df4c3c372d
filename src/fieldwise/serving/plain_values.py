"""Tables as values of requests and answers: text, numbers, booleans, null, and lists of these."""

import math
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl

from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.errors import DataError

__all__ = ["plain_table", "plain_value", "shown_table"]


def plain_table(frame: pl.DataFrame, *, first_row: int = 0) -> pl.DataFrame:
    """The table as models read it: times and decimals as text, durations as seconds, NaN as null.

    Args:
        frame: any table.
        first_row: for a slice, the number of its first row in the whole table, for error messages.

    Errors:
        DataError: a value is infinite, or a column has nested or binary values.

    >>> plain_table(pl.DataFrame({"since": [date(2026, 1, 2)], "price": [float("nan")]})).row(0)
    ('2026-01-02', None)
    """
    return pl.DataFrame([_plain(column, first_row) for column in frame.iter_columns()])


def plain_value(value: Any) -> Any:
    """One value of a database driver, converted as by `plain_table`; values of other types are returned unchanged.

    >>> plain_value([Decimal("1.50"), float("nan"), date(2026, 1, 2)])
    ['1.5', None, '2026-01-02']
    """
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    if isinstance(value, (float, Decimal)) and math.isnan(value):
        return None
    if isinstance(value, (date, time, timedelta, Decimal)):
        return _plain(pl.Series([value]), 0)[0]
    return str(value) if isinstance(value, UUID) else value


def shown_table(items: pl.DataFrame) -> pl.DataFrame:
    """The columns that answers can hold, as people read them; nested and binary columns are left out.

    Times, decimals and durations become texts, also within lists; NaN and infinite numbers become null.

    >>> items = pl.DataFrame({"since": [date(2026, 1, 2)], "rates": [[0.5, float("nan")]], "heads": [[[1.0], [2.0]]]})
    >>> shown_table(items).row(0, named=True)
    {'since': '2026-01-02', 'rates': [0.5, None]}
    """
    columns = (_shown(column) for column in items.iter_columns())
    return pl.DataFrame([column for column in columns if column is not None])


def _plain(column: pl.Series, first_row: int) -> pl.Series:
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
        return lists if _is_plain(kind.inner) else _where(column, as_list(lists, "|"))
    return column if _is_plain(kind) else as_text(column)


def _is_plain(kind: Any) -> bool:
    return bool(kind.is_integer()) or kind in (pl.String, pl.Boolean, pl.Null)


def _shown(column: pl.Series) -> pl.Series | None:
    """A column as people read it; None if answers cannot hold it."""
    kind: Any = column.dtype
    lists = isinstance(kind, (pl.List, pl.Array))
    one = kind.inner if lists else kind
    if one.is_nested() or one in (pl.Binary, pl.Object):
        return None
    if one == pl.Duration:
        words = [_words(cell) for cell in column.to_list()]
        return pl.Series(column.name, words, dtype=pl.List(pl.String) if lists else pl.String)
    if one.is_float() and lists:
        finite = pl.when(pl.element().is_finite()).then(pl.element())
        return column.cast(pl.List(one)).list.eval(finite)
    return _where(column, column, column.is_finite()) if one.is_float() else _plain(column, 0)


def _where(column: pl.Series, values: pl.Series, kept: pl.Series | None = None) -> pl.Series:
    """Values where `kept` is true (default: where the column is not null), else null."""
    kept = column.is_not_null() if kept is None else kept
    return pl.select(pl.when(kept).then(values).alias(column.name)).to_series()


def _words(cell: Any) -> Any:
    return [_words(one) for one in cell] if isinstance(cell, list) else None if cell is None else str(cell)
