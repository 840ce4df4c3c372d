"""Columns as codes of their distinct texts, on which later steps work.

Letters: N rows, K different texts.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text

__all__ = ["Coded", "code_texts", "coded"]

LARGEST_TABLE = 1 << 22  # entries of a lookup table that is larger than the rows


@dataclass(frozen=True, eq=False)
class Coded:
    """A coded column: cell n holds `texts[codes[n]]`, or nothing if `codes[n]` is K.

    Shape:
        codes: [N] integers in [0, K].
        texts: [K] String, distinct, in no order; a text may be unused.
    """

    codes: np.ndarray
    texts: pl.Series

    def counts(self) -> np.ndarray:
        """The number of cells with each text [K], int64."""
        return np.bincount(self.codes, minlength=len(self.texts) + 1)[: len(self.texts)]

    def look_up(self, of_text: np.ndarray, absent: int) -> np.ndarray:
        """The value of `of_text` [K] for each cell's text, and `absent` for a missing cell: [N], of its type."""
        return np.append(of_text, of_text.dtype.type(absent)).take(self.codes)


def coded(column: pl.Series) -> Coded:
    """A column's cells, coded by their texts (see `as_text`), which are only made once per distinct value.

    Errors:
        DataError: a column of lists or other nested values.

    >>> cells = coded(pl.Series([7, None, 8, 7]))
    >>> cells.texts.to_list(), cells.codes.tolist()
    (['7', '8'], [0, 2, 1, 0])
    """
    kind = column.dtype
    as_text(column.clear())  # raises if cells are not single values
    if kind.is_integer() and len(column) > column.null_count():
        low, high = (int(edge) for edge in (column.min(), column.max()))  # type: ignore[arg-type]
        # A lookup table is faster than hashing, up to about eight times the size of the rows.
        longest = max(len(column), min(8 * len(column), LARGEST_TABLE), 1024)
        if high - low <= longest and low >= -(2**63) and high < 2**63:
            return _code_near_integers(column, low, high)
    if kind.is_integer() or kind.is_float() or kind.is_temporal():
        return _code_by_value(column)
    return code_texts(as_text(column))


def code_texts(text: pl.Series) -> Coded:
    """A coded String column; null is missing, and texts are neither stripped nor changed to null."""
    # Separate categories: the values of one column are never mixed with those of another.
    code = text.cast(pl.Categorical(pl.Categories.random())).to_physical()
    count = 0 if code.null_count() == len(code) else int(code.max()) + 1  # type: ignore[arg-type]
    codes = code.fill_null(count).to_numpy()
    holder = np.empty(count + 1, dtype=np.uint32)
    holder[codes] = np.arange(len(codes), dtype=np.uint32)  # the index of some cell with each text
    return Coded(codes, text.gather(holder[:count]))


def _code_near_integers(column: pl.Series, low: int, high: int) -> Coded:
    place = (column.cast(pl.Int64) - low).fill_null(high - low + 1).to_numpy()
    found = np.bincount(place, minlength=high - low + 2)[:-1] > 0
    value = np.flatnonzero(found)
    code = np.append(np.cumsum(found, dtype=np.int32) - 1, np.int32(len(value)))
    return Coded(code.take(place), pl.Series(value + low).cast(pl.String))


def _code_by_value(column: pl.Series) -> Coded:
    """Each distinct value becomes text once; values with the same text (such as 0.0 and -0.0) share its code."""
    if column.dtype.is_float():
        column = column.fill_nan(None)  # missing, and not found by a join
    value = column.unique().rename("value")
    inner = code_texts(as_text(value))
    index = pl.DataFrame([value, pl.Series("code", inner.codes)])
    cells = column.to_frame("value").join(index, on="value", how="left", maintain_order="left", nulls_equal=True)
    return Coded(cells.get_column("code").to_numpy(), inner.texts)
