"""Inferring the time column: by its name, its type, dates in text, or Unix timestamps."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import polars as pl

from fieldwise.data.read.moments import Moments, read_moments
from fieldwise.schema.names import TIMES, name_matches, words_of

__all__ = ["GuessedTime", "guess_time", "looks_like_a_calendar", "looks_like_dates"]

_PROBE = 200
_NEARLY_UNIQUE = 0.5
_ENOUGH = 500  # rows whose order is no accident
_TIME_WORDS = frozenset(("ts", "time", "timestamp", "datetime", "date", "day", "when", "at", "stamp", "epoch", "unix"))
_PAST = """
birth birthday birthdate dob born release released publish published publication expiry expires joined join signup since
registered registration founded built issued opened launch launched due deadline updated modified
"""
_NOT_EVENTS = frozenset(_PAST.split())  # times of a person's or an item's life, not of the event
_CALENDAR = (
    r"(?i)\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|week|woche|semaine|semana|"
    r"kw|q[1-4]|day|month|am|pm)"
)
_STAMPS = ((9e8, 2.2e9, "seconds"), (9e11, 2.2e12, "milliseconds"), (9e14, 2.2e15, "microseconds"))  # 1998 to 2039


@dataclass(frozen=True, kw_only=True)
class GuessedTime:
    """The column that orders rows, if any.

    Args:
        column: its name.
        format: format of its text, if this decides between day-month and month-day.
        note: the reason for the choice.
        doubt: what the user must specify.
        others: further columns that look like times of events, each with the reason why it was not used.
    """

    column: str | None = None
    format: str | None = None
    note: str = ""
    doubt: str = ""
    others: dict[str, str] = field(default_factory=dict)


def guess_time(frame: pl.DataFrame, skip: Collection[str]) -> GuessedTime:
    """The column that orders a table's rows.

    Args:
        frame: the table.
        skip: columns with another role: the label, ids, columns that describe a user or an item.

    >>> guess_time(pl.DataFrame({"when": ["2026-01-31", "2026-02-01", "2026-02-02"], "x": [1, 2, 3]}), ()).column
    'when'
    """
    columns = [c for c in frame.columns if c not in skip]
    named = [c for c in columns if name_matches(c, TIMES)]
    others = [c for c in columns if c not in named and _NOT_EVENTS.isdisjoint(words_of(c))]
    past = [c for c in columns if c not in (*named, *others) and _grows(frame.get_column(c))]
    found, left = GuessedTime(), {}
    for name in (*named, *others, *past):
        guess, fault = _time(frame.get_column(name), named=name in named)
        if guess is not None and found.column is None:
            found = guess
        elif guess is not None or fault:
            left[name] = fault or "another time besides the one that orders rows"
    return replace(found, others=left)


def looks_like_dates(words: pl.Series) -> bool:
    """Whether text cells are dates, from a sample."""
    present = words.drop_nulls()
    some = present.gather_every(max(1, len(present) // _PROBE)).head(_PROBE)
    if not len(some) or some.cast(pl.Float64, strict=False).null_count() < len(some):
        return False
    found = read_moments(some)
    return found.other is not None or found.values.null_count() == 0


def looks_like_a_calendar(column: pl.Series) -> bool:
    """Whether cells name days, weeks or months beside numbers, though no format reads them, such as `Week 3, Tue`."""
    if column.dtype != pl.String:
        return False
    some = column.drop_nulls().unique().head(_PROBE)
    named = some.str.contains(_CALENDAR) & some.str.contains(r"\d")
    return len(some) > 10 and float(named.mean() or 0) > 0.9  # type: ignore[arg-type]


def _grows(column: pl.Series) -> bool:
    """Whether times grow with the rows, as those of a log's events do, and those of persons and items do not."""
    if column.dtype == pl.String and looks_like_dates(column):
        column = read_moments(column).values
    return column.dtype != pl.String and not column.null_count() and len(column) >= _ENOUGH and column.is_sorted()


def _time(column: pl.Series, named: bool) -> tuple[GuessedTime | None, str]:
    """The column as a time, or the reason why a column that looks like a time cannot order rows."""
    name, kind = column.name, column.dtype
    by_name = ", by its name" if named or _TIME_WORDS & set(words_of(name)) else ""
    moments, why = None, ""
    if kind in (pl.Datetime, pl.Date):
        why = f"orders the rows: it holds {'days' if kind == pl.Date else 'times'}"
    elif kind == pl.String and looks_like_dates(column):
        moments, why = read_moments(column), "orders the rows: its text is dates"
    elif kind.is_numeric() and named:
        why = "orders the rows"
    elif kind.is_integer() and _calendar_numbers(column):
        why = "orders the rows: its numbers are dates, year first"
    elif kind.is_integer() and (unit := _stamps(column, bool(by_name))):
        why = f"orders the rows: its numbers are {unit} since 1970"
    if not why:
        return None, ""
    empty = column.null_count() if moments is None or moments.other else moments.values.null_count()
    if empty:
        return (
            None,
            f"a time by its contents, but {empty:,} of {len(column):,} rows have none, so it cannot order the rows",
        )
    if column.n_unique() < 3:
        return None, "a time by its contents, but with fewer than 3 different values"
    note = f"time: {why}{by_name}; not a field, since future times do not occur in training rows"
    form = None if moments is None else moments.format
    return GuessedTime(column=name, format=form, note=note, doubt=_doubt(name, column, moments)), ""


def _doubt(name: str, column: pl.Series, moments: Moments | None) -> str:
    if moments is not None and moments.mixed:
        return (
            f"the times of column {name!r} are not comparable: {moments.mixed}; write the offset into every cell, or "
            "convert all to one time zone and omit it"
        )
    if moments is None or moments.other is None:
        return ""
    first, second = moments.other
    return (
        f"day and month of the time column {name!r} are ambiguous ({column.drop_nulls()[0]!r}): write "
        f'time_format = "{first}" or time_format = "{second}" below time'
    )


def _calendar_numbers(column: pl.Series) -> bool:
    """Whether numbers are dates such as 20260131, with or without hour and minute, over at most thirty years."""
    present = column.drop_nulls().head(_PROBE * 50)
    if not len(present) or present.n_unique() < 3 or (present.min() or 0) < 19_000_000:  # type: ignore[operator]
        return False
    text = present.cast(pl.String)
    if text.str.len_bytes().n_unique() > 1:
        return False
    years = text.str.head(4).cast(pl.Int64)
    pattern = r"^(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])?(?:[0-5]\d){0,2}$"
    return bool(text.str.contains(pattern).all()) and int(years.max()) - int(years.min()) <= 30  # type: ignore[arg-type]


def _stamps(column: pl.Series, named: bool) -> str:
    low, high = column.min(), column.max()
    if not isinstance(low, int) or not isinstance(high, int) or low == high:
        return ""
    several = named or column.n_unique() >= _NEARLY_UNIQUE * len(column)
    return next((unit for least, most, unit in _STAMPS if several and least <= low and high <= most), "")
