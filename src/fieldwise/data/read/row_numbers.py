"""Row numbers in errors: of a part of a table in the whole one, and as files and lines of the text it came from."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np

from fieldwise.data.read import arrow_files, file_listing
from fieldwise.data.read.file_listing import find_files, kind_of
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import DataError, SchemaError

_ROW = re.compile(r"row (\d+) \(counting from 0\)")


def naming_lines(
    data: str | Path | None, text: TextFormat | None = None
) -> AbstractContextManager[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Rows of a single Parquet or other binary file stay rows, rows of several are named with their
    file. None: a table that was not read from a file.
    """
    if data is None:
        return nullcontext()
    path = Path(data)
    text_format = text or TextFormat()
    return _locating_rows(lambda row: _place_in_files(row, path, text_format))


def renumbering_rows(kept: Sequence[int] | np.ndarray | None) -> AbstractContextManager[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    `kept` are the rows' numbers in the whole table, None if all are kept.
    """
    if kept is None:
        return nullcontext()
    return _locating_rows(lambda row: f"row {kept[row]} (counting from 0)")


def counting_from(first: int) -> AbstractContextManager[None]:
    """A context in which errors about a row of a slice name its row in the whole table."""
    return _locating_rows(lambda row: f"row {first + row} (counting from 0)")


@contextmanager
def _locating_rows(place_of: Callable[[int], str | None]) -> Iterator[None]:
    """A context in which errors name a row by `place_of` its number, or are left as they are if that is None."""
    try:
        yield
    except (DataError, SchemaError) as e:
        row = _ROW.search(str(e))
        if row is None or type(e) not in (DataError, SchemaError):
            raise
        place = place_of(int(row[1]))
        if place is None:
            raise
        raise type(e)(_ROW.sub(lambda _: place, str(e), count=1)) from None


def _place_in_files(row: int, path: Path, text: TextFormat) -> str | None:
    """Where a row of a table of files stands: a line of text, a row of one of several binary files, or None."""
    for file in find_files(path):
        if kind_of(file) == "delimited text":
            line, rows = _line_of(row, file, text)
            if line is not None:
                return f"line {line} of {file}"
            row -= rows
        elif file_listing.is_many(path):
            rows = arrow_files.count_rows(file)
            if row < rows:
                return f"row {row} (counting from 0) of {file}"
            row -= rows
    return None


def _line_of(row: int, file: Path, text: TextFormat) -> tuple[int | None, int]:
    """The line at which a row of a text file begins, or None if it has fewer rows; and the rows before it."""
    source = text.source(file)
    lines = (line.decode("utf-8-sig", "replace") for line in source.lines())
    records = csv.reader(lines, delimiter=text.separator_of(file), skipinitialspace=True)
    line = source.first_line
    width = 0
    rows = 0
    is_header = text.columns is None
    for record in records:
        width = width or len(record)
        # Blank lines at the start and end are no rows, but in a single column.
        if record or width == 1:
            if rows == row and not is_header:
                return line, rows
            if not is_header:
                rows += 1
            is_header = False
        # Quoted line ends are counted, so that an editor finds the place.
        line = source.first_line + records.line_num
    return None, rows
