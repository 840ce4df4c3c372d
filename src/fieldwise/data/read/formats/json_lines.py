"""JSON Lines: a JSON object on every line, whose keys are columns."""

import codecs
import json
from collections.abc import Iterable
from itertools import chain
from typing import IO, Any, NoReturn

import polars as pl

from fieldwise.data.read.formats.line_files import LineFiles
from fieldwise.data.read.formats.table_files import RowsWriting
from fieldwise.data.read.text_stream import ByteSource
from fieldwise.errors import DataError

_TYPES: dict[type, pl.DataType] = {
    bool: pl.Boolean(),
    int: pl.Int64(),
    float: pl.Float64(),
    str: pl.String(),
}
_NO_ENTRIES = pl.List(pl.Null())
"""The type of lists none of which has an entry."""
_END_OF_INTEGERS = 2**63
_SHOWN_CHARACTERS = 60
"""Of a value that an error quotes."""


class JsonLinesWriting(RowsWriting):
    """Writes an object for each row."""

    def add(self, frame: pl.DataFrame, file: IO[bytes]) -> None:
        frame.write_ndjson(file)


class JsonLinesFiles(LineFiles):
    """Files of JSON Lines: numbers, texts, truth values and lists of them; a key that a line lacks is null."""

    name = "JSON Lines"
    suffixes = (".jsonl", ".ndjson")
    written_suffixes = suffixes
    writing = JsonLinesWriting
    memory_per_byte = 4  # every value is written with its key

    def _new_columns(self) -> "_JsonColumns":
        return _JsonColumns()

    def _read(self, source: ByteSource) -> pl.DataFrame:
        return read_json_lines(source)


def read_json_lines(source: ByteSource) -> pl.DataFrame:
    """Read JSON Lines: a column for each key of any line, in the order of the first lines that have them.

    Errors:
        DataError: no line at all, a line that is no JSON object or has a key twice, a value or a
            column that has no type: file and line are named.
    """
    rows = _rows(source)
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        dtype = _type_of(values)
        if dtype is None:
            _refuse_value(name, values, pl.Null(), source)
        columns.append(pl.Series(name, values, dtype=dtype))
    return pl.DataFrame(columns)


def _rows(source: ByteSource) -> list[dict[str, Any]]:
    """The objects of all lines.

    Python's own reader: that of Polars takes any one of a key's values, writes numbers as text
    where a column has both, and names no line. It takes half of the time.
    """
    text = b"".join(source.chunks()).removesuffix(b"\n")
    if source.first_line == 1:
        text = text.removeprefix(codecs.BOM_UTF8)
    if not text:
        raise DataError(f"{source.path} is empty: JSON Lines have one object per row")
    decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)
    rows = []
    for number, line in enumerate(text.split(b"\n"), source.first_line):
        try:
            row = decoder.decode(line.decode("utf-8"))
            if b"\\u" in line:
                json.dumps(row, ensure_ascii=False).encode("utf-8")  # fails for half a character
        except UnicodeDecodeError as e:
            raise DataError(
                f"JSON Lines must be in UTF-8: {source.path} line {number} holds the byte 0x{line[e.start]:02x}; "
                "convert the file"
            ) from None
        except (ValueError, RecursionError) as e:
            reason = "it is blank" if not line.strip() else str(e)
            raise DataError(
                f"every line must be one JSON object: {source.path} line {number} is not ({reason}); correct it"
            ) from None
        if not isinstance(row, dict) or not row:
            raise DataError(
                f"every line must be one JSON object with a key: {source.path} line {number} is {_shown(row)}; "
                "correct it"
            )
        rows.append(row)
    return rows


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose keys must differ."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {repeated!r} stands twice")
    return values


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"JSON has no {word}: write null")


class _JsonColumns:
    """The columns of JSON Lines: every key of any line, with the type that holds all of its values.

    >>> from pathlib import Path
    >>> columns = _JsonColumns()
    >>> first, second = pl.DataFrame({"a": [1]}), pl.DataFrame({"a": [2.5], "b": ["x"]})
    >>> for frame in (first, second):
    ...     columns.add(frame, ByteSource(path=Path("a.jsonl")))
    >>> columns.table(first).rows(named=True)
    [{'a': 1.0, 'b': None}]
    """

    def __init__(self) -> None:
        self._types: dict[str, pl.DataType] = {}

    def add(self, frame: pl.DataFrame, source: ByteSource) -> None:
        for name, dtype in frame.schema.items():
            known = self._types.get(name, pl.Null())
            wider = _wider(known, dtype)
            if wider is None:
                _refuse_value(name, frame.get_column(name).to_list(), known, source)
            self._types[name] = wider

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        known = frame.schema
        columns = []
        for name, dtype in self._types.items():
            column = pl.col(name) if name in known else pl.lit(None).alias(name)
            # Of lists without any entry nothing tells a type.
            columns.append(column.cast(pl.List(pl.String()) if dtype == _NO_ENTRIES else dtype))
        return frame.select(columns)


def _type_of(values: Iterable[Any]) -> pl.DataType | None:
    """The type of values or of a list's entries; None if there is none that holds all."""
    present = [value for value in values if value is not None]
    kinds = set(map(type, present))
    if kinds == {list}:
        inner = _type_of(chain.from_iterable(present))
        return None if inner is None else pl.List(inner)
    if int in kinds and not all(_fits(value) for value in present):
        return None
    if kinds == {int, float}:
        return pl.Float64()
    if len(kinds) > 1:
        return None
    return _TYPES.get(kinds.pop()) if kinds else pl.Null()


def _fits(value: Any) -> bool:
    """Whether a value is no whole number of more than 64 bits."""
    return not isinstance(value, int) or -_END_OF_INTEGERS <= value < _END_OF_INTEGERS


def _wider(known: pl.DataType, dtype: pl.DataType) -> pl.DataType | None:
    """The type that holds the values of two; None if there is none."""
    if dtype in (known, pl.Null):
        return known
    if known == pl.Null:
        return dtype
    if {known, dtype} == {pl.Int64(), pl.Float64()}:
        return pl.Float64()
    if isinstance(known, pl.List) and isinstance(dtype, pl.List):
        inner = _wider(known.inner, dtype.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    return None


def _refuse_value(
    name: str, values: Iterable[Any], known: pl.DataType, source: ByteSource
) -> NoReturn:
    """Raise an error that names the line of the first of a key's values that has no type, or not the others'.

    `known` is the type of the values before them.
    """
    rule = (
        "values of JSON Lines must be numbers of 64 bits, texts, true, false, null or lists of them"
    )
    remedy = "write a key for each part of an object, and a long number as text"
    for line, value in enumerate(values, source.first_line):
        dtype = _type_of([value])
        wider = None if dtype is None else _wider(known, dtype)
        if wider is not None:
            known = wider
            continue
        if dtype is not None:
            rule = "the values of a key must be of one type"
            remedy = f"lines before it hold {known}; convert them"
        raise DataError(
            f"{rule}, but key {name!r} at {source.path} line {line} holds {_shown(value)}: {remedy}"
        )
    raise AssertionError("a value was refused")


def _shown(value: Any) -> str:
    """A value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
