"""Reading one table file as a whole."""

import csv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import polars as pl

from fieldwise.data.read.bytesource import ByteSource, open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.headers import warn_of_header
from fieldwise.data.read.kinds import KINDS, TEXT, kind_of, suffix_of
from fieldwise.data.read.libfm import LibfmFields, read_libfm
from fieldwise.errors import DataError

__all__ = [
    "TextFormat",
    "check_first_row",
    "check_one_column",
    "is_stream",
    "read_binary",
    "read_file",
    "text_separator",
]

T = TypeVar("T")

SEPARATORS = ("\t", ";", "|", ",")
_PROBED_LINES = 1000
_PROBED_RECORDS = 50


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How delimited text is written.

    Args:
        separator: the delimiter; if omitted a tab for `.tsv` and `.tab`, else as `text_separator` detects it.
        encoding: the encoding.
        columns: the column names, if there is no header line.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None

    def check_applies(self, path: Path) -> None:
        """Check that column names are given for text alone.

        Errors:
            DataError: the file is of another kind.
        """
        if self.columns is not None and suffix_of(path)[0] not in TEXT:
            raise DataError(
                f"columns are for delimited text without a header, but {path} has its own column names: omit them"
            )


def read_file(path: Path, text: TextFormat) -> pl.DataFrame:
    """The rows of a file, as `as_table` gives them but without the positions of vectors.

    Errors:
        DataError: as `as_table`.
    """
    text.check_applies(path)
    kind = kind_of(path)
    if kind == "delimited text":
        return _read_text(path, text)
    if kind == "libFM":
        frame, fields = read_libfm(path), LibfmFields()
        fields.add(frame)
        return fields.table(frame)
    if kind == "Parquet":
        return read_binary(path, kind, lambda: pl.read_parquet(path, glob=False))
    if kind == "Arrow IPC":
        return read_binary(path, kind, lambda: _read_ipc(path))
    raise DataError(f"a table file must be one of {KINDS}, found the name {path.name!r}; convert or rename it")


def _read_text(path: Path, text: TextFormat) -> pl.DataFrame:
    source = open_source(path, text.encoding)
    default = text_separator(path, source, text.columns)
    frame = read_delimited(source, separator=text.separator or default, names=text.columns)
    if text.columns is None:
        warn_of_header(frame, path)
    else:
        check_first_row(path, frame, text.columns)
    if text.separator is None:
        check_one_column(path, frame.columns, default)
    return frame


def text_separator(path: Path, source: ByteSource, columns: Sequence[str] | None = None) -> str:
    """The delimiter of a text file, if it was not given: by the suffix, else by the first records.

    It is the one of tab, semicolon, `|` and comma that divides the header and the next records, quoted cells
    respected, into the same number of fields. If none does, it is the one that divides the header into most.

    Args:
        path: the file.
        source: its text.
        columns: the column names, if there is no header line.
    """
    if TEXT[suffix_of(path)[0]] == "\t":
        return "\t"
    lines = [line.decode("utf-8-sig", "replace") for line in islice(source.lines(), _PROBED_LINES)]
    widths = {mark: _record_widths(lines, mark) for mark in SEPARATORS}
    for mark, found in widths.items():
        if len(set(found)) == 1 and found[0] > 1 and (columns is None or found[0] == len(columns)):
            return mark
    return max(reversed(SEPARATORS), key=lambda mark: widths[mark][0] if widths[mark] else 0)


def _record_widths(lines: Sequence[str], separator: str) -> list[int]:
    """The numbers of fields of the first records, without blank lines."""
    records, found = csv.reader(lines, delimiter=separator), list[int]()
    with suppress(csv.Error):  # a field that is too long
        found.extend(len(record) for record in islice(records, _PROBED_RECORDS) if record)
    return found[:-1] if records.line_num == _PROBED_LINES and len(found) > 1 else found  # the last one may go on


def check_first_row(path: Path, frame: pl.DataFrame, columns: Sequence[str]) -> None:
    """Check that the first row of a file without a header is no header.

    Errors:
        DataError: it holds the column names.
    """
    if frame.height and [str(cell) for cell in frame.row(0)] == list(columns):
        raise DataError(f"columns are for text without a header, but the first line of {path} is one: omit them")


def check_one_column(path: Path, names: Sequence[str], separator: str) -> None:
    """Check that text of one column was not read with the wrong delimiter.

    Errors:
        DataError: the only column's name holds another delimiter.
    """
    for mark in SEPARATORS if len(names) == 1 else ():
        if mark in names[0] and mark != separator:
            raise DataError(
                f"{path} was read as one column {names[0][:60]!r} with delimiter {separator!r}; give "
                f"separator={mark!r} (on the command line --separator {mark!r}, in a recipe data.separator)"
            )


def _read_ipc(path: Path) -> pl.DataFrame:
    return pl.read_ipc_stream(path) if is_stream(path) else pl.read_ipc(path)


def is_stream(path: Path) -> bool:
    """Whether an Arrow file is a stream, rather than the format with an index."""
    with path.open("rb") as file:
        return file.read(6) != b"ARROW1"


def read_binary(path: Path, kind: str, read: Callable[[], T]) -> T:
    """The result of a function that reads a binary file.

    Errors:
        DataError: the file is absent, empty or broken.
    """
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; check the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a {kind} file was expected; write it again")
    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as e:
        raise DataError(f"{path} is not a whole {kind} file ({str(e).splitlines()[0]}); write or copy it again") from e
