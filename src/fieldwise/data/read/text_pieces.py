"""Delimited text and libFM text in pieces of whole rows, each of a bounded number of bytes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import ByteSource, stream_source
from fieldwise.data.read.delimited import check_separators, explain, parse_part, read_columns
from fieldwise.data.read.libfm import read_libfm
from fieldwise.errors import DataError

__all__ = ["delimited_pieces", "libfm_pieces"]

_LONGEST = 1 << 26  # bytes of a row; a quote that is never closed makes a row of the rest of the file


def delimited_pieces(
    source: ByteSource, *, separator: str, names: Sequence[str] | None, size: int
) -> Iterator[pl.DataFrame]:
    """The rows of delimited text in pieces of String columns; together the rows of `read_delimited(infer=False)`.

    Args:
        source: the file, read from disk.
        separator: the delimiter.
        names: the column names, if the file has no header line.
        size: bytes of text per piece, or one row if that is longer.

    Errors:
        DataError: as `read_delimited`; raised at the piece where the fault is.
    """
    header, columns = read_columns(source, separator=separator, names=names)
    artificial = (separator.join("c" * len(columns)) + "\n").encode()  # else polars might skip what begins a piece
    first, blank = True, False
    for rows in _whole_rows(source, separator, len(columns), size):
        text, ends = (rows, False) if len(columns) == 1 else _without_blank_end(rows)
        if first and not text.strip(b"\r\n"):
            text, ends = rows, False  # an empty file
        elif not text:
            blank = True
            continue
        if blank:  # lines that were blank do not end the file
            explain(source, separator, True, len(columns), "it has a blank line between rows")
        begins = header is not None if first else True
        part = ByteSource(path=source.path, content=text if first else artificial + text)
        frame = parse_part(part, source, separator, columns, header=begins)
        if len(columns) > 1:
            own = ByteSource(path=source.path, content=text)
            check_separators(own, source, frame, separator, quoting=True, header=header if first else None)
        first, blank = False, ends
        yield frame
    if first:
        raise DataError(f"{source.path} is empty: a table needs at least a header line")


def libfm_pieces(path: Path, size: int) -> Iterator[pl.DataFrame]:
    """The rows of a libFM file in pieces; together the rows of `read_libfm`.

    Errors:
        DataError: as `read_libfm`.
    """
    line, held = 1, b""
    for lines in _whole_lines(stream_source(path), size):
        held += lines
        kept = held.rstrip()
        if not kept:
            continue
        end = held.find(b"\n", len(kept)) + 1 or len(held)
        yield read_libfm(path, content=held[:end], first_line=line)
        line += held.count(b"\n", 0, end)
        held = held[end:]  # blank lines: only at the end of the file are they no fault
    if line == 1:
        read_libfm(path, content=b"")  # whose error says that the file is empty


def _whole_lines(source: ByteSource, size: int) -> Iterator[bytes]:
    rest = b""
    for chunk in source.chunks(size):
        rest += chunk
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _whole_rows(source: ByteSource, separator: str, width: int, size: int) -> Iterator[bytes]:
    """Pieces that end where a row ends: at a line end that an even number of quotes precedes.

    The first piece has more than blank lines, and the last one a line end.
    """
    rest, first, tried = b"", True, 0
    for chunk in source.chunks(size):
        rest += chunk
        if len(rest) < 2 * tried:  # a long row is not searched again for every chunk
            continue
        end = _row_end(rest)
        tried = 0 if end else len(rest)
        if end and (not first or rest[:end].strip(b"\r\n\xef\xbb\xbf")):
            yield rest[:end]
            rest, first = rest[end:], False
        elif len(rest) > max(_LONGEST, 2 * size):
            explain(source, separator, True, width, f"a row has more than {_LONGEST >> 20} MiB")
    if rest or first:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _row_end(text: bytes) -> int:
    """Where the last whole row ends, in text that begins with a row; 0 if there is none."""
    end = text.rfind(b"\n") + 1
    quotes = text.count(b'"', 0, end)
    while end and quotes % 2:
        before = text.rfind(b"\n", 0, end - 1) + 1
        quotes -= text.count(b'"', before, end)
        end = before
    return end


def _without_blank_end(rows: bytes) -> tuple[bytes, bool]:
    """The rows without blank lines at their end, and whether there were any."""
    end = len(rows)
    while end:
        if rows.endswith(b"\n\n", 0, end) or (rows[:2].startswith(b"\n") and end == 1):
            end -= 1
        elif rows.endswith(b"\n\r\n", 0, end) or (rows.startswith(b"\r\n") and end == 2):
            end -= 2
        else:
            break
    return rows[:end], end < len(rows)
