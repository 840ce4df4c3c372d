"""Rows of requests as tables, and tables as values of requests and answers.

A request's cells are JSON: text, numbers, true and false, null, and lists of these for bags and
sequences. Every cell is checked, and errors name its place.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from itertools import islice
from reprlib import Repr
from typing import Any
from uuid import UUID

import polars as pl
from polars.exceptions import PanicException

from fieldwise.data.encode.columns import as_list, as_text, duration_seconds
from fieldwise.data.encode.portable import (
    ONE_VALUE,
    Marks,
    cell_number,
    cell_text,
    cell_texts,
    marks_of,
    vector_numbers,
)
from fieldwise.errors import DataError, Row
from fieldwise.schema import Field
from fieldwise.schema.fields import LONGEST_VECTOR
from fieldwise.schema.number_format import MISSING_MARKS, NumberFormat
from fieldwise.schema.schema import first_field_by_column

FAULTS = (Exception, PanicException)
"""What one request, row or file may raise; a panic of Polars is no `Exception`."""
MOST_SHOWN_NUMBERS = 32
"""Longer lists of floats, such as embeddings, are no part of an answer."""
MAX_LIST_VALUES = 1000
"""Maximum length of a bag; of a longer sequence the newest values are used."""
MAX_COMPARED_NAMES = 100
"""Names of a row that are searched for a similar one when a field is missing."""
MAX_TEXT_CHARACTERS = 10_000
MAX_SHOWN_CHARACTERS = 60
"""Of a value or a name in an error."""
NO_MARKS = marks_of(())
CELL_TYPES: Mapping[str, Any] = {
    "category": pl.String,
    "number": pl.Float64,
    "list": pl.List(pl.String),
    "vector": pl.List(pl.Float64),
}
"""The type of a request's column."""
NO_ITEMS = "this server has no items to recommend: start it with --log, --items or --index"


class RequestError(DataError):
    """A request that cannot be answered; `field` names the invalid part, `status` is the HTTP status."""

    def __init__(self, message: str, field: str, status: int = 422) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


def request_frame(
    rows: Sequence[Mapping[str, Any]],
    fields: Iterable[Field],
    where: str = "rows",
    *,
    missing: Sequence[str] = MISSING_MARKS,
) -> pl.DataFrame:
    """A table with the columns of these fields; a column's type does not depend on its values.

    `missing` has the marks of missing numbers (`Schema.missing`).

    >>> from fieldwise import Bag, Numeric
    >>> request_frame([{"tags": ["a", 1], "price": 2}], [Bag("tags"), Numeric("price")]).row(0)
    (['a', '1'], 2.0)
    """
    fields = tuple(fields)
    for number, row in enumerate(rows):
        _check_vectors_by_id(row, fields, f"{where}[{number}]")
    columns = []
    for field in first_field_by_column(fields).values():
        read = _reader(field, missing)
        cells = [
            _cell(row, field, read, f"{where}[{number}]", fields) for number, row in enumerate(rows)
        ]
        columns.append(pl.Series(field.column, cells, dtype=CELL_TYPES[field.cell]))
    return pl.DataFrame(columns)


def values_of(
    row: Mapping[str, Any],
    fields: Iterable[Field],
    where: str,
    *,
    missing: Sequence[str] = MISSING_MARKS,
) -> dict[str, Any]:
    """The cells of the one row of `request_frame`, by column, without a table.

    >>> from fieldwise import Categorical, Numeric
    >>> values_of({"user": 7, "price": "2", "more": 1}, [Categorical("user"), Numeric("price")], "context")
    {'user': '7', 'price': 2.0}
    """
    fields = tuple(fields)
    _check_vectors_by_id(row, fields, where)
    return {
        field.column: _cell(row, field, _reader(field, missing), where, fields)
        for field in first_field_by_column(fields).values()
    }


def _cell(
    row: Mapping[str, Any],
    field: Field,
    read: Callable[[Any], Any],
    where: str,
    fields: Sequence[Field],
) -> Any:
    """A cell, checked and converted by `read`; a RequestError if it is absent or invalid."""
    path = f"{where}.{field.column}"
    if field.column not in row:
        raise _absent_field(row, field, path, fields)
    value = row[field.column]
    if value is None:
        return None
    try:
        return read(value)
    except (TypeError, ValueError) as e:
        raise RequestError(f"{path} must be {e}, found {_short(value)}", path) from None


def _check_vectors_by_id(row: Mapping[str, Any], fields: Sequence[Field], where: str) -> None:
    """Check that a row has an id, and no vector, for each field that finds vectors by id; else a RequestError."""
    for field in fields:
        if field.vector_file is None:
            continue
        for name in (field.column, field.name):
            if isinstance(row.get(name), list):
                path = f"{where}.{name}"
                raise RequestError(
                    f"field {field.name!r} finds vectors by the id in {field.column!r}: {path} must be no list, found "
                    f"{_short(row[name])}; add the vector to the bundle's by Bundle.with_vectors",
                    path,
                )


def _absent_field(
    row: Mapping[str, Any], field: Field, path: str, fields: Sequence[Field]
) -> RequestError:
    # a name of another field is no wrong spelling of this one
    columns = {other.column for other in fields}
    names = [
        str(name)[:MAX_SHOWN_CHARACTERS]
        for name in islice(row, MAX_COMPARED_NAMES)
        if name not in columns
    ]
    similar = get_close_matches(field.column, names, 1)
    hint = f", found {_short(similar[0])}" if similar else ""
    return RequestError(
        f"every field needs a value, or null if it is unknown: {path} is missing{hint}", path
    )


def _reader(field: Field, missing: Sequence[str]) -> Callable[[Any], Any]:
    """The function that reads a field's cells."""
    if field.cell == "number":
        return partial(_number, form=field.number_format, marks=marks_of(tuple(missing)))
    if field.cell == "vector":
        return _vector
    if field.cell != "list":
        return text_of
    newest = None if field.max_length is None else max(MAX_LIST_VALUES, field.max_length)

    def texts(value: Any) -> list[str]:
        elements = cell_texts(value, field.separator, newest=newest, text=text_of)
        if newest is None and len(elements) > MAX_LIST_VALUES:
            raise ValueError(f"a list of at most {MAX_LIST_VALUES:,} values")
        return elements

    return texts


def _vector(value: Any) -> list[float]:
    """A vector's numbers; the errors are those of `text_of`."""
    if not isinstance(value, list) or not all(type(number) in (int, float) for number in value):
        raise TypeError("a list of numbers or null")
    if len(value) > LONGEST_VECTOR:
        raise ValueError(f"a list of at most {LONGEST_VECTOR:,} numbers")
    try:
        return vector_numbers(value)
    except (ValueError, OverflowError):
        raise ValueError("a list of finite numbers (of 32 bits) or null") from None


def text_of(value: Any) -> str:
    """A category's value as text, as in tables: 3, 3.0 and "3" are the same value.

    The message of its TypeError or ValueError is the end of a sentence, which says what the value
    must be.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number, text or null")
    if isinstance(value, str):
        _check_unicode(value)
        if len(value) > MAX_TEXT_CHARACTERS:
            raise ValueError(f"a text of at most {MAX_TEXT_CHARACTERS:,} characters")
    if value is None:
        raise TypeError(ONE_VALUE)
    return cell_text(value) or ""


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("valid Unicode text (without unpaired surrogates)") from None


def _number(value: Any, form: NumberFormat | None, marks: Marks) -> float | None:
    """A cell as a number, None for an empty text or a mark of a missing number; the errors are those of `text_of`."""
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError("a number or null")
    if isinstance(value, str):
        _check_unicode(value)
        expected = "a finite number" if form is None else f"a finite number in the format {form!r}"
    else:
        expected = "a finite number (of 32 bits)"
        marks = NO_MARKS  # such a number stays for a field that reads the column as a category
    try:
        number = cell_number(value, form, marks)
    except (ValueError, OverflowError):
        date_hint = _seconds_of_date(value) if isinstance(value, str) else ""
        raise ValueError(f"{expected} or null{date_hint}") from None
    if not math.isnan(number):
        return number
    if isinstance(value, float):
        raise ValueError(f"{expected} or null")
    return None


def _seconds_of_date(text: str) -> str:
    """What number models read for a date that was given as text, in brackets; empty for another text."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return ""
    seconds = cell_number(parsed, None, NO_MARKS)
    return f" (of a date its seconds since 1970, here {seconds:.0f})"


def _short(value: Any) -> str:
    if isinstance(value, str):
        value = value[:MAX_SHOWN_CHARACTERS]
    text = repr(value) if isinstance(value, (str, int, float)) else SHORT_REPR.repr(value)
    if len(text) > MAX_SHOWN_CHARACTERS:
        return f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."
    return text


SHORT_REPR = Repr()
"""Shortens values of any size and depth."""
SHORT_REPR.maxlist = 20
SHORT_REPR.maxdict = 20


def plain_table(frame: pl.DataFrame, *, first_row: int = 0) -> pl.DataFrame:
    """The table as models read it: times and decimals as text, durations as seconds, NaN as null.

    Errors name rows by number, of which the first is `first_row`.

    >>> plain_table(pl.DataFrame({"since": [date(2026, 1, 2)], "price": [float("nan")]})).row(0)
    ('2026-01-02', None)
    """
    return pl.DataFrame([_plain(column, first_row) for column in frame.iter_columns()])


def plain_value(value: Any) -> Any:
    """One value of a database driver, converted as by `plain_table`; values of other types are returned unchanged.

    >>> plain_value([Decimal("1.50"), float("nan"), date(2026, 1, 2)])
    ['1.5', None, '2026-01-02']
    """
    if isinstance(value, list):
        return [plain_value(element) for element in value]
    if isinstance(value, (float, Decimal)) and math.isnan(value):
        return None
    if isinstance(value, (date, time, timedelta, Decimal)):
        return _plain(pl.Series([value]), 0)[0]
    return str(value) if isinstance(value, UUID) else value


def shown_table(items: pl.DataFrame) -> pl.DataFrame:
    """The columns that answers can hold, as people read them, without nested and binary ones and vectors.

    A column with a list of more than 32 floats is one of vectors.
    Times, decimals and durations become texts, also within lists; NaN and infinite numbers become
    null.

    >>> items = pl.DataFrame({"since": [date(2026, 1, 2)], "rates": [[0.5, float("nan")]], "heads": [[[1.0], [2.0]]]})
    >>> shown_table(items).row(0, named=True)
    {'since': '2026-01-02', 'rates': [0.5, None]}
    """
    columns = [_shown_column(column) for column in items.iter_columns()]
    return pl.DataFrame([column for column in columns if column is not None])


def _shown_column(column: pl.Series) -> pl.Series | None:
    """A column as people read it; None if an answer cannot hold it."""
    dtype: Any = column.dtype
    is_list = isinstance(dtype, (pl.List, pl.Array))
    cell_type = dtype.inner if is_list else dtype
    if cell_type.is_nested() or cell_type in (pl.Binary, pl.Object):
        return None
    if cell_type == pl.Duration:
        texts = [_duration_texts(cell) for cell in column.to_list()]
        return pl.Series(column.name, texts, dtype=pl.List(pl.String) if is_list else pl.String)
    if not cell_type.is_float():
        return _plain(column, 0)
    if is_list:
        lists = column.cast(pl.List(cell_type))
        if int(lists.list.len().max() or 0) > MOST_SHOWN_NUMBERS:  # type: ignore[arg-type]
            return None
        finite = pl.when(pl.element().is_finite()).then(pl.element())
        return lists.list.eval(finite)
    return _where(column.is_finite(), column)


def _plain(column: pl.Series, first_row: int) -> pl.Series:
    """A column as models read it; errors name rows by number, of which the first is `first_row`."""
    dtype = column.dtype
    if dtype.is_float():
        is_infinite = column.is_infinite()
        if is_infinite.any():
            row = int(is_infinite.arg_max() or 0)
            raise DataError(
                f"numbers must be finite: column {column.name!r} holds {column[row]!r} in ",
                Row(first_row + row),
                "; correct the cell or leave it empty",
            )
        return column.fill_nan(None)
    if dtype == pl.Duration:
        return duration_seconds(column)
    if isinstance(dtype, (pl.List, pl.Array)):
        lists = column.cast(pl.List(dtype.inner))
        if dtype.inner.is_float():
            return lists.list.eval(pl.element().fill_nan(None))
        if _keeps_type(dtype.inner):
            return lists
        return _where(column.is_not_null(), as_list(lists, "|"))
    return column if _keeps_type(dtype) else as_text(column)


def _keeps_type(dtype: Any) -> bool:
    return bool(dtype.is_integer()) or dtype in (pl.String, pl.Boolean, pl.Null)


def _where(condition: pl.Series, values: pl.Series) -> pl.Series:
    """The values where a condition is true, else null."""
    return pl.select(pl.when(condition).then(values).alias(values.name)).to_series()


def _duration_texts(cell: Any) -> Any:
    """A duration, or a list of these, as text."""
    if isinstance(cell, list):
        return [_duration_texts(element) for element in cell]
    return None if cell is None else str(cell)
