"""Translating row numbers in errors to files and line numbers of the text that a table came from."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fieldwise.data.read.bytesource import stream_source
from fieldwise.data.read.found import find_files, is_many
from fieldwise.data.read.kinds import kind_of
from fieldwise.data.read.one_file import text_separator
from fieldwise.data.read.pieces import count_rows
from fieldwise.errors import DataError, SchemaError

__all__ = ["counting_from", "naming_lines", "renumbering_rows"]

_ROW = re.compile(r"row (\d+) \(counting from 0\)")


@contextmanager
def naming_lines(
    path: Path, *, separator: str | None = None, encoding: str = "utf-8", columns: Sequence[str] | None = None
) -> Iterator[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Args:
        path: the file, folder or pattern that the table was read from; rows of a single Parquet or other binary file
            stay rows, rows of several are named with their file.
        separator: as given to `as_table`.
        encoding: as given to `as_table`.
        columns: as given to `as_table`.
    """

    def line(row: int) -> str | None:
        many = is_many(path)
        for file in find_files(path):
            found, rows = _line_or_rows(file, row, separator, encoding, columns)
            if found is not None:
                return f"line {found} of {file}"
            if rows is None and many:
                rows = count_rows(file)
                if row < rows:
                    return f"row {row} (counting from 0) of {file}"
            row -= rows or 0
        return None

    with _changed(line):
        yield


@contextmanager
def renumbering_rows(kept: Sequence[int] | np.ndarray | None) -> Iterator[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    Args:
        kept: row numbers of the filtered rows in the whole table; None if all rows are kept.
    """

    def whole(row: int) -> str | None:
        return None if kept is None else f"row {kept[row]} (counting from 0)"

    with _changed(whole):
        yield


@contextmanager
def counting_from(first: int) -> Iterator[None]:
    """A context in which errors about a row of a slice name its row in the whole table.

    Args:
        first: row number of the slice's first row in the whole table.
    """
    with _changed(lambda row: f"row {first + row} (counting from 0)"):
        yield


def _line_or_rows(
    path: Path, row: int, separator: str | None, encoding: str, columns: Sequence[str] | None
) -> tuple[int | None, int | None]:
    """The line, counted from 1, at which a row begins, or None and the number of rows; both None if not delimited text.

    Quoted line ends are counted, so that an editor finds the place.
    """
    if kind_of(path) != "delimited text":
        return None, None
    source = stream_source(path, encoding)
    lines = (line.decode("utf-8-sig", "replace") for line in source.lines())
    records = csv.reader(lines, delimiter=separator or text_separator(path, source, columns))
    wanted, start, width = row + (columns is None), 1, 0
    for record in records:
        width = width or len(record)
        if record or width == 1:  # blank lines at the start and end are no rows, but in a single column
            if wanted == 0:
                return start, None
            wanted -= 1
        start = records.line_num + 1
    return None, row - wanted


@contextmanager
def _changed(place: Callable[[int], str | None]) -> Iterator[None]:
    try:
        yield
    except (DataError, SchemaError) as e:
        found = _ROW.search(str(e))
        told = None if found is None or type(e) not in (DataError, SchemaError) else place(int(found[1]))
        if told is None:
            raise
        raise type(e)(_ROW.sub(lambda _: told, str(e), count=1)) from None
