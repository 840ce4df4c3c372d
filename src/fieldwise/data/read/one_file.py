"""Reading one table file as a whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from fieldwise.data.read.bytesource import ByteSource, open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.headers import warn_of_header
from fieldwise.data.read.kinds import KINDS, TEXT, kind_of, suffix_of
from fieldwise.data.read.libfm import read_libfm
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


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How delimited text is written.

    Args:
        separator: the delimiter; if omitted by the suffix, and for `.txt` the first of tab, semicolon and comma in the
            header line.
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
        return read_libfm(path)
    if kind == "Parquet":
        return read_binary(path, kind, lambda: pl.read_parquet(path, glob=False))
    if kind == "Arrow IPC":
        return read_binary(path, kind, lambda: _read_ipc(path))
    raise DataError(f"a table file must be one of {KINDS}, found the name {path.name!r}; convert or rename it")


def _read_text(path: Path, text: TextFormat) -> pl.DataFrame:
    source = open_source(path, text.encoding)
    default = text_separator(path, source)
    frame = read_delimited(source, separator=text.separator or default, names=text.columns)
    if text.columns is None:
        warn_of_header(frame, path)
    else:
        check_first_row(path, frame, text.columns)
    if text.separator is None:
        check_one_column(path, frame.columns, default)
    return frame


def text_separator(path: Path, source: ByteSource) -> str:
    """The delimiter of a text file, if it was not given."""
    if known := TEXT[suffix_of(path)[0]]:
        return known
    first = next((line for line in source.lines() if line.strip()), b"")
    return next((mark for mark in ("\t", ";", ",") if mark.encode() in first), ",")


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
    for mark in ("\t", ";", ",", "|") if len(names) == 1 else ():
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
