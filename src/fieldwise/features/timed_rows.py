"""Rows with times, and their columns as numbers: what features are computed from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.prepare.ordering import SECOND_OF_1980, order_values, units_per_second
from fieldwise.data.prepare.rows_by_value import rank_texts
from fieldwise.data.read.mapped_rows import join_rows
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.errors import ConfigError, DataError, Row
from fieldwise.features.known_events import MISSING
from fieldwise.storage.scratch import MemoryBudget

MICROSECOND = 10**6
DAY_US = 86_400 * MICROSECOND
PER_SECOND_OF_DAYS = 1 / 86_400
CHUNK_ROWS = 1 << 18
"""Arrays of a chunk are small enough for the allocator to use them again: new pages cost as much as the sums."""
Decode = Callable[[np.ndarray], pl.Series]
"""A column of a chunk of its numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedRows:
    """Rows and their times.

    Args:
        frame: the rows [N].
        times: microseconds since 1970 [N] int64.
        time_format: format of times in text.
        where: what the rows are called in errors: the log, or a table's name.
        labels: targets [N] of labels by their names and columns, in place of the columns; of a
            label with trials the number of positive ones.
        trials: the number of trials [N] of such a label, by its name and column.
    """

    frame: pl.DataFrame
    times: np.ndarray
    time_format: str | None = None
    where: str = "the log"
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    trials: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        frame: pl.DataFrame,
        time: str,
        time_format: str | None,
        *,
        where: str = "the log",
        labels: Mapping[str, np.ndarray] | None = None,
        trials: Mapping[str, np.ndarray] | None = None,
        budget: MemoryBudget,
    ) -> Self:
        """The rows of a table with a column of times."""
        if time not in frame.columns:
            raise ConfigError(
                f"features need a column of times: {where} has no {time!r}; {nearest(time, frame.columns)}"
            )
        times = _microseconds(frame, time, time_format, budget=in_chunks(budget))
        return cls(
            frame=frame,
            times=times,
            time_format=time_format,
            where=where,
            labels=labels or {},
            trials=trials or {},
        )

    def check(self, column: str, what: str) -> None:
        """Check that the rows have a column of single values; errors say `what` it is of which feature."""
        if column in self.labels:
            return
        if column not in self.frame.columns:
            hint = nearest(column, {*self.frame.columns, *self.labels})
            raise ConfigError(f"{what} must be in {self.where}: {column!r} is not; {hint}")
        dtype = self.frame.schema[column]
        if dtype.is_nested() or dtype in (pl.Object, pl.Binary):
            raise DataError(
                f"{what} needs one value in each cell: column {column!r} of {self.where} is of type {dtype}; choose "
                "another column"
            )

    def number(self, column: str, what: str, *, budget: MemoryBudget) -> np.ndarray:
        """A column as numbers [N] float64, NaN where missing."""
        if column in self.labels:
            return self.labels[column].astype(np.float64)
        cells = self.frame.get_column(column)
        if not (cells.dtype.is_numeric() or cells.dtype in (pl.Boolean, pl.String)):
            raise DataError(
                f"{what} needs numbers: column {column!r} of {self.where} is of type {cells.dtype}; count it, take "
                "its last value, or convert it"
            )
        return as_numbers(self.frame, column, f"{what}, column {column!r},", budget=budget)

    def code(self, column: str, *, budget: MemoryBudget) -> tuple[np.ndarray, Decode]:
        """A column as values that sort and compare as its own [N], and the way back.

        They are the numbers of a column of numbers, `MISSING` or NaN where missing, else the texts'
        ranks.
        """
        if column in self.labels:
            return self.labels[column].astype(np.float64), pl.Series
        cells = self.frame.get_column(column)
        dtype = cells.dtype
        if dtype.is_float():
            floats = budget.fill(
                len(cells),
                np.float64,
                lambda chunk: cells[chunk].cast(pl.Float64).fill_null(np.nan).to_numpy(),
            )
            return floats, lambda values: pl.Series(values).fill_nan(None).cast(dtype)
        if is_whole(dtype):
            whole = whole_numbers(cells, budget=budget)
            return whole, lambda values: _with_nulls(values).cast(dtype)
        ranks, counts = rank_texts(cells, budget=budget)
        row_of_rank = np.zeros(len(counts), np.int64)
        codes = budget.empty(len(cells), np.int64)
        for chunk in budget.chunk_slices(len(cells)):
            row_of_rank[ranks[chunk]] = np.arange(chunk.start, chunk.stop)
            codes[chunk] = np.where(ranks[chunk] > 0, ranks[chunk], MISSING)
        values = cells.gather(row_of_rank)
        return codes, lambda ranks: values.gather(_with_nulls(ranks))

    def known(self, column: str, what: str, *, budget: MemoryBudget) -> np.ndarray:
        """A column of known times [N], in microseconds, none of which lies before the row's time."""
        known = _microseconds(self.frame, column, self.time_format, budget=budget)
        for chunk in budget.chunk_slices(len(known)):
            is_early = known[chunk] < self.times[chunk]
            if is_early.any():
                row = chunk.start + int(is_early.argmax())
                raise DataError(
                    f"nothing is known before it happens: {what} has the known time {self.frame[column][row]!s} in ",
                    Row(row),
                    f" of {self.where}, before its event time; correct the column {column!r}",
                )
        return known


def as_numbers(frame: pl.DataFrame, column: str, what: str, *, budget: MemoryBudget) -> np.ndarray:
    """A column as numbers [N] float64, NaN where missing; errors name it by `what`."""
    cells = frame.get_column(column)

    def numbers(chunk: slice) -> np.ndarray:
        with counting_from(chunk.start):
            return as_number(cells[chunk], what, remedy="take its last value").to_numpy()

    return budget.fill(len(cells), np.float64, numbers)


def in_chunks(budget: MemoryBudget) -> MemoryBudget:
    """A budget with no larger chunks than features are computed by."""
    chunk_rows = min(budget.chunk_rows or CHUNK_ROWS, CHUNK_ROWS)
    return replace(budget, chunk_rows=chunk_rows)


def is_whole(dtype: pl.DataType) -> bool:
    """Whether a column's cells are 64-bit whole numbers."""
    return dtype == pl.Boolean or (dtype.is_integer() and dtype not in (pl.UInt64, pl.Int128))


def whole_numbers(cells: pl.Series, *, budget: MemoryBudget) -> np.ndarray:
    """The numbers of a column for which `is_whole` [N] int64, `MISSING` where missing."""
    return budget.fill(
        len(cells),
        np.int64,
        lambda chunk: cells[chunk].cast(pl.Int64).fill_null(MISSING).to_numpy(),
    )


def shared_codes(
    column: str, rows: TimedRows, events: TimedRows, *, budget: MemoryBudget
) -> tuple[np.ndarray, np.ndarray]:
    """A key's column of rows and of events as whole numbers, equal where the values are, `MISSING` where missing."""
    of_rows = rows.frame.get_column(column)
    of_events = events.frame.get_column(column)
    if is_whole(of_rows.dtype) and is_whole(of_events.dtype):
        codes = whole_numbers(of_rows, budget=budget)
        if rows is events:
            return codes, codes
        return codes, whole_numbers(of_events, budget=budget)
    if rows is events:
        codes = _codes_of_texts([of_rows], budget=budget)
        return codes, codes
    # as text, the cells of tables of other types are equal
    codes = _codes_of_texts([of_rows, of_events], budget=budget)
    return codes[: len(of_rows)], codes[len(of_rows) :]


def _codes_of_texts(columns: Sequence[pl.Series], *, budget: MemoryBudget) -> np.ndarray:
    """The ranks of the texts of columns, one after another [N] int64, `MISSING` where missing."""

    def texts() -> Iterator[pl.DataFrame]:
        for cells in columns:
            for chunk in budget.chunk_slices(len(cells)):
                yield as_text(cells[chunk]).to_frame("key")

    ranks, _ = rank_texts(join_rows(texts(), budget=budget).to_series(), budget=budget)
    return budget.fill(
        len(ranks), np.int64, lambda chunk: np.where(ranks[chunk] > 0, ranks[chunk], MISSING)
    )


def _with_nulls(values: np.ndarray) -> pl.Series:
    numbers = pl.Series(values)
    return numbers.set(numbers == MISSING, None)


def _microseconds(
    frame: pl.DataFrame, column: str, form: str | None, *, budget: MemoryBudget
) -> np.ndarray:
    """A column of dates, times or numbers since 1970 as microseconds [N] int64."""
    values = order_values(frame, column, "time", form, budget=budget)
    per_second = _units_per_second(frame.schema[column], column, values)

    def converted(chunk: slice) -> np.ndarray:
        if per_second == PER_SECOND_OF_DAYS:
            return values[chunk].astype(np.int64) * DAY_US
        if per_second > MICROSECOND:
            return values[chunk].astype(np.int64) // (int(per_second) // MICROSECOND)
        times_in_microseconds = values[chunk] * (MICROSECOND // int(per_second))
        return np.round(times_in_microseconds).astype(np.int64, copy=False)

    return budget.fill(frame.height, np.int64, converted)


def _units_per_second(dtype: pl.DataType, column: str, values: np.ndarray) -> float:
    """How many units of a column's sortable values a second has."""
    if dtype == pl.Date:
        return PER_SECOND_OF_DAYS
    if isinstance(dtype, pl.Datetime):
        return {"ms": 10**3, "us": 10**6, "ns": 10**9}[dtype.time_unit]
    if dtype == pl.String and values.dtype == np.int64:
        return MICROSECOND
    latest = float(values.max()) if len(values) else SECOND_OF_1980
    per_second = units_per_second(latest)
    if per_second is not None:
        return per_second
    raise DataError(
        "features need dates, or seconds, milliseconds, microseconds or nanoseconds since 1970: the time column "
        f"{column!r} is of type {dtype} and ends at {latest:g}; convert it"
    )
