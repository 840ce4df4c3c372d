"""The cells of a column as numbers, as times, and as codes of their values."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import text_numbers
from fieldwise.data.encode.numbers import marked_numbers
from fieldwise.data.infer.profile import looks_like_dates
from fieldwise.data.prepare.ordering import order_values, units_per_second
from fieldwise.errors import DataError
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT


def numbers_of(cells: pl.Series, missing: Sequence[str] = MISSING_MARKS) -> pl.Series | None:
    """The numbers of a column, null where missing, or None if it has other cells.

    >>> numbers_of(pl.Series(["1.5", "NA", ""])).to_list()
    [1.5, None, None]
    """
    if cells.dtype.is_temporal():
        numbers = cells.to_physical().cast(pl.Float64)
        return None if numbers.null_count() == len(numbers) else numbers
    if cells.dtype.is_numeric():
        numbers = cells.cast(pl.Float64).fill_nan(None)
    elif cells.dtype in (pl.String, pl.Categorical, pl.Enum):
        numbers, wrong = text_numbers(cells, None, missing)
        if wrong.any():
            return None
    else:
        return None
    marks = marked_numbers(tuple(missing))
    if marks:
        numbers = numbers.replace(marks, None)
    return None if numbers.null_count() == len(numbers) else numbers


def codes_of(cells: pl.Series) -> np.ndarray:
    """A number from 0 for each different cell [N], null being one of them."""
    codes = cells.rank("dense").fill_null(0).to_numpy().astype(np.int64)
    return codes if cells.null_count() else codes - 1


def seconds_of(cells: pl.Series) -> np.ndarray | None:
    """The seconds since 1970 of dates and times, or of numbers that count them [N], NaN where missing; or None.

    >>> seconds_of(pl.Series(["2026-01-02 00:00", None])).tolist()
    [1767312000.0, nan]
    """
    if cells.dtype in (pl.Date, pl.Datetime):
        return (cells.cast(pl.Datetime("us")).to_physical() / 1e6).fill_null(np.nan).to_numpy()
    present = cells.is_not_null().to_numpy()
    if cells.dtype == pl.String and looks_like_dates(cells):
        try:
            values = order_values(cells.drop_nulls().to_frame("t"), "t", "time", budget=NO_LIMIT)
        except DataError:
            return None
        seconds = np.full(len(cells), np.nan)
        seconds[present] = values / 1e6
        return seconds
    if not cells.dtype.is_numeric() or not present.any():
        return None
    numbers = cells.cast(pl.Float64).fill_null(np.nan).to_numpy()
    units = units_per_second(float(np.nanmedian(numbers)))
    return None if units is None else numbers / units
