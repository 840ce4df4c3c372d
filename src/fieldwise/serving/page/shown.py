"""Conversion of a catalogue for answers: every cell is text, a number, true, false, null or a flat list of these."""

from typing import Any

import polars as pl

from fieldwise.data.encode.columns import as_list, as_text

__all__ = ["shown_table"]


def shown_table(items: pl.DataFrame) -> pl.DataFrame:
    """The columns that answers can hold, converted; nested and binary columns are left out.

    Times, decimals and durations become texts, also within lists; NaN and infinite numbers become null.

    >>> from datetime import date
    >>> items = pl.DataFrame({"since": [date(2026, 1, 2)], "rates": [[0.5, float("nan")]], "heads": [[[1.0], [2.0]]]})
    >>> shown_table(items).row(0, named=True)
    {'since': '2026-01-02', 'rates': [0.5, None]}
    """
    return pl.DataFrame([_shown(column) for column in items.iter_columns() if _can_be_shown(column.dtype)])


def _can_be_shown(kind: Any) -> bool:
    one = kind.inner if isinstance(kind, (pl.List, pl.Array)) else kind
    return not one.is_nested() and one not in (pl.Binary, pl.Object)


def _shown(column: pl.Series) -> pl.Series:
    kind = column.dtype
    lists = isinstance(kind, (pl.List, pl.Array))
    one = kind.inner if isinstance(kind, (pl.List, pl.Array)) else kind
    if one == pl.Duration:
        words = [_words(cell) for cell in column.to_list()]
        return pl.Series(column.name, words, dtype=pl.List(pl.String) if lists else pl.String)
    if one.is_temporal() or one.is_decimal():
        return _where(column, as_list(column, "|")) if lists else as_text(column)
    if lists:
        column = column.cast(pl.List(one))
    if one.is_float():
        finite = pl.when(pl.element().is_finite()).then(pl.element())
        return column.list.eval(finite) if lists else _where(column, column, column.is_finite())
    return column


def _where(column: pl.Series, values: pl.Series, kept: pl.Series | None = None) -> pl.Series:
    """Values where `kept` is true (default: where the column is not null), else null."""
    kept = column.is_not_null() if kept is None else kept
    return pl.select(pl.when(kept).then(values).alias(column.name)).to_series()


def _words(cell: Any) -> Any:
    return [_words(one) for one in cell] if isinstance(cell, list) else None if cell is None else str(cell)
