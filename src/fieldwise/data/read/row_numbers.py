"""The rows that errors name: of a part of a table in the whole one, and as lines of the file they came from."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np

from fieldwise.data.read.file_listing import find_files, is_many
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import FieldwiseError, Row


@contextmanager
def naming_lines(data: str | Path | None, text: TextFormat | None = None) -> Iterator[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Rows of a single file that is no text stay rows, rows of several are named with their file.
    None: a table that was not read from a file.
    """
    try:
        yield
    except FieldwiseError as e:
        if data is not None and e.row is not None and e.row.file is None:
            _add_file(e.row, Path(data), text or TextFormat())
        raise


@contextmanager
def renumbering_rows(row_numbers: Sequence[int] | np.ndarray | None) -> Iterator[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    `row_numbers` are the rows' numbers in the whole table, None if all are kept.
    """
    try:
        yield
    except FieldwiseError as e:
        if row_numbers is not None and e.row is not None:
            e.row.number = int(row_numbers[e.row.number])
        raise


def counting_from(first: int) -> AbstractContextManager[None]:
    """A context in which errors about a row of a slice name its row in the whole table."""
    return renumbering_rows(range(first, sys.maxsize))


def _add_file(row: Row, path: Path, text: TextFormat) -> None:
    """Add to a row of a table of files its line if it is text, or which of several other files holds it."""
    source_row = table_files_of(find_files(path), text).place(row.number)
    if source_row is not None and (source_row.line is not None or is_many(path)):
        row.number = source_row.number
        row.file = source_row.file
        row.line = source_row.line
