"""From the plain values of a request to a table: every cell checked, errors that name the place.

A request's cells are JSON: text, numbers, true and false, null, and lists of these for bags and sequences.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from reprlib import Repr
from typing import Any

import polars as pl

from fieldwise.data.encode.columns import FLOAT32_MAX, ONE_VALUE, cell_list, cell_text
from fieldwise.errors import DataError
from fieldwise.schema import Field

MOST_VALUES = 1000  # of a bag; of a sequence the newest
MOST_NAMES = 100  # of a row that are looked at for one that was meant
MOST_CHARACTERS = 10_000  # of a text
NO_ITEMS = "this server has no items to recommend: start it with --log, --items or --index"

__all__ = ["NO_ITEMS", "RequestError", "frame_of", "text_of", "values_of"]


class RequestError(DataError):
    """A request that cannot be answered; `field` says which part of it is wrong, `status` is HTTP's."""

    def __init__(self, message: str, field: str, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


def frame_of(rows: Sequence[Mapping[str, Any]], fields: Iterable[Field], where: str = "rows") -> pl.DataFrame:
    """A table of the columns that some fields read, with one type each whatever the values are.

    Args:
        rows: a mapping of columns to values each; other columns are ignored.
        fields: whose columns are read.
        where: what the request calls its rows, for errors: `where[3].price`.

    Errors:
        RequestError: a column that a row lacks, or a value that its field cannot have.

    >>> from fieldwise import Bag, Numeric
    >>> frame_of([{"tags": ["a", 1], "price": 2}], [Bag("tags"), Numeric("price")]).row(0)
    (['a', '1'], 2.0)
    """
    columns: dict[str, pl.Series] = {}
    for field in fields:
        if field.column not in columns:
            read, kind = _reader(field)
            cells = [_cell(row, field, read, f"{where}[{number}]") for number, row in enumerate(rows)]
            columns[field.column] = pl.Series(field.column, cells, dtype=kind)
    return pl.DataFrame(columns)


def values_of(row: Mapping[str, Any], fields: Iterable[Field], where: str) -> dict[str, Any]:
    """The cells of one row that some fields read, checked and in one type each, by column.

    Errors:
        RequestError: as in `frame_of`.

    >>> from fieldwise import Categorical, Numeric
    >>> values_of({"user": 7, "price": "2", "more": 1}, [Categorical("user"), Numeric("price")], "context")
    {'user': '7', 'price': 2.0}
    """
    found: dict[str, Any] = {}
    for field in fields:
        if field.column not in found:
            found[field.column] = _cell(row, field, _reader(field)[0], where)
    return found


def _cell(row: Mapping[str, Any], field: Field, read: Callable[[Any], Any], where: str) -> Any:
    place = f"{where}.{field.column}"
    if field.column not in row:
        near = get_close_matches(field.column, [str(name)[:60] for name in islice(row, MOST_NAMES)], 1)
        found = f", found {_short(near[0])}" if near else ""
        raise RequestError(
            f"every field needs a value, or null where it is not known: {place} is missing{found}", place
        )
    value = row[field.column]
    if value is None:
        return None
    try:
        return read(value)
    except (TypeError, ValueError) as e:
        raise RequestError(f"{place} must be {e}, found {_short(value)}", place) from None


def _reader(field: Field) -> tuple[Callable[[Any], Any], pl.DataType]:
    """How a field's cells are read, and the type of its column."""
    if field.cell == "number":
        return _number, pl.Float64()
    if field.cell == "list" and field.max_length is not None:
        most = max(MOST_VALUES, field.max_length)
        return lambda value: cell_list(value, field.separator, newest=most, text=text_of), pl.List(pl.String)
    if field.cell == "list":
        return lambda value: _bounded(cell_list(value, field.separator, text=text_of)), pl.List(pl.String)
    return text_of, pl.String()


def text_of(value: Any) -> str:
    """A category's value as text, as tables have it: 3, 3.0 and "3" are one.

    Errors:
        TypeError, ValueError: what it must be, to end a sentence with.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number, text or null")
    if isinstance(value, str) and not _is_unicode(value):
        raise ValueError("text of whole characters (a half of a surrogate pair is none)")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise ValueError(f"a text of at most {MOST_CHARACTERS:,} characters")
    if value is None:
        raise TypeError(ONE_VALUE)
    return cell_text(value) or ""


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError("a number or null")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError("a number or null") from None
    if isinstance(value, str) and "_" in value:  # Python's own spelling, no table's
        raise ValueError("a number or null")
    if not abs(number) <= FLOAT32_MAX:
        raise ValueError("a finite number (of 32 bits) or null")
    return number


def _bounded(texts: list[str]) -> list[str]:
    if len(texts) > MOST_VALUES:
        raise ValueError(f"a list of at most {MOST_VALUES:,} values")
    return texts


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _short(value: Any) -> str:
    if isinstance(value, str):
        value = value[:60]
    text = repr(value) if isinstance(value, (str, int, float)) else SHORT.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


SHORT = Repr()  # for values of any size and depth
SHORT.maxlist = SHORT.maxdict = 20
