"""The cells of a column as numbers, and as codes of their values."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import text_numbers
from fieldwise.data.encode.numbers import marked_numbers
from fieldwise.schema.number_format import MISSING_MARKS


def numbers_of(cells: pl.Series, missing: Sequence[str] = MISSING_MARKS) -> pl.Series | None:
    """The numbers of a column, null where missing, or None if it has other cells.

    >>> numbers_of(pl.Series(["1.5", "NA", ""])).to_list()
    [1.5, None, None]
    """
    if cells.dtype.is_temporal():
        return cells.to_physical().cast(pl.Float64)
    if cells.dtype.is_numeric():
        numbers = cells.cast(pl.Float64).fill_nan(None)
    elif cells.dtype in (pl.String, pl.Categorical, pl.Enum):
        numbers, wrong = text_numbers(cells, None, missing)
        if wrong.any() or numbers.null_count() == len(numbers):
            return None
    else:
        return None
    marks = marked_numbers(tuple(missing))
    return numbers.replace(marks, None) if marks else numbers


def codes_of(cells: pl.Series) -> np.ndarray:
    """A number from 0 for each different cell [N], null being one of them."""
    codes = cells.rank("dense").fill_null(0).to_numpy().astype(np.int64)
    return codes if cells.null_count() else codes - 1
