"""Inferring the column that orders a table's rows in time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import polars as pl

from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.profile import ColumnProfile, Columns
from fieldwise.data.prepare.ordering import mixed_units
from fieldwise.data.prepare.timestamps import ParsedTimestamps, parse_timestamps
from fieldwise.schema.ids import TIMES, WORDS, name_matches, words_of
from fieldwise.storage.scratch import NO_LIMIT

_PROBED_NUMBERS = 10_000
_NEARLY_UNIQUE = 0.5
_ROWS_IN_ORDER = 100
"""Rows whose order is no accident."""
_FEW_GAPS = 0.05
"""The share of empty cells up to which a time is asked about: with more, it is a time of some events alone."""
_TIME_WORDS = frozenset(
    ("ts", "time", "timestamp", "datetime", "date", "day", "when", "at", "stamp", "epoch", "unix")
)
_NOT_EVENTS = frozenset(WORDS["past"])
"""Times of a person's or an item's life, not of the event."""
_FIRST_DATE_NUMBER = 19_000_000
"""The least of dates as numbers, such as 20260131."""
_MOST_YEARS = 30
_DATE_NUMBER = (
    r"^(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])?(?:[0-5]\d){0,2}$"
)
_RANGES_SINCE_1970 = (
    (9e8, 2.2e9, "seconds"),
    (9e11, 2.2e12, "milliseconds"),
    (9e14, 2.2e15, "microseconds"),
)
"""Of the years 1998 to 2039."""


@dataclass(frozen=True, kw_only=True)
class TimeColumn:
    """A column that looks like a time.

    Args:
        format: of its text, if this decides between day-month and month-day.
        note: the reason for the choice.
        doubt: what the user must specify.
        fault: why it cannot order the rows, or an empty text.
    """

    format: str | None = None
    note: str = ""
    doubt: str = ""
    fault: str = ""


def time_columns(columns: Columns, skip: Collection[str]) -> dict[str, TimeColumn]:
    """The columns that look like times, by name; one that can order the rows is the first.

    `skip` has columns with another role: the label and ids.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"when": ["2026-01-31", "2026-02-01", "2026-02-02"], "x": [1, 2, 3]})
    >>> list(time_columns(profile_columns(rows), ()))
    ['when']
    """
    named: list[str] = []
    others: list[str] = []
    past: list[str] = []
    for name, column in columns.items():
        if name in skip:
            continue
        if name_matches(name, TIMES):
            named.append(name)
        elif _NOT_EVENTS.isdisjoint(words_of(name)):
            others.append(name)
        elif _grows_with_the_rows(column):
            past.append(name)

    times = {}
    for name in (*named, *others, *past):
        time = _time_of_column(columns[name], is_named=name_matches(name, TIMES))
        if time is not None:
            times[name] = time
    first = first_without_fault(times)
    return times if first is None else {first: times[first]} | times


def first_without_fault(times: Mapping[str, TimeColumn]) -> str | None:
    """The first column that can order the rows, if any."""
    return next((name for name, time in times.items() if not time.fault), None)


def _grows_with_the_rows(column: ColumnProfile) -> bool:
    """Whether a column's times grow with the rows, as those of a log's events do and of persons and items do not."""
    times = column.cells
    if column.dtype == pl.String:
        if not column.looks_like_dates:
            return False
        times = parse_timestamps(column.cells).values
    return not times.null_count() and len(times) >= _ROWS_IN_ORDER and times.is_sorted()


def _time_of_column(profile: ColumnProfile, *, is_named: bool) -> TimeColumn | None:
    """The column as a time; None if it does not look like one."""
    if isinstance(profile.dtype, pl.Decimal):
        profile = ColumnProfile(_in_integers(profile.cells))
    column = profile.cells
    has_time_word = is_named or not _TIME_WORDS.isdisjoint(words_of(profile.name))
    why = _reason(profile, is_named=is_named, has_time_word=has_time_word)
    if not why:
        return None

    parsed = parse_timestamps(column) if profile.dtype == pl.String else None
    times = column
    if parsed is not None and not parsed.other:
        times = parsed.values
    empty = times.null_count()
    if empty:
        gaps = f"{empty:,} of {len(column):,} rows have none, so it cannot order the rows"
        return TimeColumn(
            fault=f"a time by its contents, but {gaps}",
            doubt=_doubt_of_few_gaps(empty, len(column)),
        )
    if profile.distinct < 3:
        return TimeColumn(fault="a time by its contents, but with fewer than 3 different values")

    by_name = ", by its name" if has_time_word else ""
    return TimeColumn(
        format=None if parsed is None else parsed.format,
        note=f"{why}{by_name}; not a field, since future times do not occur in training rows",
        doubt=_doubt(column, parsed),
    )


def _doubt_of_few_gaps(empty: int, rows: int) -> str:
    """What the user must do about a time that few rows lack; empty if many lack it."""
    if empty > _FEW_GAPS * rows:
        return ""
    return (
        f"column {THIS_COLUMN} is a time, but {empty:,} of {rows:,} rows have none, so the schema has no time and "
        "rows are not split by it: fill these cells or leave these rows out, and run init again"
    )


def _in_integers(column: pl.Series) -> pl.Series:
    """A column of decimals that are all whole numbers as integers; any other unchanged."""
    integers = column.cast(pl.Int64, strict=False)
    is_equal = integers.cast(column.dtype, strict=False).eq_missing(column)
    return integers if is_equal.all() else column


def _reason(profile: ColumnProfile, *, is_named: bool, has_time_word: bool) -> str:
    """Why a column can order the rows, or an empty text."""
    dtype = profile.dtype
    if dtype in (pl.Datetime, pl.Date):
        return f"orders the rows: it holds {'days' if dtype == pl.Date else 'times'}"
    if dtype == pl.String and profile.looks_like_dates:
        return "orders the rows: its text is dates"
    if dtype.is_numeric() and is_named:
        return "orders the rows"
    if not dtype.is_integer():
        return ""
    if _are_date_numbers(profile):
        return "orders the rows: its numbers are dates, year first"

    unit = _unit_since_1970(profile)
    if unit and (has_time_word or profile.distinct >= _NEARLY_UNIQUE * len(profile.cells)):
        return f"orders the rows: its numbers are {unit} since 1970"
    return ""


def _are_date_numbers(column: ColumnProfile) -> bool:
    """Whether numbers are dates such as 20260131, with or without hour and minute, over at most thirty years."""
    if not isinstance(column.high, int) or column.high < _FIRST_DATE_NUMBER:
        return False
    present = column.present.head(_PROBED_NUMBERS)
    least = present.min() or 0
    if present.n_unique() < 3 or least < _FIRST_DATE_NUMBER:  # type: ignore[operator]
        return False
    text = present.cast(pl.String)
    if text.str.len_bytes().n_unique() > 1 or not text.str.contains(_DATE_NUMBER).all():
        return False
    years = text.str.head(4).cast(pl.Int64)
    return int(years.max()) - int(years.min()) <= _MOST_YEARS  # type: ignore[arg-type]


def _unit_since_1970(column: ColumnProfile) -> str:
    """The unit in which integers may count the time since 1970, or an empty text."""
    low = column.low
    high = column.high
    if not isinstance(low, int) or not isinstance(high, int) or low == high:
        return ""
    for least, most, unit in _RANGES_SINCE_1970:
        if least <= low and high <= most:
            return unit
    return ""


def _doubt(column: pl.Series, parsed: ParsedTimestamps | None) -> str:
    """What the user must specify of a column of times, or an empty text; `parsed` are those of its text."""
    mixed = mixed_units(column.to_numpy(), budget=NO_LIMIT) if column.dtype.is_numeric() else None
    if mixed is not None:
        units, row = mixed
        return f"the times of column {column.name!r} are not comparable: {units}{row}; convert them to one unit"
    if parsed is None:
        return ""
    if parsed.mixed:
        return (
            f"the times of column {column.name!r} are not comparable: {parsed.mixed}; write the offset into every "
            "cell, or convert all to one time zone and omit it"
        )
    if parsed.other is not None:
        return (
            f"day and month of the time column {column.name!r} are ambiguous ({column.drop_nulls()[0]!r}): write "
            f'time_format = "{parsed.other[0]}" or time_format = "{parsed.other[1]}" below time'
        )
    return ""
