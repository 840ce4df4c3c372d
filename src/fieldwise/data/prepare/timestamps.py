"""Text as times: the format is detected from all cells of a column.

Between day-month-year and month-day-year nothing is guessed: if both fit every cell, the user must
choose.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple

import polars as pl

from fieldwise.errors import DataError, first_line

READ_FORMATS = (
    "2026-01-31, 2026/01/31, 2026.01.31, 31 Jan 2026, 31-Jan-2026, Jan 31, 2026 (months also written out, with or "
    "without a weekday), 31/01/2026 or 01/31/2026 (also with . or -, and with years of two digits), each alone or with "
    "17:05, 17:05:09, 17:05:09.25, 5:05 PM, and after it Z or +01:00; T may stand between date and time"
)
_PLAIN = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%d %B %Y",
    "%d-%B-%Y",
    "%d %B, %Y",
    "%B %d, %Y",
    "%B %d %Y",
)
_NAMED = (
    "%a, %d %B %Y",
    "%a %d %B %Y",
    "%a %B %d %Y",
    "%A, %d %B %Y",
    "%A, %B %d, %Y",
    "%d-%B-%y",
    "%Y%m%d",
)
_TIMES = ("", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
_ZONED = tuple(f"{time}%z" for time in _TIMES[1:3])
_ALONE = ("%a %B %d %H:%M:%S %z %Y", "%a %B %d %H:%M:%S %Y", "%d/%B/%Y:%H:%M:%S%z")
_DAY_FIRST = tuple(f"%d{mark}%m{mark}%{year}" for mark, year in product("/.-", "Yy"))
_MONTH_FIRST = tuple(f"%m{mark}%d{mark}%{year}" for mark, year in product("/.-", "Yy"))
_CLOCKS = (*_TIMES, *_ZONED)
UNAMBIGUOUS = "unambiguous"
_FAMILIES = {
    UNAMBIGUOUS: (*(date + time for date in (*_PLAIN, *_NAMED) for time in _CLOCKS), *_ALONE),
    "day first": tuple(date + time for date in _DAY_FIRST for time in _CLOCKS),
    "month first": tuple(date + time for date in _MONTH_FIRST for time in _CLOCKS),
}
AMBIGUOUS_FAMILIES = ("day first", "month first")
"""Formats of dates such as 01/02/2026, between which all cells decide together."""
_DIRECTIVE = re.compile(r"%\.f|%\w|.")
_PATTERNS = {
    **dict.fromkeys(("%d", "%m", "%H", "%I"), r"\d{1,2}"),
    "%Y": r"\d{4}",
    **dict.fromkeys(("%y", "%M", "%S"), r"\d\d"),
    "%.f": r"(?:\.\d+)?",
    "%p": "[ap]m",
    "%a": "[a-z]{3}",
    "%A": "[a-z]{6,9}",
    "%B": "[a-z]{3,9}",
    "%z": r"[+-]\d\d:?\d\d",
    " ": " +",
}
OFFSET = r":\d\d(?:\.\d+)? ?[+-]\d\d:?\d\d(?: \d{4})?$"
"""Pattern of the end of a cell with an offset from UTC."""
_SAMPLED_CELLS = 100
_ROUNDS = 4
_PLAUSIBLE_MICROSECONDS = (-2_208_988_800_000_000, 7_258_118_400_000_000)
"""1900 to 2200: "%Y" would take "26" for the year 26."""


@dataclass(frozen=True, kw_only=True)
class ParsedTimestamps:
    """A text column parsed as times.

    Args:
        values: microseconds since 1970 (UTC if the text has an offset), null if a cell is not a
            time.
        format: the detected format, if the column needed a choice between day-month and month-day.
        other: the two formats, if day-month and month-day both fit every cell; `values` are then
            all null.
        mixed: a sentence, if some cells have an offset from UTC and others do not; else "". Such
            times are not comparable: the time zone of the latter is unknown.
    """

    values: pl.Series
    format: str | None = None
    other: tuple[str, str] | None = None
    mixed: str = ""


def parse_timestamps(text: pl.Series) -> ParsedTimestamps:
    """A text column parsed as times, by the supported formats (`READ_FORMATS`).

    >>> parse_timestamps(pl.Series(["31/01/2026", "01/02/2026"])).format
    '%d/%m/%Y'
    >>> parse_timestamps(pl.Series(["03/01/2026", "01/02/2026"])).other
    ('%d/%m/%Y', '%m/%d/%Y')
    """
    readings = read_times(text)
    unambiguous = readings.unambiguous
    possible = list(readings.by_family.values())
    if not possible:
        return ParsedTimestamps(values=unambiguous)
    if len(possible) == 2:
        first, second = (reading.formats[0] for reading in possible)
        no_times = unambiguous.clear(len(unambiguous))
        return ParsedTimestamps(values=no_times, other=(first, second))
    (reading,) = possible
    only_format = reading.formats[0] if len(reading.formats) == 1 else None
    mixed = _mixed_offsets(text, readings.normal)
    return ParsedTimestamps(values=reading.times, format=only_format, mixed=mixed)


def _mixed_offsets(text: pl.Series, normal: pl.Series) -> str:
    """What is wrong if some cells have an offset from UTC and others do not; or ""."""
    has_offset = normal.str.contains(OFFSET)
    count = int(has_offset.sum())
    present = len(normal) - normal.null_count()
    if not 0 < count < present:
        return ""
    with_offset = text.filter(has_offset)[0].strip()
    without = text.filter(~has_offset)[0].strip()
    return f"{count:,} of {present:,} cells have an offset from UTC ({with_offset!r}), the others do not ({without!r})"


_MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|"
    "aug(?:ust)?|sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_WEEKDAYS = (
    "mon(?:day)?|tue(?:sday)?|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
)
_PARTS_OF_TIMES = re.compile(
    rf"(?:[0-9/.,:+\-−\s]|{_MONTHS}|{_WEEKDAYS}|utc|gmt|[apmtz])+", re.IGNORECASE
)
_LEAST_DIGITS = 6
"""Of a time whose numbers nothing parts."""


def may_be_timestamp(cell: str) -> bool:
    """Whether a cell has nothing but parts of times, and numbers enough for day, month and year, before it is parsed.

    >>> [may_be_timestamp(cell) for cell in ("31 Jan 2026", "1/2/26", "12,50", "w31-01-26")]
    [True, True, False, False]
    """
    if not _PARTS_OF_TIMES.fullmatch(cell):
        return False
    numbers = re.findall("[0-9]+", cell)
    has_words = any(letter.isalpha() for letter in cell)
    needed_numbers = 2 if has_words else 3
    return len(numbers) >= needed_numbers or sum(map(len, numbers)) >= _LEAST_DIGITS


class FamilyReading(NamedTuple):
    """A column read by a family of formats: the formats that were needed, and the times of all cells."""

    formats: list[str]
    times: pl.Series


class TimeReadings(NamedTuple):
    """The ways to read a text column as times.

    Args:
        normal: normalised cells.
        unambiguous: the times of the cells that can be read in one way, else null.
        by_family: each family that fits all other cells; where there are none, `UNAMBIGUOUS` alone.
    """

    normal: pl.Series
    unambiguous: pl.Series
    by_family: dict[str, FamilyReading]


def read_times(text: pl.Series) -> TimeReadings:
    """The ways to read a text column as times."""
    normal = _normal(text)
    unambiguous = _parse_family(normal, UNAMBIGUOUS).times
    if unambiguous.null_count() == normal.null_count():
        return TimeReadings(normal, unambiguous, {UNAMBIGUOUS: FamilyReading([], unambiguous)})

    others = normal.zip_with(unambiguous.is_null(), normal.clear(len(normal)))
    by_family = {}
    for family in AMBIGUOUS_FAMILIES:
        formats, times = _parse_family(others, family)
        if times.null_count() == others.null_count():
            by_family[family] = FamilyReading(formats, unambiguous.fill_null(times))
    return TimeReadings(normal, unambiguous, by_family)


def parse_with_format(text: pl.Series, form: str) -> pl.Series:
    """The times of cells of a format, in microseconds since 1970, null for all others."""
    if "%" not in form:
        raise DataError(
            f"a time's format is written with % signs, such as '%d.%m.%Y %H:%M', found {form!r}"
        )
    times = _parse(text, form)
    if times.null_count():
        times = times.fill_null(_parse(_normal(text), form))
    return times


def _parse_family(text: pl.Series, family: str) -> FamilyReading:
    """Each cell parsed by the first fitting format of the family (null if none fits), and the formats that fit some."""
    times = pl.Series(text.name, [None], dtype=pl.Int64).new_from_index(0, len(text))
    used: list[str] = []
    for _ in range(_ROUNDS):
        # A few of the cells that are still unparsed show which formats to try.
        unparsed = text.filter(times.is_null() & text.is_not_null())
        every = max(1, len(unparsed) // _SAMPLED_CELLS)
        sample = unparsed.gather_every(every).head(2 * _SAMPLED_CELLS).to_list()

        nulls_before_round = times.null_count()
        for form in _formats_of_some(sample, family):
            nulls_before = times.null_count()
            parsed = _parse(text, form)
            is_plausible = parsed.is_between(*_PLAUSIBLE_MICROSECONDS)
            times = times.fill_null(parsed.zip_with(is_plausible, parsed.clear(len(parsed))))
            if times.null_count() < nulls_before:
                used.append(form)
        if times.null_count() in (nulls_before_round, text.null_count()):
            break
    return FamilyReading(used, times)


def _formats_of_some(cells: list[str], family: str) -> list[str]:
    """The formats of a family whose pattern some cell has."""
    return [
        form
        for form, pattern in _patterns(family)
        if any(pattern.fullmatch(cell) for cell in cells)
    ]


@cache
def _patterns(family: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The formats of a family, each with a pattern of its cells."""
    return tuple((form, _pattern(form)) for form in _FAMILIES[family])


def _pattern(form: str) -> re.Pattern[str]:
    """The pattern of the cells of a format."""
    directives = _DIRECTIVE.findall(form)
    parts = [_PATTERNS.get(directive) or re.escape(directive) for directive in directives]
    return re.compile("".join(parts), re.IGNORECASE)


def _parse(text: pl.Series, form: str) -> pl.Series:
    """The times of cells of one format, in microseconds since 1970, null for all others."""
    if not len(text):
        return pl.Series(text.name, [], dtype=pl.Int64)
    try:
        # A date without a time is midnight.
        if "%H" in form or "%I" in form:
            times = text.str.to_datetime(form, strict=False, time_unit="us")
        else:
            midnights = text + " 00:00"
            times = midnights.str.to_datetime(f"{form} %H:%M", strict=False, time_unit="us")
        return times.to_physical()
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"{form!r} is not a time format ({first_line(e)}); write one such as '%d.%m.%Y'"
        ) from e


def _normal(text: pl.Series) -> pl.Series:
    """Normalised cells: a space between date and time, offsets as +00:00, no surrounding spaces."""
    return (
        text.str.strip_chars()
        .replace("", None)
        .str.replace(r"(\d)T(\d)", "${1} ${2}")
        .str.replace(r"(:\d\d(?:\.\d+)?) ?(?:Z|UTC|GMT)$", "${1}+00:00")
        .str.replace(r"(:\d\d(?:\.\d+)?) ?([+-]\d\d):?(\d\d)$", "${1}${2}:${3}")
        .str.replace(r"(\d) ?([AaPp])\.?([Mm])\.?$", "${1} ${2}${3}")
    )
