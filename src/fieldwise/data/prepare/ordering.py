"""Rows in the order of a column of numbers or times, also of text.

The format of times is detected from all cells of a column. Between day-month-year and
month-day-year nothing is guessed: if both fit every cell, the user must choose.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import missing_as_null
from fieldwise.data.encode.numbers import is_mark, marked_numbers, without_marked_numbers
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import MISSING_MARKS, Role, Schema
from fieldwise.storage import scratch

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
_FAMILIES = {
    "unambiguous": (*(date + time for date in (*_PLAIN, *_NAMED) for time in _CLOCKS), *_ALONE),
    "day first": tuple(date + time for date in _DAY_FIRST for time in _CLOCKS),
    "month first": tuple(date + time for date in _MONTH_FIRST for time in _CLOCKS),
}
_ORDERS = ("day first", "month first")
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
_OFFSET = r":\d\d(?:\.\d+)? ?[+-]\d\d:?\d\d(?: \d{4})?$"
_SAMPLE = 100
_ROUNDS = 4
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Units of numbers that are times since 1970, with how many make a second."""
_LEAST_TIMES = 0.99
# of the years 1980 to 2100
_FIRST_SECOND = 315_532_800
_LAST_SECOND = 4_102_444_800
# 1900 to 2200: "%Y" would take "26" for the year 26
_YEARS = (-2_208_988_800_000_000, 7_258_118_400_000_000)


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
    normal, values, ways = _readings(text)
    if len(ways) == 2:
        first, second = (used[0] for used, _ in ways.values())
        return ParsedTimestamps(values=values.clear(len(values)), other=(first, second))
    for used, result in ways.values():
        named = normal.str.contains(_OFFSET)
        mixed = ""
        count = int(named.sum())
        present = len(normal) - normal.null_count()
        if 0 < count < present:
            with_one = text.filter(named)[0].strip()
            without = text.filter(~named)[0].strip()
            mixed = f"{count:,} of {present:,} cells have an offset from UTC ({with_one!r}), the others do not "
            mixed += f"({without!r})"
        return ParsedTimestamps(
            values=result, format=used[0] if len(used) == 1 else None, mixed=mixed
        )
    return ParsedTimestamps(values=values)


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
_LEAST_DIGITS = 6  # of a time whose numbers nothing parts


def may_be_timestamp(cell: str) -> bool:
    """Whether a cell has nothing but parts of times, and numbers enough for day, month and year, before it is parsed.

    >>> [may_be_timestamp(cell) for cell in ("31 Jan 2026", "1/2/26", "12,50", "w31-01-26")]
    [True, True, False, False]
    """
    if not _PARTS_OF_TIMES.fullmatch(cell):
        return False
    numbers = re.findall("[0-9]+", cell)
    has_words = any(letter.isalpha() for letter in cell)
    return len(numbers) >= (2 if has_words else 3) or sum(map(len, numbers)) >= _LEAST_DIGITS


def _readings(
    text: pl.Series,
) -> tuple[pl.Series, pl.Series, dict[str, tuple[list[str], pl.Series]]]:
    """Normalised cells, their unambiguous times, and by family the formats needed for all others and the times of all.

    Where no other format was needed, the one family is `unambiguous`.
    """
    normal = _normal(text)
    values, _ = _by(normal, "unambiguous")
    if values.null_count() == normal.null_count():
        return normal, values, {"unambiguous": ([], values)}
    rest = normal.zip_with(values.is_null(), normal.clear(len(normal)))
    ways = {}
    for family in _ORDERS:
        result, used = _by(rest, family)
        if result.null_count() == rest.null_count():
            ways[family] = used, values.fill_null(result)
    return normal, values, ways


@cache
def _patterns(family: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The formats of a family, each with a pattern of its cells."""
    return tuple(
        (
            form,
            re.compile(
                "".join(_PATTERNS.get(d) or re.escape(d) for d in _DIRECTIVE.findall(form)),
                re.IGNORECASE,
            ),
        )
        for form in _FAMILIES[family]
    )


def _by(text: pl.Series, family: str) -> tuple[pl.Series, list[str]]:
    """Each cell parsed by the first fitting format of the family, and the formats that fit some cells."""
    result = pl.Series(text.name, [None], dtype=pl.Int64).new_from_index(0, len(text))
    used: list[str] = []
    for _ in range(_ROUNDS):
        rest = text.filter(result.is_null() & text.is_not_null())
        # A few of the cells that are still unparsed show which formats to try.
        sample = rest.gather_every(max(1, len(rest) // _SAMPLE)).head(2 * _SAMPLE).to_list()
        forms = [
            form
            for form, pattern in _patterns(family)
            if any(pattern.fullmatch(cell) for cell in sample)
        ]
        before = result.null_count()
        for form in forms:
            left = result.null_count()
            values = _parse(text, form)
            result = result.fill_null(
                values.zip_with(values.is_between(*_YEARS), values.clear(len(values)))
            )
            used += [form] if result.null_count() < left else []
        if result.null_count() in (before, text.null_count()):
            break
    return result, used


def _parse(text: pl.Series, form: str) -> pl.Series:
    if not len(text):
        return pl.Series(text.name, [], dtype=pl.Int64)
    try:
        # A date without a time is midnight.
        whole = form if "%H" in form or "%I" in form else f"{form} %H:%M"
        cells = text if whole == form else text + " 00:00"
        return cells.str.to_datetime(whole, strict=False, time_unit="us").to_physical()
    except pl.exceptions.PolarsError as e:
        raise DataError(
            f"{form!r} is not a time format ({str(e).splitlines()[0]}); write one such as '%d.%m.%Y'"
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


def mixed_units(values: np.ndarray) -> str:
    """What is wrong with numbers that are times since 1970 in several units, such as seconds and milliseconds; or "".

    A unit is told by magnitude: numbers that are years from 1980 to 2100 in it. Numbers of which
    more than one in a hundred is no time in any unit have none; fewer may be marks of missing
    times, such as 0.

    >>> mixed_units(np.array([1_700_000_000, 1_700_000_060_000, 1_700_000_120]))
    '1 of 3 rows is in milliseconds since 1970 and 2 in seconds, the first of the former is row 1 (counting from 0)'
    """
    counts = dict.fromkeys(_UNITS, 0)
    first_rows: dict[str, int] = {}
    for at in scratch.chunk_slices(len(values)):
        seconds = values[at].astype(np.float64)
        for unit, per_second in _UNITS.items():
            in_unit = (seconds >= _FIRST_SECOND * per_second) & (
                seconds < _LAST_SECOND * per_second
            )
            if in_unit.any():
                counts[unit] += int(in_unit.sum())
                first_rows.setdefault(unit, at.start + int(in_unit.argmax()))
    if len(first_rows) < 2 or sum(counts.values()) < _LEAST_TIMES * len(values):
        return ""
    rarest, *others = sorted(first_rows, key=lambda unit: counts[unit])
    rest = ", ".join(f"{counts[unit]:,} in {unit}" for unit in others)
    return (
        f"{counts[rarest]:,} of {len(values):,} rows {'is' if counts[rarest] == 1 else 'are'} in {rarest} since 1970 "
        f"and {rest}, the first of the former is row {first_rows[rarest]} (counting from 0)"
    )


def order_values(
    frame: pl.DataFrame,
    name: str,
    what: str,
    form: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]), all of one unit; see `_order_values`."""
    values = _order_values(frame, name, what, form, missing)
    of_text = frame.schema[name] == pl.String
    # dates are int64
    are_numbers = frame.schema[name].is_numeric() or (of_text and values.dtype == np.float64)
    mixed = mixed_units(values) if are_numbers else ""
    if mixed:
        raise DataError(
            f"all times of a column must have one unit: in the {what} column {name!r} {mixed}; convert them to one unit"
        )
    return values


def _order_values(
    frame: pl.DataFrame, name: str, what: str, form: str | None, missing: Sequence[str]
) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]); errors name the purpose `what`: `time`, `order`.

    `form` is the format of text with dates; without one the supported formats are tried on all
    cells, which decide together. A cell that holds a mark of a missing value has none.
    """
    if name not in frame.columns:
        raise DataError(
            f"the {what} column {name!r} must be in the table, found only: {', '.join(frame.columns)}"
        )
    column = frame.get_column(name)
    in_chunks = scratch.several(frame.height)
    if in_chunks and column.dtype == pl.String and form is None:
        decided = None if marked_numbers(tuple(missing)) else _decided_by_all(column)
        if decided is not None:
            return decided
    elif in_chunks:
        result = scratch.empty(
            frame.height, _order_values(frame.head(1), name, what, form, missing).dtype.type
        )
        for at in scratch.chunk_slices(frame.height):
            with counting_from(at.start):
                result[at] = _order_values(frame[at], name, what, form, missing)
        return result
    if column.dtype.is_temporal():
        values = column.to_physical()
    elif column.dtype == pl.String:
        values = _from_text(column, what, form)
        if values.dtype == pl.Float64:
            values = without_marked_numbers(values, missing)
    elif column.dtype.is_numeric():
        values = column.fill_nan(None) if column.dtype.is_float() else column
        values = without_marked_numbers(values, missing)
    elif column.dtype == pl.Null:
        values = column.cast(pl.Float64)
    else:
        raise DataError(
            f"the {what} column must hold numbers or dates: column {name!r} is of type {column.dtype}"
        )
    if values.null_count():
        row = int(values.is_null().arg_max() or 0)
        is_empty = values.is_null()
        if column.dtype == pl.String:
            is_empty = is_mark(column, missing) | (column.str.strip_chars() == "").fill_null(True)
        if not is_empty[row]:
            rule = "every row needs a number or a date for ordering"
            fix = f"fix it, or give the schema a time_format; formats read without one: {READ_FORMATS}"
            if form is not None:
                rule = f"the schema's time_format {form!r} must fit every cell"
                fix = "fix the cell or the format"
            many = int((values.is_null() & ~is_empty).sum())
            raise DataError(
                f"{rule}: the {what} column {name!r} holds {column[row]!r} in row {row} (counting from 0), {many} of "
                f"{len(values)} rows are like it; {fix}"
            )
        raise DataError(
            f"every row needs its {what} (a number or a date) for ordering: column {name!r} holds {column[row]!r} "
            f"in row {row} (counting from 0), {values.null_count()} of {len(values)} rows have none; fill them, or "
            "order by another column"
        )
    return values.to_numpy()


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
        fields = [
            f for f in schema.with_role(role) if f.max_length is None and f.column in rows.columns
        ]
        names = list(dict.fromkeys(f.column for f in fields if f.column != column))
        cells = missing_as_null(log.select(column, *names), fields, schema.missing)
        for name in names:
            known = _last_rows(cells.select(column, name).drop_nulls(name), column)
            joined = rows.select(column).join(known, on=column, how="left", maintain_order="left")
            rows = rows.with_columns(joined.get_column(name))
    return rows


def _in_order(log: pl.DataFrame, schemas: Sequence[Schema]) -> pl.DataFrame:
    """The rows of a log by the first schema's time that it has; of equal times in the order of the table."""
    for schema in schemas:
        if schema.time is not None and schema.time in log.columns:
            times = order_values(log, schema.time, "time", schema.time_format, schema.missing)
            return log[times.argsort(kind="stable")]
    return log


def _last_rows(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """The last row of each value of a column that is not null, in the order of the values."""
    return rows.drop_nulls(column).unique(column, keep="last").sort(column)


def _decided_by_all(column: pl.Series) -> np.ndarray | None:
    """Numbers or times of text whose format all cells decide, chunk by chunk; None where `_from_text` has an error."""
    numbers = scratch.empty(len(column), np.float64)
    are_numbers = True
    are_clear = True
    times = {family: scratch.empty(len(column), np.int64) for family in _ORDERS}
    with_offset = set[bool]()
    for at in scratch.chunk_slices(len(column)):
        text = column[at].str.strip_chars().replace("", None)
        if text.null_count():
            return None
        number = text.cast(pl.Float64, strict=False).fill_nan(None)
        are_numbers = are_numbers and not number.null_count()
        if are_numbers:
            numbers[at] = number.to_numpy()
        normal, _, ways = _readings(text)
        with_offset |= set(normal.str.contains(_OFFSET).unique())
        are_clear = are_clear and "unambiguous" in ways
        times = {
            family: values
            for family, values in times.items()
            if {family, "unambiguous"} & set(ways)
        }
        for family, values in times.items():
            values[at] = ways.get(family, ways.get("unambiguous", ([], text)))[1].to_numpy()
        if not times and not are_numbers:
            return None
    if are_numbers:
        return numbers
    return (
        next(iter(times.values()))
        if (are_clear or len(times) == 1) and len(with_offset) == 1
        else None
    )


def _from_text(column: pl.Series, what: str, form: str | None) -> pl.Series:
    """Numbers if every present cell is one, else times; a cell that is neither becomes null."""
    text = column.str.strip_chars().replace("", None)
    if form is not None:
        if "%" not in form:
            raise DataError(
                f"a time's format is written with % signs, such as '%d.%m.%Y %H:%M', found {form!r}"
            )
        times = _parse(text, form)
        return times.fill_null(_parse(_normal(text), form)) if times.null_count() else times
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    if number.null_count() == text.null_count():
        return number
    result = parse_timestamps(text)
    if result.other is not None:
        first, second = result.other
        raise DataError(
            f"day and month are ambiguous: the {what} column {column.name!r} holds {text.drop_nulls()[0]!r}, and "
            f"every cell can be read as {first!r} and as {second!r}; set the schema's time_format"
        )
    if result.mixed:
        raise DataError(
            f"either all times have an offset from UTC or none: in the {what} column {column.name!r} {result.mixed}; "
            "write the offset into every cell, or convert all to one time zone and omit it"
        )
    return result.values if result.values.null_count() < number.null_count() else number
