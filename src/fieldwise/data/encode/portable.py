"""Single rows encoded with Python and NumPy alone: those of requests, and those of an exported `encode.py`.

`fieldwise export` copies this file, followed by the kinds' functions of a cell
(`fieldwise.data.encode.kinds`), into `encode.py`; so it imports nothing of fieldwise.
"""

import datetime as dt
import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache, cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MISSING = 0
"""A field's first row."""
UNKNOWN = 1
"""The second row of a field with a vocabulary, whose values follow."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
LARGEST_WHOLE = 2**53
"""Below it, floats represent all integers."""
ONE_VALUE = "one value (text, a number, true or false) or null"
# that of polars
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
WORDS = "words"
"""The separator of a list field that reads the words of a text, in lower case."""
WORD = r"[^\x00-/:-@\[-`{-\xbf\u2000-\u206f\u3000-\u303f]+"
"""A word: neither white space nor punctuation within it."""
BOOLEANS = {"true", "false"}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
SEPARATOR_AND_MARK = {
    "1,234.5": (",", "."),
    "1.234,5": (r"\.", ","),
    "1 234,5": ("[ \xa0\u202f\u2009]", ","),
    "1'234.5": ("['\u2019]", "."),
}
"""The thousands separator, as a pattern, and the decimal mark of each format."""


class Marks(NamedTuple):
    """The marks of missing numbers, in lower case, and those that are numbers, such as -999."""

    texts: frozenset[str]
    numbers: frozenset[float]


@cache
def marks_of(missing: tuple[str, ...]) -> Marks:
    """The marks that a schema names (`Schema.missing`)."""
    texts = frozenset(mark.strip(WHITE).lower() for mark in missing)
    numbers = [float(text) for text in texts if NUMBER.fullmatch(text)]
    return Marks(texts, frozenset(filter(math.isfinite, numbers)))


PRESENT_BY_ID = 2
"""The row of an id that has a vector in the field's table."""
MATRIX_TYPES = {"F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32"}
MOST_HEADER_BYTES = 1 << 26

Cell = tuple[list[int], list[float]]
"""A cell's rows within its field, at least one, and its numbers, none for a category."""


class CellEncoder(NamedTuple):
    """What encodes the cells of one field.

    Args:
        field: the field.
        fitted: its fitted part.
        marks: the marks of missing numbers.
        cell: the function of its kind from this encoder and a value to a `Cell`; it raises
            TypeError, ValueError or OverflowError for a value that the field does not take.
        is_bag: whether a cell is a bag of rows.
        runs: where its rows begin: a row within the field and that row in the shared table, for
            those of its fit and of each growth.
    """

    field: Any
    fitted: Any
    marks: Marks
    cell: Callable[["CellEncoder", Any], Cell]
    is_bag: bool
    runs: Sequence[Sequence[int]]

    def table_rows(self, rows: list[int]) -> list[int]:
        """Rows within the field as rows of the shared table."""
        if len(self.runs) == 1:
            [(_, offset)] = self.runs
            return [offset + row for row in rows]
        table_rows = []
        for row in rows:
            start, first = next(run for run in reversed(self.runs) if run[0] <= row)
            table_rows.append(first + row - start)
        return table_rows


def encode_rows(
    rows: Sequence[Mapping[str, Any]], encoders: Sequence[CellEncoder]
) -> dict[str, np.ndarray]:
    """The arrays of a batch of rows, which map columns to values.

    Errors:
        ValueError: a row lacks a column, or has a value that its field does not take.
    """
    ids = []
    numbers = []
    bag_ids: list[int] = []
    bag_lengths: list[int] = []
    bag_weights: list[float] = []
    for number, row in enumerate(rows):
        row_ids = []
        row_numbers: list[float] = []
        for encoder in encoders:
            column = encoder.field.column
            if column not in row:
                raise ValueError(
                    f"every field needs a value, or None if it is missing: row {number} has no {column!r}"
                )
            value = row[column]
            try:
                local_rows, cell_numbers = encoder.cell(encoder, value)
            except (TypeError, ValueError, OverflowError) as e:
                raise ValueError(
                    f"row {number}, column {column!r}: {e}, found {value!r:.80}"
                ) from None
            row_numbers += cell_numbers
            table_rows = encoder.table_rows(local_rows)
            if not encoder.is_bag:
                row_ids += table_rows
                continue
            length = len(table_rows)
            bag_ids += table_rows
            bag_lengths.append(length)
            bag_weights.append(1 / length if encoder.field.pooling == "mean" else 1.0)
        ids.append(row_ids)
        numbers.append(row_numbers)
    return {
        "ids": np.array(ids, np.int32).reshape(len(rows), -1),
        "values": np.array(numbers, np.float32).reshape(len(rows), -1),
        "bag_ids": np.array(bag_ids, np.int32),
        "bag_segments": np.repeat(np.arange(len(bag_lengths)), bag_lengths),
        "bag_weights": np.repeat(np.array(bag_weights, np.float32), bag_lengths),
    }


class KnownTexts:
    """The rows of texts by a vocabulary."""

    values: Sequence[str]

    @cached_property
    def boolean(self) -> bool:
        """Whether the values are booleans: `true` from a frame, but `True` in pandas' CSV files."""
        lowered = {value.lower() for value in self.values[:3]}
        return 0 < len(self.values) == len(lowered) and lowered <= BOOLEANS

    @cached_property
    def row_of_text(self) -> dict[str | None, int]:
        """The row of each value, booleans in lower case, and of a missing one."""
        values = map(str.lower, self.values) if self.boolean else self.values
        rows: dict[str | None, int] = dict(zip(values, count(UNKNOWN + 1), strict=False))
        rows[None] = MISSING
        return rows

    def row(self, text: str | None) -> int:
        """The row of a text within the field."""
        if text is not None and self.boolean:
            text = text.lower()
        return self.row_of_text.get(text, UNKNOWN)


class HashedTexts:
    """The rows of texts by their hashes."""

    buckets: int

    def row(self, text: str | None) -> int:
        """The row of a text within the field."""
        if text is None:
            return MISSING
        value = 0xCBF29CE484222325  # FNV-1a, 64 bits
        for byte in text.encode():
            value = (value ^ byte) * 0x100000001B3 % (1 << 64)
        return value % self.buckets + 1


class VectorsById:
    """The rows and vectors of ids, by a table of vectors."""

    values: Sequence[str]
    learned: Sequence[str]
    width: int
    matrix: Any

    @cached_property
    def rows_of_id(self) -> dict[str | None, tuple[int, int]]:
        """The row of each id within the field, and that in the matrix, -1 without a vector."""
        rows: dict[str | None, tuple[int, int]] = {None: (MISSING, -1)}
        for row, value in enumerate(self.learned, start=PRESENT_BY_ID + 1):
            rows[value] = (row, -1)
        for row, value in enumerate(self.values):
            rows[value] = (PRESENT_BY_ID, row)
        return rows

    def cell(self, text: str | None) -> Cell:
        """The row of an id within the field, and its vector, zeros without one."""
        row, row_of_matrix = self.rows_of_id.get(text, (UNKNOWN, -1))
        if row_of_matrix < 0:
            return [row], [0.0] * self.width
        return [row], self.matrix[row_of_matrix].tolist()


def map_matrices(path: Path) -> dict[str, np.ndarray]:
    """The matrices of a safetensors file, mapped copy-on-write; a ValueError or KeyError for another file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, MOST_HEADER_BYTES)))
    matrices = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in MATRIX_TYPES:
            continue
        dtype = np.dtype(MATRIX_TYPES[entry["dtype"]])
        shape = tuple(entry["shape"])
        if math.prod(shape) == 0:
            matrices[name] = np.empty(shape, dtype)
            continue
        offset = 8 + size + entry["data_offsets"][0]
        matrices[name] = np.asarray(np.memmap(path, dtype, "c", offset, shape))
    return matrices


def cell_text(value: object) -> str | None:
    """The text of a JSON value; missing and empty ones are None; a TypeError ends "the cell must be".

    >>> cell_text(3.0), cell_text(True), cell_text(2.5), cell_text("")
    ('3', 'true', '2.5', None)
    """
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_text(value)
    raise TypeError(ONE_VALUE)


def any_text(value: Any) -> str | None:
    """`cell_text` also of dates, times, durations, decimals and NumPy's values."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return cell_text(value)
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return cell_text(value.item())
    if isinstance(value, Decimal):
        digits = format(value, "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, dt.timedelta):
        return float_text(value // dt.timedelta(microseconds=1) / 1e6)
    if isinstance(value, (dt.datetime, dt.time)):
        return time_text(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    raise TypeError("a text, a number, true, false, a date, a time, a duration or None is needed")


def cell_texts(
    value: Any,
    separator: str,
    *,
    newest: int | None = None,
    text: Callable[[Any], str | None] = any_text,
) -> list[str]:
    """The texts of a list of what `text` takes, of one such value, whose text is split at `separator`, or of None.

    With `WORDS` the words of the text, in lower case.

    >>> cell_texts("a| b||", "|"), cell_texts([7, None, " ", 8, 9], "|", newest=2), cell_texts(7, "|")
    (['a', 'b'], ['8', '9'], ['7'])
    >>> cell_texts("Back to the Future: Part II", WORDS)
    ['back', 'to', 'the', 'future', 'part', 'ii']
    """
    if isinstance(value, (list, tuple)):
        values = value
    else:
        one_text = None if value is None else text(value)
        if one_text is None:
            values = []
        elif separator == WORDS:
            values = re.findall(WORD, one_text.lower())
        else:
            values = one_text.split(separator)
    cleaned = (
        (text(element) or "").strip(WHITE) for element in reversed(values) if element is not None
    )
    return list(islice(filter(None, cleaned), newest))[::-1]


def float_text(number: float) -> str | None:
    """The text of a number: of one that 32 bits hold exactly, the shortest that names it among these."""
    number = float(number)
    if math.isnan(number):
        return None
    if number.is_integer() and abs(number) < LARGEST_WHOLE:
        return str(int(number))
    with np.errstate(over="ignore"):
        short = np.float32(number)
    if float(short) == number:
        number = float(np.format_float_scientific(short))
    if 1e-5 <= abs(number) < 1e-4:
        return np.format_float_positional(number)
    return repr(number).replace("e-0", "e-")


def time_text(value: dt.datetime | dt.time) -> str:
    """The text of a time: without zeros at the end of a fraction; a midnight without an offset is its date."""
    offset = value.isoformat()[len(value.replace(tzinfo=None).isoformat()) :]
    fraction = f".{value.microsecond:06}".rstrip("0").rstrip(".")
    local = value.replace(tzinfo=None, microsecond=0)
    if isinstance(local, dt.time):
        return local.isoformat() + fraction
    text = local.isoformat(" ") + fraction + offset
    return text.removesuffix(" 00:00:00")


def cell_number(value: Any, form: str | None, marks: Marks) -> float:
    """A cell as a number, dates and times in seconds; NaN if it is missing, or a mark of this."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        number = text_number(value, form, marks)
    elif isinstance(value, dt.timedelta):
        number = value.total_seconds()
    elif isinstance(value, dt.time):
        number = float(value.hour * 3600 + value.minute * 60 + value.second)
    elif isinstance(value, dt.date):
        time = dt.datetime(value.year, value.month, value.day)
        if isinstance(value, dt.datetime):
            time = value
        since = time.replace(tzinfo=time.tzinfo or dt.UTC) - EPOCH
        number = float(since // dt.timedelta(seconds=1))
    elif isinstance(value, (int, float, Decimal, np.bool_, np.integer, np.floating)):
        number = float(value)
    else:
        raise TypeError("a number is needed")
    if abs(number) > FLOAT32_MAX:
        raise ValueError(f"a finite number of at most {FLOAT32_MAX:.1e} is needed")
    return math.nan if number in marks.numbers else number


def vector_numbers(value: Any) -> list[float]:
    """The numbers of a list; a TypeError or ValueError if it has others than finite ones."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise TypeError("a list of numbers is needed")
    if not all(isinstance(n, (int, float, np.number)) and type(n) is not bool for n in value):
        raise TypeError("a list of numbers is needed")
    numbers = [float(number) for number in value]
    if not all(abs(number) <= FLOAT32_MAX for number in numbers):
        raise ValueError("a list of finite numbers is needed")
    return numbers


def bin_of(number: float, edges: Sequence[float], closed: str) -> int:
    """The bin of a number between increasing inner edges, each of which belongs to the bin above, or `right`: below."""
    return bisect_left(edges, number) if closed == "right" else bisect_right(edges, number)


def text_number(value: str, form: str | None, marks: Marks) -> float:
    """A text as a number; NaN if it is empty or a mark of a missing number."""
    text = value.strip(WHITE)
    plain = text if form is None else plain_number(text, form)
    if text and NUMBER.fullmatch(plain):
        return float(plain)
    if not text or text.lower() in marks.texts:
        return math.nan
    if form is None:
        raise ValueError("a number is needed")
    raise ValueError("a number in the field's number_format is needed")


def plain_number(text: str, form: str) -> str:
    """A number in a format as a plain one; an empty text if it does not fit."""
    pattern, separator = number_pattern(form)
    parts = re.fullmatch(pattern, text)
    if parts is None:
        return ""
    whole = re.sub(separator, "", parts["whole"])
    return f"{parts['sign']}{parts['sign_after']}{whole}.{parts['fraction'] or '0'}"


@cache
def number_pattern(form: str) -> tuple[str, str]:
    """The pattern of numbers in a format, and that of its thousands separator.

    The unit stands before or after a number, or is left out.
    """
    plain_form = next(name for name in SEPARATOR_AND_MARK if name in form)
    separator, mark = SEPARATOR_AND_MARK[plain_form]
    unit = re.escape(form.replace(plain_form, "").strip(WHITE))
    whole = rf"(?P<whole>\d{{1,3}}(?:{separator}\d{{3}})+|\d+)"
    number = rf"{whole}(?:{re.escape(mark)}(?P<fraction>\d+))?"
    if not unit:
        return rf"^(?P<sign>[+-]?)(?P<sign_after>){number}$", separator
    before = rf"(?P<sign>[+-]?)\s*(?:{unit})?\s*(?P<sign_after>[+-]?)"
    return rf"(?i)^{before}{number}\s*(?:{unit})?$", separator
