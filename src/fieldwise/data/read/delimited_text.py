"""Delimited text (CSV, TSV) as tables of String columns, with an error for every ragged or broken line.

Polars fills a line with too few fields with nulls. Counting detects this: the file must have rows x
(columns - 1) delimiters, plus those inside quoted cells. Only if a count or the parser fails, a
slow scan finds the line.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.read.text_stream import (
    CHUNK_BYTES,
    LINES_CHUNK_BYTES,
    ByteSource,
    not_utf8,
)
from fieldwise.errors import Argument, DataError, first_line

MOST_COLUMNS = 100_000
_MOST_HEADER_LINES = 1000
_MOST_ROW_BYTES = 1 << 26
"""A quote that is never closed makes a row of the rest of the file."""
_CPU_CACHE_BYTES = 1 << 18
_QUOTED = re.compile(rb'"[^"]*(?:"|\Z)')
_EMPTY = "{} is empty: a table needs at least a header line"


def read_delimited(
    source: ByteSource, *, separator: str, names: Sequence[str] | None = None
) -> pl.DataFrame:
    """Delimited text as one table of String columns; see `delimited_chunks`."""
    return pl.concat(delimited_chunks(source, separator=separator, names=names))


def delimited_chunks(
    source: ByteSource,
    *,
    separator: str,
    names: Sequence[str] | None = None,
    size: int = CHUNK_BYTES,
    skip: int = 0,
) -> Iterator[pl.DataFrame]:
    """The rows of delimited text in chunks of String columns; an empty unquoted field is null.

    A chunk has `size` bytes, or one row if that is longer. `names` are given if there is no header
    line. `"` encloses fields that contain delimiters or line ends. The first `skip` chunks are not
    parsed. If the first rows have spaces after all delimiters (`u1, i2, 3`), those before cells and
    names are left out in the whole file; quoted cells keep theirs.

    Errors:
        DataError: empty file, duplicate columns, a line with a wrong number of fields, a broken
            quote, a wrong encoding: file and line are named.
    """
    if len(separator) != 1 or not separator.isascii() or separator in '"\r\n':
        raise DataError(
            f"the separator must be one ASCII character, found {separator!r}; {source.path} was not read"
        )
    is_spaced = _has_spaces(source, separator)
    header = _header(source, separator, is_spaced=is_spaced) if names is None else None
    columns = list(names or header or [])
    _check_different(columns, source)
    width = len(columns)

    for number, text in enumerate(_filled_rows(source, separator, width, size, is_spaced)):
        if number < skip:
            continue
        is_first = number == 0
        header_of_chunk = header if is_first else None
        try:
            frame = _parsed(
                text,
                separator,
                has_header=header_of_chunk is not None,
                starts_file=is_first and source.first_line == 1,
            )
        except pl.exceptions.NoDataError:
            raise DataError(_EMPTY.format(source.path)) from None
        except pl.exceptions.PolarsError as e:
            explain(source, separator, width, first_line(e))
        if frame.width != width:
            explain(source, separator, width, f"polars found {frame.width} columns")
        frame.columns = columns
        if width > 1:
            _check_delimiters(source, separator, frame, text, header_of_chunk)
        yield frame


def _check_different(columns: Sequence[str], source: ByteSource) -> None:
    """Refuse a header that repeats a name."""
    repeated = sorted(name for name, count in Counter(columns).items() if count > 1)
    if repeated:
        raise DataError(
            f"columns must have different names: the header of {source.path} repeats "
            f"{', '.join(map(repr, repeated))}; rename them, or add a header if the first line is a row"
        )


def _check_delimiters(
    source: ByteSource,
    separator: str,
    frame: pl.DataFrame,
    text: bytes,
    header: Sequence[str] | None,
) -> None:
    """Refuse rows that lack fields, which polars fills with nulls; with a header if they begin with one."""
    delimiters_in_cells = 0
    lines = frame.height
    if header is not None:
        lines += 1
        delimiters_in_cells += sum(name.count(separator) for name in header)
    if b'"' in text:
        counts = frame.select(pl.all().str.count_matches(separator, literal=True).sum())
        delimiters_in_cells += int(counts.sum_horizontal().item() or 0)
    delimiters = _count(text, separator)
    expected = lines * (frame.width - 1) + delimiters_in_cells
    if delimiters != expected:
        explain(source, separator, frame.width, f"{delimiters} delimiters instead of {expected}")


def _header(source: ByteSource, separator: str, *, is_spaced: bool) -> list[str]:
    """The names in the header line, which may go on over several lines in quotes."""
    lines: list[bytes] = []
    quotes = 0
    for line in source.lines():
        if not lines and not line.strip():
            continue  # blank lines at the start, left by some editors
        lines.append(line)
        quotes += line.count(b'"')
        is_whole = line.strip() and quotes % 2 == 0
        if is_whole or len(lines) == _MOST_HEADER_LINES:
            break
    text = b"".join(lines)
    if is_spaced:
        text = _without_spaces(text, separator)
    delimiters = text.count(separator.encode())
    if delimiters > MOST_COLUMNS:
        raise DataError(
            f"a text file may have {MOST_COLUMNS:,} columns, and the header of {source.path} has about "
            f"{delimiters:,}: check the separator, or keep such a table as Parquet"
        )
    try:
        first_row = _parsed(text, separator, has_header=False, n_rows=1)
    except pl.exceptions.NoDataError:
        raise DataError(_EMPTY.format(source.path)) from None
    except pl.exceptions.PolarsError as e:
        explain(source, separator, 0, first_line(e))
    if not first_row.height:
        explain(source, separator, 0, "its header line is not closed")
    names = [name or "" for name in first_row.row(0)]
    if any("\r" in name for name in names):
        raise DataError(
            f"lines must end in LF or CRLF: the header of {source.path} holds a bare CR; save it again"
        )
    return names


def _parsed(
    text: bytes,
    separator: str,
    *,
    has_header: bool,
    n_rows: int | None = None,
    starts_file: bool = True,
) -> pl.DataFrame:
    """Delimited text as String columns; a byte order mark is left out at the start of a file, and kept elsewhere."""
    if not (starts_file and text.startswith(codecs.BOM_UTF8)):
        # With it in front, polars takes no text for packed bytes, as a header `x^2` begins zlib's.
        text = codecs.BOM_UTF8 + text
    return pl.read_csv(
        text,
        has_header=has_header,
        separator=separator,
        infer_schema=False,
        n_rows=n_rows,
        glob=False,
    )


def _filled_rows(
    source: ByteSource, separator: str, width: int, size: int, is_spaced: bool
) -> Iterator[bytes]:
    """Whole rows without the spaces before cells, and without blank lines at the end of the file.

    In a single column a blank line is a row. Of an empty file the first chunk is blank.
    """
    is_first = True
    after_blank_lines = False
    for rows in _whole_rows(source, separator, width, size):
        if is_spaced:
            rows = _without_spaces(rows, separator)
        text = rows
        if width != 1:
            text = _without_blank_end(rows)
        if is_first and not text.lstrip(b"\r\n"):
            text = rows
        elif not text:
            after_blank_lines = True
            continue
        if after_blank_lines:
            explain(source, separator, width, "it has a blank line between rows")
        after_blank_lines = len(text) < len(rows)
        is_first = False
        yield text


def _whole_rows(source: ByteSource, separator: str, width: int, size: int) -> Iterator[bytes]:
    """Chunks that end where a row ends: at a line end that an even number of quotes precedes.

    The first chunk has more than blank lines, and the last one a line end.
    """
    rest = b""
    is_first = True
    searched_bytes = 0
    for chunk in source.chunks(size):
        rest += chunk
        if len(rest) < 2 * searched_bytes:  # a long row is not searched again for every chunk
            continue
        end = _end_of_rows(rest)
        searched_bytes = 0 if end else len(rest)
        is_filled = not is_first or rest[:end].lstrip(b"\r\n\xef\xbb\xbf")
        if end and is_filled:
            yield rest[:end]
            rest = rest[end:]
            is_first = False
        elif len(rest) > max(_MOST_ROW_BYTES, 2 * size):
            mebibytes = _MOST_ROW_BYTES >> 20
            explain(source, separator, width, f"a row has more than {mebibytes} MiB")
    if rest or is_first:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _end_of_rows(text: bytes) -> int:
    """The end of the last line in text that is not within quotes; 0 if there is none."""
    end = text.rfind(b"\n") + 1
    quotes = _count(text, '"', end)
    while end and quotes % 2:
        previous_end = text.rfind(b"\n", 0, end - 1) + 1
        quotes -= text.count(b'"', previous_end, end)
        end = previous_end
    return end


def _without_blank_end(rows: bytes) -> bytes:
    """The rows without blank lines at their end."""
    filled_bytes = len(rows.rstrip(b"\r\n"))
    end = rows.find(b"\n", filled_bytes) + 1 if filled_bytes else 0
    blank_lines = rows[end:].replace(b"\r\n", b"\n")
    if not blank_lines or blank_lines.strip(b"\n"):
        return rows
    return rows[:end]


def _count(text: bytes, character: str, end: int | None = None) -> int:
    """How often an ASCII character occurs in text, up to a byte of it."""
    # In chunks that fit in the CPU cache, NumPy counts several times faster than bytes.count.
    octets = np.frombuffer(text, dtype=np.uint8)[:end]
    total = 0
    for start in range(0, len(octets), _CPU_CACHE_BYTES):
        chunk = octets[start : start + _CPU_CACHE_BYTES]
        total += int(np.count_nonzero(chunk == ord(character)))
    return total


def _has_spaces(source: ByteSource, separator: str) -> bool:
    """Whether the first rows (1 MiB) have a space after every delimiter that a cell follows, as in `u1, i2, 3`.

    The first line may be a header without spaces: it is only asked if no other line has a
    delimiter.
    """
    if separator == " ":
        return False
    head = next(source.chunks(LINES_CHUNK_BYTES), b"").lstrip(b"\r\n")
    first_line, _, others = _QUOTED.sub(b'""', head).partition(b"\n")
    cells = others if separator.encode() in others else first_line
    delimiter = re.escape(separator.encode())
    cell_without_space = re.search(delimiter + rb"[^ \r\n" + delimiter + rb"]", cells)
    return cell_without_space is None and re.search(delimiter + b" ", cells) is not None


def _without_spaces(rows: bytes, separator: str) -> bytes:
    """Whole rows without the spaces that stand before cells, as by `csv.reader` with `skipinitialspace`."""
    byte_order_mark = codecs.BOM_UTF8 if rows.startswith(codecs.BOM_UTF8) else b""
    text = byte_order_mark + rows.removeprefix(byte_order_mark).lstrip(b" ")
    parts = text.split(b'"')
    for number in range(0, len(parts), 2):  # those between are quoted
        part = parts[number]
        for before in (separator.encode(), b"\n"):
            spaced = before + b" "
            # Several times faster than the pattern, which only several spaces need.
            part = part.replace(spaced, before)
            if spaced in part:
                part = re.sub(b"(" + re.escape(before) + b") +", rb"\1", part)
        parts[number] = part
    return b'"'.join(parts)


def explain(source: ByteSource, separator: str, width: int, reason: str) -> NoReturn:
    """Find the line that polars rejects, and raise an error that names it."""
    try:
        _check_records(source, separator, width)
    except UnicodeDecodeError:
        raise not_utf8(source) from None
    for number, line in enumerate(source.lines(), source.first_line):
        if line.count(b'"') % 2:
            raise DataError(
                f'quotes must enclose whole fields and be closed: {source.path} line {number} holds a stray "; '
                "write the field in quotes and its own quotes twice"
            )
    raise DataError(
        f"{source.path} is not well-formed delimited text with separator {separator!r}: {reason}"
    )


def _check_records(source: ByteSource, separator: str, width: int) -> None:
    """Refuse the first record with another number of fields than the width (0: the first one's), or with bad quotes."""
    lines = (
        line.decode("utf-8" if number else "utf-8-sig")
        for number, line in enumerate(source.lines())
    )
    is_spaced = _has_spaces(source, separator)
    records = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=is_spaced)
    has_begun = False
    line = source.first_line
    try:
        for record in records:
            has_begun = has_begun or bool(record)
            width = width or len(record)
            # A blank line is a null in a single column, is ignored at the start and end of the
            # file, and else is an error.
            is_allowed_blank = not record and (not has_begun or width == 1 or not any(records))
            if len(record) != width and not is_allowed_blank:
                fields = "1 field" if width == 1 else f"{width} fields"
                other = "," if separator == ";" else ";"
                raise DataError(
                    f"every line must have {fields}: {source.path} line {line} has {len(record)}; correct the line, or "
                    f"give another separator than {separator!r}, such as ",
                    Argument("separator", other),
                )
            line = source.first_line + records.line_num
    except csv.Error as e:
        raise DataError(
            f"quotes must enclose whole fields and be closed: the record that begins at {source.path} line {line} "
            f"breaks this ({e}); correct the line"
        ) from None
