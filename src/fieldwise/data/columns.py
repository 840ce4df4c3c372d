"""One column of a table in one of three plain forms: text, numbers, lists of text. Vectorized, types unified.

Ids read from CSV as 12, from pandas as 12.0 and from JSON as "12" are one value here: `12`.
"""

import numpy as np
import polars as pl

from fieldwise.errors import DataError

__all__ = ["as_list", "as_number", "as_text", "stable_hash"]


def as_text(column: pl.Series) -> pl.Series:
    """Values as text; null, NaN and empty text become null. Whole floats lose their `.0`; booleans are lower case.

    >>> as_text(pl.Series([1.0, 2.5, None])).to_list()
    ['1', '2.5', None]
    """
    kind = column.dtype
    if kind == pl.String:
        return column.replace("", None)
    if kind == pl.Boolean:
        return column.replace_strict({True: "true", False: "false"}, return_dtype=pl.String, default=None)
    if kind.is_float():
        whole = column.is_finite() & (column == column.round()) & (column.abs() < 2**53)
        text = column.fill_nan(None).cast(pl.String)
        return text.zip_with(~whole.fill_null(False), column.cast(pl.Int64, strict=False).cast(pl.String))
    if kind == pl.Null:
        return column.cast(pl.String)
    if kind.is_nested() or kind == pl.Object or kind == pl.Binary:
        raise DataError(
            f"a cell must hold one value: column {column.name!r} is of type {kind}; declare it a Bag or a Sequence, "
            "or turn it into text"
        )
    return column.cast(pl.String)


def as_number(column: pl.Series, what: str) -> pl.Series:
    """Values as float64, null where missing (null, NaN, empty text).

    Errors:
        DataError: text that is no number, or an infinity; names `what`, the row and the value.
    """
    if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
        raise DataError(f"a number is needed: {what} is of type {column.dtype}")
    if column.dtype.is_temporal():
        column = column.dt.epoch("s") if column.dtype in (pl.Date, pl.Datetime) else column.cast(pl.Int64)
    if column.dtype == pl.String:
        stripped = column.str.strip_chars().replace("", None)
        number = stripped.cast(pl.Float64, strict=False)
        bad = stripped.is_not_null() & number.is_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise DataError(
                f"numbers alone are allowed: {what} holds the text {column[row]!r} in row {row} (counting from 0); "
                "mend the cell, leave it empty, or declare the field Categorical"
            )
    else:
        number = column.cast(pl.Float64)
    number = number.fill_nan(None)
    infinite = number.is_infinite().fill_null(False)
    if infinite.any():
        row = int(infinite.arg_max() or 0)
        raise DataError(
            f"numbers must be finite: {what} holds {column[row]!r} in row {row} (counting from 0); mend the cell or leave "
            "it empty"
        )
    return number


def as_list(column: pl.Series, separator: str) -> pl.Series:
    """Cells as lists of text without null or empty values; an absent cell is an empty list."""
    if column.dtype in (pl.List, pl.Array):
        lists = column.cast(pl.List(column.dtype.inner))  # type: ignore[attr-defined]
        if column.dtype.inner.is_float():  # type: ignore[attr-defined]
            # One column, one type: pandas turns ids into floats where a value is missing.
            lists = lists.list.eval(pl.element().fill_nan(None))
            if lists.list.eval(pl.element() == pl.element().round()).list.all().all():
                lists = lists.cast(pl.List(pl.Int64))
        lists = lists.cast(pl.List(pl.String))
    else:
        lists = as_text(column).str.split(separator)
    cleaned = lists.list.eval(pl.element().str.strip_chars().replace("", None)).list.drop_nulls()
    return cleaned.fill_null(pl.lit([], dtype=pl.List(pl.String))) if cleaned.null_count() else cleaned


def stable_hash(texts: pl.Series, buckets: int) -> np.ndarray:
    """FNV-1a (64 bit) of each text's UTF-8 bytes, modulo `buckets`: equal on every machine and in every version.

    Shape:
        returns [N] int64 in [0, buckets).

    >>> stable_hash(pl.Series(["a"]), 2**31).item() == 0xAF63DC4C8601EC8C % 2**31
    True
    """
    encoded = [t.encode() for t in texts.to_list()]
    if not encoded:
        return np.zeros(0, dtype=np.int64)
    lengths = np.array([len(e) for e in encoded])
    width = max(int(lengths.max()), 1)
    letters = np.array(encoded, dtype=f"S{width}").view(np.uint8).reshape(len(encoded), width)
    value = np.full(len(encoded), 0xCBF29CE484222325, dtype=np.uint64)
    prime = np.uint64(0x100000001B3)
    for k in range(width):
        stepped = (value ^ letters[:, k].astype(np.uint64)) * prime
        value = np.where(lengths > k, stepped, value)
    return (value % np.uint64(buckets)).astype(np.int64)
