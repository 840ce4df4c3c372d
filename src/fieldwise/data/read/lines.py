"""Translating row numbers in errors to files and line numbers of the text that a table came from."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from fieldwise.data.read.arrow_files import count_rows
from fieldwise.data.read.delimited import TextFormat
from fieldwise.data.read.file_listing import find_files, is_many, kind_of
from fieldwise.errors import DataError, SchemaError

_ROW = re.compile(r"row (\d+) \(counting from 0\)")


def naming_lines(data: str | Path | None, text: TextFormat | None = None) -> AbstractContextManager[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Rows of a single Parquet or other binary file stay rows, rows of several are named with their file. None: a table
    that is no user's file.
    """
    text, path = text or TextFormat(), None if data is None else Path(data)

    def line(row: int) -> str | None:
        for file in [] if path is None else find_files(path):
            if kind_of(file) == "delimited text":
                lines = (line.decode("utf-8-sig", "replace") for line in text.source(file).lines())
                records = csv.reader(lines, delimiter=text.separator_of(file))
                start, width, left = 1, 0, row + (text.columns is None)  # with the header
                for record in records:
                    width = width or len(record)
                    if record or width == 1:  # blank lines at the start and end are no rows, but in a single column
                        if left == 0:
                            return f"line {start} of {file}"
                        left -= 1
                    start = records.line_num + 1  # quoted line ends are counted, so that an editor finds the place
                row = left
            elif path is not None and is_many(path):
                rows = count_rows(file)
                if row < rows:
                    return f"row {row} (counting from 0) of {file}"
                row -= rows
        return None

    return _changed(line)


def renumbering_rows(kept: Sequence[int] | np.ndarray | None) -> AbstractContextManager[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    `kept` are the rows' numbers in the whole table, None if all are kept.
    """
    return _changed(lambda row: None if kept is None else f"row {kept[row]} (counting from 0)")


def counting_from(first: int) -> AbstractContextManager[None]:
    """A context in which errors about a row of a slice name its row in the whole table."""
    return _changed(lambda row: f"row {first + row} (counting from 0)")


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
