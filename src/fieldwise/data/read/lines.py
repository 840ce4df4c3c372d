"""Translating row numbers in errors to line numbers of the text file that a table came from."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fieldwise.data.read.bytesource import open_source
from fieldwise.data.read.kinds import TEXT, suffix_of
from fieldwise.data.read.one_file import text_separator
from fieldwise.errors import DataError, SchemaError

__all__ = ["line_of", "naming_lines", "renumbering_rows"]

_ROW = re.compile(r"row (\d+) \(counting from 0\)")


@contextmanager
def naming_lines(
    path: Path, *, separator: str | None = None, encoding: str = "utf-8", columns: Sequence[str] | None = None
) -> Iterator[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Args:
        path: the file that the table was read from; for Parquet and other binary files rows stay rows.
        separator: as given to `as_table`.
        encoding: as given to `as_table`.
        columns: as given to `as_table`.
    """

    def line(row: int) -> str | None:
        found = line_of(path, row, separator=separator, encoding=encoding, header=columns is None)
        return None if found is None else f"line {found} of {path}"

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


def line_of(
    path: Path, row: int, *, separator: str | None = None, encoding: str = "utf-8", header: bool = True
) -> int | None:
    """The line, counted from 1, at which a row of a text file's table begins; None if the file is no such text.

    Quoted line ends are counted, so that an editor finds the place.
    """
    if suffix_of(path)[0] not in TEXT:
        return None
    source = open_source(path, encoding)
    lines = (line.decode("utf-8-sig", "replace") for line in source.lines())
    records = csv.reader(lines, delimiter=separator or text_separator(path, source))
    wanted, begun, start = row + header, False, 1
    for record in records:
        begun = begun or bool(record)
        if begun and wanted == 0:
            return start
        wanted -= begun
        start = records.line_num + 1
    return None


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
