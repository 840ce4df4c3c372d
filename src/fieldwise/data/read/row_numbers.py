"""The rows that errors name: of a part of a table in the whole one, and as lines of the file they came from."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fieldwise.data.read import arrow_files, file_listing
from fieldwise.data.read.file_listing import find_files, kind_of
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import FieldwiseError, Row


@contextmanager
def naming_lines(data: str | Path | None, text: TextFormat | None = None) -> Iterator[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Rows of a single Parquet or other binary file stay rows, rows of several are named with their
    file. None: a table that was not read from a file.
    """
    try:
        yield
    except FieldwiseError as e:
        if data is not None and e.row is not None and e.row.file is None:
            _add_file(e.row, Path(data), text or TextFormat())
        raise


@contextmanager
def renumbering_rows(kept: Sequence[int] | np.ndarray | None) -> Iterator[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    `kept` are the rows' numbers in the whole table, None if all are kept.
    """
    try:
        yield
    except FieldwiseError as e:
        if kept is not None and e.row is not None:
            e.row.number = int(kept[e.row.number])
        raise


@contextmanager
def counting_from(first: int) -> Iterator[None]:
    """A context in which errors about a row of a slice name its row in the whole table."""
    try:
        yield
    except FieldwiseError as e:
        if e.row is not None:
            e.row.number += first
        raise


def _add_file(row: Row, path: Path, text: TextFormat) -> None:
    """Add to a row of a table of files its line if it is text, or which of several binary files holds it."""
    number = row.number
    for file in find_files(path):
        if kind_of(file) == "delimited text":
            line, rows = _line_of(number, file, text)
            if line is not None:
                row.file = str(file)
                row.line = line
                return
            number -= rows
        elif file_listing.is_many(path):
            rows = arrow_files.count_rows(file)
            if number < rows:
                row.file = str(file)
                row.number = number
                return
            number -= rows


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
