"""Reading delimited text (CSV, TSV) with polars' parser, with errors for every ragged or broken line.

Polars fills a line with too few fields with nulls. Counting detects this: the file must have rows x (columns - 1)
delimiters, plus those inside quoted cells. Only if a count or the parser fails, a slow scan finds the line.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.read.bytesource import ByteSource, encoding_sentence
from fieldwise.data.read.text_types import infer_types
from fieldwise.errors import DataError

__all__ = ["check_separators", "explain", "infer_types", "parse_part", "read_columns", "read_delimited"]

MOST_COLUMNS = 100_000
_HEAD_LINES = 1000
_PIECE = 1 << 18  # bytes


def read_delimited(
    source: ByteSource,
    *,
    separator: str,
    names: Sequence[str] | None = None,
    quoting: bool = True,
    infer: bool = True,
) -> pl.DataFrame:
    """Read delimited text into a table; an empty unquoted field is null.

    Args:
        source: the file.
        separator: the delimiter, one ASCII character.
        names: the column names, if the file has no header line.
        quoting: whether `"` encloses fields that contain delimiters or line ends.
        infer: whether to infer column types from all values (`infer_types`), else they stay String.

    Errors:
        DataError: empty file, duplicate columns, a line with a wrong number of fields, a broken quote, a wrong
            encoding: file and line are named.
    """
    header, columns = read_columns(source, separator=separator, names=names, quoting=quoting)
    frame = parse_part(source, source, separator, columns, quoting=quoting, header=header is not None)
    if frame.width > 1:
        frame = frame.head(frame.height - _blank_end(source))
        check_separators(source, source, frame, separator, quoting=quoting, header=header)
    return infer_types(frame) if infer else frame


def read_columns(
    source: ByteSource, *, separator: str, names: Sequence[str] | None, quoting: bool = True
) -> tuple[list[str] | None, list[str]]:
    """The header line, None if the names are given, and the column names.

    Errors:
        DataError: an unsuitable separator, an empty file, duplicate columns, a broken header.
    """
    if len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
        raise DataError(f"the separator must be one ASCII character, found {separator!r}; {source.path} was not read")
    header = None if names is not None else _read_header(source, separator, quoting)
    columns = list(names) if names is not None else list(header or [])
    duplicates = sorted(name for name, count in Counter(columns).items() if count > 1)
    if duplicates:
        listed = ", ".join(repr(name) for name in duplicates)
        raise DataError(
            f"columns must have different names: the header of {source.path} repeats {listed}; rename them, or add "
            "a header if the first line is a row"
        )
    return header, columns


def parse_part(
    part: ByteSource, source: ByteSource, separator: str, columns: Sequence[str], *, quoting: bool = True, header: bool
) -> pl.DataFrame:
    """The rows of a part of a file, all of it or whole lines, as String columns; see `read_delimited`.

    Args:
        part: the part.
        source: the whole file, which errors name.
        separator: the delimiter.
        columns: the column names.
        quoting: as for `read_delimited`.
        header: whether the part begins with a header line.

    Errors:
        DataError: nothing to read, or a line that polars rejects.
    """
    try:
        frame = _parse(part, separator, quoting, header=header)
    except pl.exceptions.NoDataError:
        raise DataError(f"{source.path} is empty: a table needs at least a header line") from None
    except pl.exceptions.PolarsError as e:
        explain(source, separator, quoting, len(columns), str(e).splitlines()[0])
    if frame.width != len(columns):
        explain(source, separator, quoting, len(columns), f"polars found {frame.width} columns")
    frame.columns = list(columns)
    return frame


def _parse(source: ByteSource, separator: str, quoting: bool, header: bool, rows: int | None = None) -> pl.DataFrame:
    return pl.read_csv(
        source.path if source.content is None else source.content,
        has_header=header,
        separator=separator,
        quote_char='"' if quoting else None,
        infer_schema=False,
        n_rows=rows,
        glob=False,
    )


def _read_header(source: ByteSource, separator: str, quoting: bool) -> list[str]:
    head = _head(source)
    if (found := head.count(separator.encode())) > MOST_COLUMNS:
        raise DataError(
            f"a text file may have {MOST_COLUMNS:,} columns, and the header of {source.path} has about {found:,}: "
            "check the separator, or keep such a table as Parquet"
        )
    try:
        first = _parse(ByteSource(path=source.path, content=head), separator, quoting, header=False, rows=1)
    except pl.exceptions.NoDataError:
        raise DataError(f"{source.path} is empty: a table needs at least a header line") from None
    except pl.exceptions.PolarsError as e:
        explain(source, separator, quoting, 0, str(e).splitlines()[0])
    if not first.height:
        explain(source, separator, quoting, 0, "its header line is not closed")
    names = [name or "" for name in first.row(0)]
    if any("\r" in name for name in names):
        raise DataError(f"lines must end in LF or CRLF: the header of {source.path} holds a bare CR; save it again")
    return names


def _head(source: ByteSource) -> bytes:
    """The lines of the first record, up to the one that closes its quotes."""
    head: list[bytes] = []
    quotes = 0
    for line in source.lines():
        if not head and not line.strip():
            continue  # blank lines at the start, left by some editors
        head.append(line)
        quotes += line.count(b'"')
        if (line.strip() and quotes % 2 == 0) or len(head) == _HEAD_LINES:
            break
    return b"".join(head)


def _blank_end(source: ByteSource) -> int:
    """The number of blank lines at the end of the file, left by some editors; they are not rows."""
    tail = source.tail().replace(b"\r\n", b"\n")
    return max(0, len(tail) - len(tail.rstrip(b"\n")) - 1)


def check_separators(
    part: ByteSource,
    source: ByteSource,
    frame: pl.DataFrame,
    separator: str,
    *,
    quoting: bool,
    header: Sequence[str] | None,
) -> None:
    """Check that no line of a part of a file lacks a field, which polars fills with nulls.

    Errors:
        DataError: a line does; it is named.
    """
    mark = ord(separator)
    found, quotes = 0, False
    for chunk in part.chunks():
        # In pieces that fit in the CPU cache, NumPy counts several times faster than bytes.count.
        octets = np.frombuffer(chunk, dtype=np.uint8)
        pieces = (octets[start : start + _PIECE] for start in range(0, len(octets), _PIECE))
        found += sum(int(np.count_nonzero(piece == mark)) for piece in pieces)
        quotes = quotes or b'"' in chunk
    rows = frame.height + (header is not None)
    expected = rows * (frame.width - 1) + sum(name.count(separator) for name in header or [])
    if quoting and quotes:
        inside = frame.select(pl.all().str.count_matches(separator, literal=True).sum()).sum_horizontal().item()
        expected += int(inside or 0)
    if found != expected:
        explain(source, separator, quoting, frame.width, f"{found} delimiters instead of {expected}")


def explain(source: ByteSource, separator: str, quoting: bool, width: int, reason: str) -> NoReturn:
    """Find the line that polars rejects, and raise an error that names it.

    Errors:
        DataError: always.
    """
    decoded, begun, start = True, False, source.first_line
    records = csv.reader(
        _decoded(source), delimiter=separator, quoting=csv.QUOTE_MINIMAL if quoting else csv.QUOTE_NONE, strict=True
    )
    try:
        for record in records:
            begun = begun or bool(record)
            width = width or len(record)
            # A blank line is a null in a single column, is ignored at the start and end of the file, and else is an
            # error.
            blank = not record and (not begun or width == 1 or not any(records))
            if len(record) != width and not blank:
                many = "1 field" if width == 1 else f"{width} fields"
                raise DataError(
                    f"every line must have {many}: {source.path} line {start} has {len(record)}; correct the line, or "
                    f"give another separator than {separator!r}, such as --separator ';'"
                )
            start = source.first_line + records.line_num
    except UnicodeDecodeError:
        decoded = False
    except csv.Error as e:
        raise DataError(
            f"quotes must enclose whole fields and be closed: the record that begins at {source.path} line {start} "
            f"breaks this ({e}); correct the line"
        ) from None
    if not decoded:
        raise DataError(encoding_sentence(source))
    for number, line in enumerate(source.lines(), source.first_line):
        if quoting and line.count(b'"') % 2:
            raise DataError(
                f'quotes must enclose whole fields and be closed: {source.path} line {number} holds a stray "; '
                "write the field in quotes and its own quotes twice"
            )
    raise DataError(f"{source.path} is not well-formed delimited text with separator {separator!r}: {reason}")


def _decoded(source: ByteSource) -> Iterator[str]:
    for number, line in enumerate(source.lines()):
        yield line.decode("utf-8-sig" if number == 0 else "utf-8")
