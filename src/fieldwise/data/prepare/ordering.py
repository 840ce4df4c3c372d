"""Rows in the order of a column of numbers or times, also of text."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import missing_as_null
from fieldwise.data.encode.numbers import is_mark, marked_numbers, without_marked_numbers
from fieldwise.data.prepare.timestamps import (
    AMBIGUOUS_FAMILIES,
    OFFSET,
    READ_FORMATS,
    UNAMBIGUOUS,
    parse_timestamps,
    parse_with_format,
    read_times,
)
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.errors import DataError, Row
from fieldwise.schema import Role, Schema
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

NUMBER_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Units of numbers that are times since 1970, with how many make a second."""
_LEAST_SHARE_OF_TIMES = 0.99
SECOND_OF_1980 = 315_532_800
SECOND_OF_2100 = 4_102_444_800


def units_per_second(number: float) -> int | None:
    """How many units of a time since 1970 make a second, by its magnitude; None if it is none from 1980 to 2100.

    >>> units_per_second(1_700_000_000_000)
    1000
    """
    for per_second in NUMBER_UNITS.values():
        if SECOND_OF_1980 * per_second <= number < SECOND_OF_2100 * per_second:
            return per_second
    return None


def mixed_units(values: np.ndarray, *, budget: MemoryBudget) -> tuple[str, Row] | None:
    """How many of some numbers are times since 1970 in which unit, and the first row in the rarest one.

    None if they are not in several units, such as seconds and milliseconds.

    A unit is told by magnitude: numbers that are years from 1980 to 2100 in it. Numbers of which
    more than one in a hundred is no time in any unit have none; fewer may be marks of missing
    times, such as 0.

    >>> times = np.array([1_700_000_000, 1_700_000_060_000, 1_700_000_120])
    >>> mixed_units(times, budget=MemoryBudget())[0]
    '1 of 3 rows is in milliseconds since 1970 and 2 in seconds, the first of the former is '
    """
    counts = dict.fromkeys(NUMBER_UNITS, 0)
    first_rows: dict[str, int] = {}
    for chunk in budget.chunk_slices(len(values)):
        seconds = values[chunk].astype(np.float64)
        for unit, per_second in NUMBER_UNITS.items():
            is_late = seconds >= SECOND_OF_1980 * per_second
            is_early = seconds < SECOND_OF_2100 * per_second
            in_unit = is_late & is_early
            if in_unit.any():
                counts[unit] += int(in_unit.sum())
                first_rows.setdefault(unit, chunk.start + int(in_unit.argmax()))
    if len(first_rows) < 2 or sum(counts.values()) < _LEAST_SHARE_OF_TIMES * len(values):
        return None
    rarest, *others = sorted(first_rows, key=lambda unit: counts[unit])
    rest = ", ".join(f"{counts[unit]:,} in {unit}" for unit in others)
    verb = "is" if counts[rarest] == 1 else "are"
    units = (
        f"{counts[rarest]:,} of {len(values):,} rows {verb} in {rarest} since 1970 and {rest}, "
        "the first of the former is "
    )
    return units, Row(first_rows[rarest])


def check_column(frame: pl.DataFrame, name: str, what: str) -> None:
    """Check that a table has a column."""
    if name not in frame.columns:
        raise DataError(
            f"{what} {name!r} must be in the table, found only: {', '.join(frame.columns)}"
        )


def order_values(
    frame: pl.DataFrame,
    name: str,
    what: str,
    form: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]), all of one unit; see `_order_values`."""
    values = _order_values(frame, name, what, form, missing, budget=budget)
    dtype = frame.schema[name]
    # dates are int64
    are_numbers = dtype.is_numeric() or (dtype == pl.String and values.dtype == np.float64)
    mixed = mixed_units(values, budget=budget) if are_numbers else None
    if mixed is not None:
        units, row = mixed
        raise DataError(
            f"all times of a column must have one unit: in the {what} column {name!r} {units}",
            row,
            "; convert them to one unit",
        )
    return values


def times_of(frame: pl.DataFrame, schema: Schema) -> np.ndarray | None:
    """Sortable times of rows; None if the schema has no time or the table lacks it."""
    time = schema.time
    if time is None or time not in frame.columns:
        return None
    return order_values(frame, time, "time", schema.time_format, schema.missing, budget=NO_LIMIT)


def _order_values(
    frame: pl.DataFrame,
    name: str,
    what: str,
    form: str | None,
    missing: Sequence[str],
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]); errors name the purpose `what`: `time`, `order`.

    `form` is the format of text with dates; without one the supported formats are tried on all
    cells, which decide together. A cell that holds a mark of a missing value has none.
    """
    check_column(frame, name, f"the {what} column")
    column = frame.get_column(name)
    if budget.several(frame.height):
        decide_together = column.dtype == pl.String and form is None
        if not decide_together:
            return _values_by_chunks(frame, name, what, form, missing, budget=budget)
        if not marked_numbers(tuple(missing)):
            decided = _decided_by_all(column, budget=budget)
            if decided is not None:
                return decided

    values = _values_of(column, what, form, missing)
    if values.null_count():
        _refuse_missing(column, values, what, form, missing)
    return values.to_numpy()


def _values_by_chunks(
    frame: pl.DataFrame,
    name: str,
    what: str,
    form: str | None,
    missing: Sequence[str],
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """`_order_values` of each chunk; errors count the table's rows."""
    first = _order_values(frame.head(1), name, what, form, missing, budget=budget)
    values = budget.empty(frame.height, first.dtype.type)
    for chunk in budget.chunk_slices(frame.height):
        with counting_from(chunk.start):
            values[chunk] = _order_values(frame[chunk], name, what, form, missing, budget=budget)
    return values


def _values_of(column: pl.Series, what: str, form: str | None, missing: Sequence[str]) -> pl.Series:
    """Sortable values of a column, null for a cell without one."""
    if column.dtype.is_temporal():
        return column.to_physical()
    if column.dtype == pl.String:
        values = _from_text(column, what, form)
        if values.dtype == pl.Float64:
            return without_marked_numbers(values, missing)
        return values
    if column.dtype.is_numeric():
        numbers = column.fill_nan(None) if column.dtype.is_float() else column
        return without_marked_numbers(numbers, missing)
    if column.dtype == pl.Null:
        return column.cast(pl.Float64)
    raise DataError(
        f"the {what} column must hold numbers or dates: column {column.name!r} is of type {column.dtype}"
    )


def _refuse_missing(
    column: pl.Series, values: pl.Series, what: str, form: str | None, missing: Sequence[str]
) -> NoReturn:
    """Raise, since some cells have no value: they are empty, or not as the format says."""
    row = int(values.is_null().arg_max() or 0)
    is_empty = values.is_null()
    if column.dtype == pl.String:
        is_empty = is_mark(column, missing) | (column.str.strip_chars() == "").fill_null(True)
    if is_empty[row]:
        raise DataError(
            f"every row needs its {what} (a number or a date) for ordering: column {column.name!r} holds "
            f"{column[row]!r} in ",
            Row(row),
            f", {values.null_count()} of {len(values)} rows have none; fill them, or order by another column",
        )
    if form is None:
        rule = "every row needs a number or a date for ordering"
        remedy = (
            f"fix it, or give the schema a time_format; formats read without one: {READ_FORMATS}"
        )
    else:
        rule = f"the schema's time_format {form!r} must fit every cell"
        remedy = "fix the cell or the format"
    unreadable = int((values.is_null() & ~is_empty).sum())
    raise DataError(
        f"{rule}: the {what} column {column.name!r} holds {column[row]!r} in ",
        Row(row),
        f", {unreadable} of {len(values)} rows are like it; {remedy}",
    )


def latest_rows(log: pl.DataFrame, column: str, schemas: Sequence[Schema]) -> pl.DataFrame:
    """The latest row of each value of a column, in the order of the values, without rows that have none.

    It is the latest by the first schema's time that the log has; without a time, and for equal
    times, the last row of the table.
    """
    return _last_rows(_in_order(log, schemas), column)


def latest_values(
    log: pl.DataFrame, column: str, schemas: Sequence[Schema], role: Role
) -> pl.DataFrame:
    """`latest_rows`, in which each field of a role has its latest value that is not missing.

    A history is that of the latest row. A cell is null if the log has no value.

    >>> from fieldwise import Categorical, Label, Numeric
    >>> fields = Categorical("item", role="item"), Numeric("price", role="item"), Categorical("device")
    >>> schema = Schema(fields=fields, label=Label("click"))
    >>> log = pl.DataFrame({"item": ["a", "a", "b"], "price": ["9", "NULL", ""], "device": ["tv", None, "pc"]})
    >>> latest_values(log, "item", [schema], "item").rows()
    [('a', '9', None), ('b', None, 'pc')]
    """
    log = _in_order(log, schemas)
    rows = _last_rows(log, column)
    for schema in schemas:
        # a history is that of the latest row
        fields = [f for f in schema.with_role(role) if f.max_length is None]
        fields = [f for f in fields if f.column in rows.columns]
        names = list(dict.fromkeys(f.column for f in fields if f.column != column))
        cells = missing_as_null(log.select(column, *names), fields, schema.missing)
        for name in names:
            last = _last_rows(cells.select(column, name).drop_nulls(name), column)
            joined = rows.select(column).join(last, on=column, how="left", maintain_order="left")
            rows = rows.with_columns(joined.get_column(name))
    return rows


def _in_order(log: pl.DataFrame, schemas: Sequence[Schema]) -> pl.DataFrame:
    """The rows of a log by the first schema's time that it has; of equal times in the order of the table."""
    for schema in schemas:
        times = times_of(log, schema)
        if times is not None:
            return log[times.argsort(kind="stable")]
    return log


def _last_rows(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """The last row of each value of a column that is not null, in the order of the values."""
    return rows.drop_nulls(column).unique(column, keep="last").sort(column)


def _decided_by_all(column: pl.Series, *, budget: MemoryBudget) -> np.ndarray | None:
    """Numbers or times of text whose format all cells decide, chunk by chunk; None where `_from_text` has an error."""
    numbers = budget.empty(len(column), np.float64)
    are_numbers = True
    times = {family: budget.empty(len(column), np.int64) for family in AMBIGUOUS_FAMILIES}
    are_unambiguous = True
    have_offset = set[bool]()
    for chunk in budget.chunk_slices(len(column)):
        text = column[chunk].str.strip_chars().replace("", None)
        if text.null_count():
            return None

        number = text.cast(pl.Float64, strict=False).fill_nan(None)
        are_numbers = are_numbers and not number.null_count()
        if are_numbers:
            numbers[chunk] = number.to_numpy()

        readings = read_times(text)
        have_offset |= set(readings.normal.str.contains(OFFSET).unique())
        unambiguous = readings.by_family.get(UNAMBIGUOUS)
        are_unambiguous = are_unambiguous and unambiguous is not None
        for family in tuple(times):
            reading = readings.by_family.get(family, unambiguous)
            if reading is None:
                del times[family]
            else:
                times[family][chunk] = reading.times.to_numpy()
        if not times and not are_numbers:
            return None

    if are_numbers:
        return numbers
    is_one_family = are_unambiguous or len(times) == 1
    is_decided = is_one_family and len(have_offset) == 1
    return next(iter(times.values())) if is_decided else None


def _from_text(column: pl.Series, what: str, form: str | None) -> pl.Series:
    """Numbers if every present cell is one, else times; a cell that is neither becomes null."""
    text = column.str.strip_chars().replace("", None)
    if form is not None:
        return parse_with_format(text, form)
    numbers = text.cast(pl.Float64, strict=False).fill_nan(None)
    if numbers.null_count() == text.null_count():
        return numbers
    parsed = parse_timestamps(text)
    if parsed.other is not None:
        first, second = parsed.other
        raise DataError(
            f"day and month are ambiguous: the {what} column {column.name!r} holds {text.drop_nulls()[0]!r}, and "
            f"every cell can be read as {first!r} and as {second!r}; set the schema's time_format"
        )
    if parsed.mixed:
        raise DataError(
            f"either all times have an offset from UTC or none: in the {what} column {column.name!r} {parsed.mixed}; "
            "write the offset into every cell, or convert all to one time zone and omit it"
        )
    return parsed.values if parsed.values.null_count() < numbers.null_count() else numbers
