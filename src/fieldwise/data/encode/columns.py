"""Converting a table's column to text, numbers, lists or codes of its texts, vectorized and with unified types.

A value has one text, whatever the type of its column: an id 12 of an integer column, 12.0 of a
pandas frame and "12" in JSON are `12`; a number of 32 bits has the text of the same number in 64; a
time does not depend on its column's unit.

Letters: N rows, K different texts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from polars.datatypes import DataTypeClass

from fieldwise.data.encode.numbers import (
    is_mark,
    marked_numbers,
    number_formats,
    plain_numbers,
    without_marked_numbers,
)
from fieldwise.data.encode.portable import FLOAT32_MAX, LARGEST_WHOLE, WORD, WORDS
from fieldwise.errors import DataError, Row
from fieldwise.schema import Field, Numeric
from fieldwise.schema.number_format import MISSING_MARKS

SHOWN_NUMBERS = 3
"""Of a vector, in its text."""


def as_text(column: pl.Series) -> pl.Series:
    """Values as text; null, NaN and empty text become null. Whole floats lose their `.0`; booleans are lower case.

    Durations are their seconds. Times have no zeros at the end of a fraction, and a midnight is its
    date.

    >>> as_text(pl.Series([1.0, 2.5, None])).to_list()
    ['1', '2.5', None]
    >>> from datetime import datetime
    >>> times = [datetime(2026, 1, 2), datetime(2026, 1, 2, 8, 30, 0, 250_000)]
    >>> as_text(pl.Series(times, dtype=pl.Datetime("ns"))).to_list()
    ['2026-01-02', '2026-01-02 08:30:00.25']
    """
    kind = column.dtype
    if kind.is_nested() or kind in (pl.Object, pl.Binary):
        raise DataError(
            f"a cell must hold one value: column {column.name!r} is of type {kind}; declare it a Bag or a Sequence, "
            "or convert it to text"
        )
    if kind == pl.String and not (column == "").any():
        # a request has many columns with few rows, for which a polars query would dominate the cost
        return column
    return (
        column.to_frame("cell").select(_text(pl.col("cell"), kind)).to_series().rename(column.name)
    )


def as_number(
    column: pl.Series,
    what: str,
    *,
    form: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
    remedy: str = "declare the field Categorical",
) -> pl.Series:
    """Values as float64, null where missing (null, NaN, empty text, a mark); errors name the column by `what`.

    Dates and times are seconds: since 1970, since midnight, or the duration. `form` is the format
    of numbers in text, and `missing` has the marks of missing values. `remedy` is what to do with a
    text that is no number.

    >>> as_number(pl.Series(["1", " 2.5 ", ""]), "column 'price'").to_list()
    [1.0, 2.5, None]
    """
    kind = column.dtype
    if kind.is_nested() or kind in (pl.Object, pl.Binary):
        raise DataError(
            f"a number is needed: {what} is of type {kind}; declare the field otherwise, or fix the column"
        )
    if kind in (pl.String, pl.Categorical, pl.Enum):
        number, bad = text_numbers(column, form, missing)
        if bad.any():
            row = int(bad.arg_max() or 0)
            ways = number_formats(column.cast(pl.String).str.strip_chars().replace("", None))
            fix = f"fix the cell, leave it empty, or {remedy}"
            if form is not None:
                fix = f"fix the cell, leave it empty, or change the field's number_format {form!r}"
            elif ways:
                named = " and in ".join(f"number_format = {way!r}" for way in ways)
                fix = f"every cell is a number in {named}: set it"
            raise DataError(
                f"only numbers are allowed: {what} holds the text {column[row]!r} in ",
                Row(row),
                f"; {fix}",
            )
    elif kind == pl.Duration:
        number = duration_seconds(column)
    elif kind.is_temporal():
        seconds = column.cast(pl.Int64) // 10**9 if kind == pl.Time else column.dt.epoch("s")
        number = seconds.cast(pl.Float64)
    else:
        number = column.cast(pl.Float64)
    number = without_marked_numbers(number.fill_nan(None), missing)
    beyond = (number.abs() > FLOAT32_MAX).fill_null(False)
    if beyond.any():
        row = int(beyond.arg_max() or 0)
        raise DataError(
            f"numbers must be finite and at most {FLOAT32_MAX:.1e}: {what} holds {column[row]!r} in ",
            Row(row),
            "; fix the cell or leave it empty",
        )
    return number


def field_numbers(f: Numeric, column: pl.Series, missing: Sequence[str]) -> pl.Series:
    """The numbers of a field's column, see `as_number`."""
    what = f"column {f.column!r} (field {f.name!r})"
    return as_number(column, what, form=f.number_format, missing=missing)


def text_numbers(
    text: pl.Series, form: str | None, missing: Sequence[str]
) -> tuple[pl.Series, pl.Series]:
    """Text cells as float64, null for those that are missing or wrong; and which are wrong: no number and no mark.

    >>> [one.to_list() for one in text_numbers(pl.Series(["1", "NA", "x", ""]), None, MISSING_MARKS)]
    [[1.0, None, None, None], [False, False, True, False]]
    """
    stripped = text.cast(pl.String).str.strip_chars().replace("", None)
    number = (stripped if form is None else plain_numbers(stripped, form)).cast(
        pl.Float64, strict=False
    )
    bad = stripped.is_not_null() & number.is_null()
    if bad.any():
        bad &= ~is_mark(stripped, missing)
    return number, bad


def as_list(column: pl.Series, separator: str, *, newest: int | None = None) -> pl.Series:
    """Cells as lists of text without null or empty values, of these the `newest`; a missing cell is an empty list.

    >>> as_list(pl.Series(["a| b", None, "|"]), "|").to_list()
    [['a', 'b'], [], []]
    >>> as_list(pl.Series(["The Lives of Others (2006)"]), WORDS).to_list()
    [['the', 'lives', 'of', 'others', '2006']]
    """
    kind = column.dtype
    if isinstance(kind, (pl.List, pl.Array)):
        inner = kind.inner
        if inner.is_nested() or inner in (pl.Object, pl.Binary):
            raise DataError(
                f"a cell must be a list of plain values: column {column.name!r} is of type {kind}; flatten it"
            )
        lists = column.cast(pl.List(inner)).list.eval(_text(pl.element(), inner))
    elif separator == WORDS:
        lists = as_text(column).str.to_lowercase().str.extract_all(WORD)
    else:
        lists = as_text(column).str.split(separator)
    cleaned = lists.list.eval(pl.element().str.strip_chars().replace("", None)).list.drop_nulls()
    cleaned = cleaned if newest is None else cleaned.list.tail(newest)
    return (
        cleaned.fill_null(pl.lit([], dtype=pl.List(pl.String))) if cleaned.null_count() else cleaned
    )


def vector_texts(column: pl.Series) -> pl.Series:
    """Vectors as short texts: their first numbers, and how many there are; a missing one is null.

    >>> vector_texts(pl.Series([[0.25, 1.0, -3.5, 2.0], [0.5], None])).to_list()
    ['[0.25, 1, -3.5, … 4 numbers]', '[0.5]', None]
    """
    texts: list[str | None] = []
    for cell in column.to_list():
        if not cell:
            texts.append(None)
            continue
        first = [f"{number:.3g}" for number in cell[:SHOWN_NUMBERS]]
        rest = [f"… {len(cell):,} numbers"] if len(cell) > SHOWN_NUMBERS else []
        texts.append(f"[{', '.join([*first, *rest])}]")
    return pl.Series(column.name, texts, dtype=pl.String)


def stable_hash(texts: pl.Series, buckets: int) -> np.ndarray:
    """FNV-1a (64 bit) of each text's UTF-8 bytes, modulo `buckets` [N]: equal on every machine, in every version."""
    lengths = texts.str.len_bytes().to_numpy().astype(np.int64)
    letters = np.frombuffer(texts.str.join("").item().encode(), dtype=np.uint8).astype(np.uint64)
    starts = np.cumsum(lengths) - lengths
    value = np.full(len(texts), 0xCBF29CE484222325, dtype=np.uint64)
    prime = np.uint64(0x100000001B3)
    longer = np.arange(len(texts))
    # one step per byte position, for all texts of that length
    for k in range(int(lengths.max(initial=0))):
        longer = longer[lengths[longer] > k]
        value[longer] = (value[longer] ^ letters[starts[longer] + k]) * prime
    return (value % np.uint64(buckets)).astype(np.int64)


def empty_as_null(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """The table in which empty texts and NaN of some columns are null, as they are missing values (`as_text`).

    >>> empty_as_null(pl.DataFrame({"item": ["a", "", " "]}), "item").get_column("item").to_list()
    ['a', None, ' ']
    """
    changed = []
    for name in columns:
        column = frame.get_column(name)
        if column.dtype.is_float():
            changed.append(column.fill_nan(None))
        elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
            is_present = (column.cast(pl.String) != "").fill_null(value=False)
            changed.append(column.zip_with(is_present, column.clear(len(column))))
    return frame.with_columns(changed)


def missing_as_null(
    frame: pl.DataFrame, fields: Iterable[Field], missing: Sequence[str]
) -> pl.DataFrame:
    """The table in which the cells that fields read as missing are null: empty ones, NaN, and marks among numbers.

    A column that a field of categories reads has no marks.

    >>> from fieldwise import Bag, Categorical, Numeric
    >>> frame = pl.DataFrame({"os": ["NA", ""], "price": ["NA", " "], "tags": [[], ["a"]]})
    >>> missing_as_null(frame, [Categorical("os"), Numeric("price"), Bag("tags")], ["NA"]).rows()
    [('NA', None, None), (None, None, ['a'])]
    """
    cells: dict[str, set[str]] = {}
    for f in fields:
        cells.setdefault(f.column, set()).add(f.cell)
    changed = empty_as_null(frame, *cells)
    for name, kinds in cells.items():
        column = changed.get_column(name)
        is_text = column.dtype in (pl.String, pl.Categorical, pl.Enum)
        if isinstance(column.dtype, (pl.List, pl.Array)):
            is_missing = column.list.len() == 0 if column.dtype == pl.List else column.is_null()
        elif is_text and "category" not in kinds:
            texts = column.cast(pl.String)
            is_missing = texts.str.strip_chars() == ""
            if kinds == {"number"}:
                is_missing |= is_mark(texts, missing)
        elif column.dtype.is_numeric() and kinds == {"number"}:
            is_missing = column.cast(pl.Float64).is_in(marked_numbers(tuple(missing)))
        else:
            continue
        is_present = (~is_missing).fill_null(value=False)
        changed = changed.with_columns(column.zip_with(is_present, column.clear(len(column))))
    return changed


def duration_seconds(durations: pl.Series) -> pl.Series:
    """The seconds of durations, as float64.

    >>> from datetime import timedelta
    >>> duration_seconds(pl.Series([timedelta(milliseconds=300)])).to_list()
    [0.3]
    """
    cells = durations.to_frame("cell")
    return (
        cells.select(_seconds(pl.col("cell"), durations.dtype)).to_series().rename(durations.name)
    )


def _seconds(duration: pl.Expr, kind: pl.DataType | DataTypeClass) -> pl.Expr:
    microseconds = duration.dt.total_microseconds()
    by_microseconds = _quotient(microseconds, 10**6)
    if not isinstance(kind, pl.Duration) or kind.time_unit != "ns":
        return by_microseconds
    nanoseconds = duration.dt.total_nanoseconds()
    return (
        pl.when(nanoseconds % 1000 == 0)
        .then(by_microseconds)
        .otherwise(_quotient(nanoseconds, 10**9))
    )


def _quotient(whole: pl.Expr, divisor: int) -> pl.Expr:
    """Whole numbers divided by one, rounded once; Polars multiplies by the reciprocal of what is no column."""
    return whole.cast(pl.Float64) / (whole * 0 + divisor)


_OFFSET = r"[+-]\d\d:\d\d(?::\d\d)?"


def _text(cell: pl.Expr, kind: pl.DataType | DataTypeClass) -> pl.Expr:
    if kind.is_float():
        return _float_text(cell.cast(pl.Float64).fill_nan(None))
    if kind == pl.Duration:
        return _float_text(_seconds(cell, kind))
    if kind == pl.Datetime:
        # Polars writes as many digits of the fraction as the unit has.
        without_zero_fraction = cell.cast(pl.String).str.replace(rf"\.0+({_OFFSET})?$", "$1")
        shortest = without_zero_fraction.str.replace(rf"(\.\d*[1-9])0+({_OFFSET})?$", "$1$2")
        return shortest.str.strip_suffix(" 00:00:00")
    if kind == pl.Time:
        return cell.dt.strftime("%H:%M:%S%.9f").str.replace(r"\.?0+$", "")
    text = cell.cast(pl.String)
    if isinstance(kind, pl.Decimal) and kind.scale:
        text = text.str.strip_chars_end("0").str.strip_chars_end(".")
    return pl.when(text != "").then(text)


def _float_text(number: pl.Expr) -> pl.Expr:
    """The text of numbers of 64 bits: of those that 32 bits hold exactly, the shortest that names them among these."""
    short = number.cast(pl.Float32)
    is_short = short.cast(pl.Float64) == number
    named = pl.when(is_short).then(short.cast(pl.String).cast(pl.Float64)).otherwise(number)
    # pandas converts ids to floats if a value is missing.
    is_whole = number.is_finite() & (number == number.round()) & (number.abs() < LARGEST_WHOLE)
    return (
        pl.when(is_whole)
        .then(number.cast(pl.Int64, strict=False).cast(pl.String))
        .otherwise(named.cast(pl.String))
    )


LARGEST_TABLE = 1 << 22  # entries of a lookup table that is larger than the rows


@dataclass(frozen=True, eq=False)
class DictionaryColumn:
    """A coded column: cell n holds `texts[codes[n]]`, or nothing if `codes[n]` is K, the number of texts.

    The texts are distinct, in no order; a text may be unused.
    """

    codes: np.ndarray
    texts: pl.Series

    def counts(self) -> np.ndarray:
        """The number of cells with each text [K], int64."""
        return np.bincount(self.codes, minlength=len(self.texts) + 1)[: len(self.texts)]

    def look_up(self, of_text: np.ndarray, absent: int) -> np.ndarray:
        """The value of `of_text` [K] for each cell's text, and `absent` for a missing cell: [N], of its type."""
        return np.append(of_text, of_text.dtype.type(absent)).take(self.codes)


def coded(column: pl.Series) -> DictionaryColumn:
    """A column's cells, coded by their texts (see `as_text`), which are only made once per distinct value.

    >>> cells = coded(pl.Series([7, None, 8, 7]))
    >>> cells.texts.to_list(), cells.codes.tolist()
    (['7', '8'], [0, 2, 1, 0])
    """
    kind = column.dtype
    as_text(column.clear())  # raises if cells are not single values
    if kind.is_integer() and len(column) > column.null_count():
        low, high = (int(edge) for edge in (column.min(), column.max()))  # type: ignore[arg-type]
        # A lookup table is faster than hashing, up to about eight times the size of the rows.
        longest = max(len(column), min(8 * len(column), LARGEST_TABLE), 1024)
        if high - low <= longest and low >= -(2**63) and high < 2**63:
            offset = (column.cast(pl.Int64) - low).fill_null(high - low + 1).to_numpy()
            result = np.bincount(offset, minlength=high - low + 2)[:-1] > 0
            present = np.flatnonzero(result)
            ranks = np.append(np.cumsum(result, dtype=np.int32) - 1, np.int32(len(present)))
            return DictionaryColumn(ranks.take(offset), pl.Series(present + low).cast(pl.String))
    if kind.is_integer() or kind.is_float() or kind.is_temporal():
        # Each distinct value becomes text once; values with the same text (such as 0.0 and -0.0)
        # share its code.
        # missing, and not found by a join
        column = column.fill_nan(None) if kind.is_float() else column
        value = column.unique().rename("value")
        inner = coded(as_text(value))
        index = pl.DataFrame([value, pl.Series("code", inner.codes)])
        cells = column.to_frame("value").join(
            index, on="value", how="left", maintain_order="left", nulls_equal=True
        )
        return DictionaryColumn(cells.get_column("code").to_numpy(), inner.texts)
    text = as_text(column)
    # Separate categories: the values of one column are never mixed with those of another.
    code = text.cast(pl.Categorical(pl.Categories.random())).to_physical()
    count = 0 if code.null_count() == len(code) else int(code.max()) + 1  # type: ignore[arg-type]
    codes = code.fill_null(count).to_numpy()
    holder = np.empty(count + 1, dtype=np.uint32)
    holder[codes] = np.arange(len(codes), dtype=np.uint32)  # the index of some cell with each text
    return DictionaryColumn(codes, text.gather(holder[:count]))
