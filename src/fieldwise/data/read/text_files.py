"""Text files as UTF-8, unpacked: delimited text (CSV, TSV), with an error for every ragged or broken line, and libFM.

Polars fills a line with too few fields with nulls. Counting detects this: the file must have rows x
(columns - 1) delimiters, plus those inside quoted cells. Only if a count or the parser fails, a
slow scan finds the line.
"""

import codecs
import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import polars as pl

from fieldwise.data.read.file_listing import TEXT, suffix_of
from fieldwise.errors import DataError, MissingExtraError

CHUNK = 1 << 24
_LINES = 1 << 20  # bytes that are cut into lines at once
RATIO = 100  # of a packed file; logs pack to a fifth or a twentieth
FREE = 1 << 28  # bytes that any packed file may hold


@dataclass(frozen=True, kw_only=True)
class ByteSource:
    """A text file as UTF-8 bytes, read from disk as they are asked for, or held in memory.

    Args:
        path: the file, for errors and, if `content` is None, for reading; unpacked if its name ends
            in `.gz` or `.zst`.
        content: its bytes after unpacking and conversion to UTF-8.
        first_line: the line number in the file of the first line of `chunks`: those before it are
            left out.
        encoding: the file's encoding, if it is read from disk.
    """

    path: Path
    content: bytes | None = None
    first_line: int = 1
    encoding: str = "utf-8"

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """The bytes, in chunks of about `size`.

        Errors:
            DataError: no whole file, the encoding is unknown, or a byte that it does not have, with
                its line.
        """
        if self.content is not None:
            yield from (self.content[at : at + size] for at in range(0, len(self.content), size))
            return
        lines_left = self.first_line - 1
        for chunk in self._decoded(size):
            start = 0
            while lines_left and start < len(chunk):
                line_end = chunk.find(b"\n", start)
                start = len(chunk) if line_end < 0 else line_end + 1
                if line_end >= 0:
                    lines_left -= 1
            yield chunk[start:] if start else chunk

    def _decoded(self, size: int) -> Iterator[bytes]:
        """The whole file as UTF-8, in chunks of about `size`."""
        if self.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig"):
            yield from self._read(size)
        else:  # every chunk ends between two characters
            try:
                decoder = codecs.getincrementaldecoder(self.encoding)()
            except LookupError:
                raise DataError(
                    f"encoding {self.encoding!r} for {self.path} is unknown; give one such as utf-8 or iso-8859-1"
                ) from None
            line = 1
            for chunk in chain(self._read(size), [b""]):
                try:
                    text = decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as e:
                    # bytes of the chunk before, whose lines have been counted
                    begun = len(e.object) - len(chunk)
                    line += e.object[: e.start].count(b"\n") - e.object[: max(0, begun)].count(
                        b"\n"
                    )
                    raise DataError(
                        f"{self.path} is not in encoding {self.encoding}: line {line} holds the byte "
                        f"0x{e.object[e.start]:02x}; give the encoding that the file was written in"
                    ) from None
                line += chunk.count(b"\n")
                yield text.encode("utf-8")

    def lines(self) -> Iterator[bytes]:
        r"""The physical lines with their `\n`; for finding a bad line, not for reading a table."""
        rest = b""
        for chunk in self.chunks(_LINES):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in lines)
        if rest:
            yield rest

    def _read(self, size: int) -> Iterator[bytes]:
        """The unpacked bytes in chunks of at most `size`."""
        path = self.path
        packing = suffix_of(self.path)[1]
        try:
            most = max(FREE, RATIO * path.stat().st_size)
            total = 0
            with path.open("rb") as packed:  # whose errors have the names that are explained below
                file: IO[bytes] | Any = (
                    gzip.GzipFile(fileobj=packed) if packing == ".gz" else packed
                )
                if packing == ".zst":
                    try:
                        import pyarrow
                    except ImportError as e:
                        raise MissingExtraError(
                            f"{path} is unpacked by pyarrow, which is not installed: pip install 'fieldwise[large]'"
                        ) from e
                    file = pyarrow.input_stream(str(path), compression="zstd")
                while chunk := file.read(size):
                    total += len(chunk)
                    if packing and total > most:  # a few bytes may stand for gigabytes
                        raise DataError(
                            f"a packed file may hold {RATIO} times its size, or {FREE >> 20} MiB, and {path} holds "
                            f"more: unpack it with {'gunzip' if packing == '.gz' else 'unzstd'} first if that is right"
                        )
                    yield chunk
        except FileNotFoundError as e:
            raise DataError(f"the file {path} does not exist; check the path") from e
        except IsADirectoryError as e:
            raise DataError(f"{path} is a folder, not a file; name the file in it") from e
        except (gzip.BadGzipFile, EOFError, zlib.error) as e:
            raise DataError(f"{path} is not a whole gzip file ({e}); copy or fetch it again") from e
        except OSError as e:
            if packing == ".zst" and e.errno is None:
                raise DataError(
                    f"{path} is not a whole zstd file ({e}); copy or fetch it again"
                ) from e
            raise DataError(f"cannot read {path}: {e.strerror or e}") from e


def read_lines(source: ByteSource) -> pl.Series:
    r"""The lines of a text file as a String column, without `\n` or `\r\n`; without blank lines at the end."""
    text = b"".join(source.chunks())
    try:
        # The line in front keeps polars from taking text for packed bytes, as `x^` begins zlib's.
        lines = pl.read_lines(b"\n" + text, name="line").get_column("line").slice(1)
    except pl.exceptions.ComputeError as e:
        raise DataError(encoding_sentence(source)) from e
    filled = lines.str.strip_chars() != ""
    last = int(filled.arg_true().max() or 0) if filled.any() else -1  # type: ignore[arg-type]
    return lines.head(last + 1)


def encoding_sentence(source: ByteSource) -> str:
    """A sentence for text that is not in UTF-8: the first bad line, and the encoding to try."""
    for number, line in enumerate(source.lines(), source.first_line):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as e:
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                likely = "utf-16"
            else:
                likely = "cp1252" if any(0x80 <= byte < 0xA0 for byte in line) else "iso-8859-1"
            return (
                f"{source.path} is not in encoding utf-8: line {number} holds the byte 0x{line[e.start]:02x}; "
                f"give the encoding it was written in, probably encoding={likely!r}"
            )
    return f"{source.path} is not in encoding utf-8; give the encoding that it was written in"


SEPARATORS = ("\t", ";", "|", ",")
_SEPARATOR_LINE = re.compile(r"""\ufeff?"?sep=([^\w\s"'\\]|\t)"?[\r\n]*""", re.IGNORECASE)
"""A first line that names the delimiter, as Excel reads and writes it: `sep=;`."""

_PROBED_LINES = 1000
_PROBED_RECORDS = 50


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How delimited text is written; see `as_table`.

    Args:
        separator: the delimiter, if it is not to be detected.
        encoding: the encoding.
        columns: the column names, if there is no header line.
        text_columns: columns whose cells are read as they are written (`TextTypes`); None: all.
        done: by file, how many chunks an earlier reading has parsed, which are passed over.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None
    text_columns: Sequence[str] | None = ()
    done: Mapping[Path, int] = field(default_factory=dict)

    def source(self, path: Path) -> ByteSource:
        """The text of a file, without a first line that names the delimiter."""
        first_line = 1 if self._named_separator(path) is None else 2
        return ByteSource(path=path, encoding=self.encoding, first_line=first_line)

    def _named_separator(self, path: Path) -> str | None:
        """The delimiter that the first line of a file names (`sep=;`), or None."""
        whole_file = ByteSource(path=path, encoding=self.encoding)
        first_line = next(whole_file.lines(), b"").decode("utf-8", "replace")
        named = _SEPARATOR_LINE.fullmatch(first_line)
        return None if named is None else named[1]

    def separator_of(self, path: Path) -> str:
        """The delimiter of a file: the given one, else by its first line `sep=;`, the suffix, or the first records.

        It is the one of tab, semicolon, `|` and comma that divides the header and the next records,
        quoted cells respected, into the same number of fields. If none does, it is the one that
        divides the header into most.
        """
        if self.separator:
            return self.separator
        named = self._named_separator(path)
        if named is not None:
            return named
        if TEXT[suffix_of(path)[0]] == "\t":
            return "\t"
        lines = [
            line.decode("utf-8-sig", "replace")
            for line in islice(self.source(path).lines(), _PROBED_LINES)
        ]
        header_widths: dict[str, int] = {}
        for mark in SEPARATORS:
            widths = _record_widths(lines, mark)
            header_widths[mark] = widths[0] if widths else 0
            divides_evenly = len(set(widths)) == 1 and widths[0] > 1
            if divides_evenly and (self.columns is None or widths[0] == len(self.columns)):
                return mark
        return max(reversed(SEPARATORS), key=header_widths.__getitem__)

    def chunks(self, path: Path, size: int = CHUNK) -> Iterator[pl.DataFrame]:
        """The rows of a file as `delimited_chunks`; a wrong delimiter and a superfluous `columns` are errors too."""
        separator = self.separator_of(path)
        skip = self.done.get(path, 0)
        chunks = delimited_chunks(
            self.source(path), separator=separator, names=self.columns, size=size, skip=skip
        )
        for k, chunk in enumerate(chunks, skip):
            name = chunk.columns[0]
            alone = not k and self.separator is None and chunk.width == 1
            if mark := next(
                (mark for mark in SEPARATORS if alone and mark in name and mark != separator), None
            ):
                raise DataError(
                    f"{path} was read as one column {name[:60]!r} with delimiter {separator!r}; give separator={mark!r}"
                )
            given = list(self.columns or ()) if not k and chunk.height else []
            if given and [str(cell) for cell in chunk.row(0)] == given:
                raise DataError(
                    f"columns are for text without a header, but the first line of {path} is one: omit them"
                )
            yield chunk


def _record_widths(lines: Sequence[str], separator: str) -> list[int]:
    """The numbers of fields of the first records that are whole."""
    records = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    widths: list[int] = []
    with suppress(csv.Error):  # a field that is too long
        widths.extend(len(record) for record in islice(records, _PROBED_RECORDS) if record)
    may_go_on = records.line_num == _PROBED_LINES and len(widths) > 1
    return widths[:-1] if may_go_on else widths


MOST_COLUMNS = 100_000
_HEAD_LINES = 1000
_CHUNK_BYTES = 1 << 18


def _header(source: ByteSource, separator: str, *, spaced: bool) -> list[str]:
    """The names in the header line, which may go on over several lines in quotes."""
    head: list[bytes] = []
    quotes = 0
    for line in source.lines():
        if not head and not line.strip():
            continue  # blank lines at the start, left by some editors
        head.append(line)
        quotes += line.count(b'"')
        if (line.strip() and quotes % 2 == 0) or len(head) == _HEAD_LINES:
            break
    text = b"".join(head)
    if spaced:
        text = _without_spaces(text, separator)
    if (result := text.count(separator.encode())) > MOST_COLUMNS:
        raise DataError(
            f"a text file may have {MOST_COLUMNS:,} columns, and the header of {source.path} has about {result:,}: "
            "check the separator, or keep such a table as Parquet"
        )
    try:
        first = _parsed(text, separator, has_header=False, n_rows=1)
    except pl.exceptions.NoDataError:
        raise DataError(_EMPTY.format(source.path)) from None
    except pl.exceptions.PolarsError as e:
        explain(source, separator, 0, str(e).splitlines()[0])
    if not first.height:
        explain(source, separator, 0, "its header line is not closed")
    names = [name or "" for name in first.row(0)]
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


def _count(text: bytes, mark: str, end: int | None = None) -> int:
    """How often an ASCII character occurs in text, up to a place in it."""
    # In chunks that fit in the CPU cache, NumPy counts several times faster than bytes.count.
    octets = np.frombuffer(text, dtype=np.uint8)[:end]
    chunks = (octets[start : start + _CHUNK_BYTES] for start in range(0, len(octets), _CHUNK_BYTES))
    return sum(int(np.count_nonzero(chunk == ord(mark))) for chunk in chunks)


def explain(source: ByteSource, separator: str, width: int, reason: str) -> NoReturn:
    """Find the line that polars rejects, and raise an error that names it."""
    decoded = True
    begun = False
    start = source.first_line
    text = (
        line.decode("utf-8" if number else "utf-8-sig")
        for number, line in enumerate(source.lines())
    )
    spaced = _has_spaces(source, separator)
    records = csv.reader(text, delimiter=separator, strict=True, skipinitialspace=spaced)
    try:
        for record in records:
            begun = begun or bool(record)
            width = width or len(record)
            # A blank line is a null in a single column, is ignored at the start and end of the
            # file, and else is an error.
            blank = not record and (not begun or width == 1 or not any(records))
            if len(record) != width and not blank:
                many = "1 field" if width == 1 else f"{width} fields"
                other = "," if separator == ";" else ";"
                raise DataError(
                    f"every line must have {many}: {source.path} line {start} has {len(record)}; correct the line, or "
                    f"give another separator than {separator!r}, such as separator={other!r}"
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
        if line.count(b'"') % 2:
            raise DataError(
                f'quotes must enclose whole fields and be closed: {source.path} line {number} holds a stray "; '
                "write the field in quotes and its own quotes twice"
            )
    raise DataError(
        f"{source.path} is not well-formed delimited text with separator {separator!r}: {reason}"
    )


def _has_spaces(source: ByteSource, separator: str) -> bool:
    """Whether the first rows (1 MiB) have a space after every delimiter that a cell follows, as in `u1, i2, 3`.

    The first line may be a header without spaces: it is only asked if no other line has a
    delimiter.
    """
    if separator == " ":
        return False
    head = next(source.chunks(_LINES), b"").lstrip(b"\r\n")
    first, _, others = _QUOTED.sub(b'""', head).partition(b"\n")
    cells = others if separator.encode() in others else first
    mark = re.escape(separator.encode())
    tight = re.search(mark + rb"[^ \r\n" + mark + rb"]", cells)
    return tight is None and re.search(mark + b" ", cells) is not None


def _without_spaces(rows: bytes, separator: str) -> bytes:
    """Whole rows without the spaces that stand before cells, as by `csv.reader` with `skipinitialspace`."""
    mark = codecs.BOM_UTF8 if rows.startswith(codecs.BOM_UTF8) else b""
    pieces = (mark + rows.removeprefix(mark).lstrip(b" ")).split(b'"')
    for number in range(0, len(pieces), 2):  # those between are quoted
        for before in (separator.encode(), b"\n"):
            spaced = before + b" "
            # several times faster than a pattern
            one_left_out = pieces[number].replace(spaced, before)
            if spaced in one_left_out:
                one_left_out = re.sub(b"(" + re.escape(before) + b") +", rb"\1", one_left_out)
            pieces[number] = one_left_out
    return b'"'.join(pieces)


_QUOTED = re.compile(rb'"[^"]*(?:"|\Z)')
_EMPTY = "{} is empty: a table needs at least a header line"
# bytes of a row; a quote that is never closed makes a row of the rest of the file
_LONGEST = 1 << 26


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
    size: int = CHUNK,
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
    spaced = _has_spaces(source, separator)
    header = _header(source, separator, spaced=spaced) if names is None else None
    columns = list(names or header or [])
    _check_different(columns, source)
    width = len(columns)
    first = True
    blank = False
    for number, rows in enumerate(_whole_rows(source, separator, width, size)):
        if spaced:
            rows = _without_spaces(rows, separator)
        text, ends = (rows, False) if width == 1 else _without_blank_end(rows)
        if first and not text.lstrip(b"\r\n"):
            # an empty file
            text = rows
            ends = False
        elif not text:
            blank = True
            continue
        if blank:  # lines that were blank do not end the file
            explain(source, separator, width, "it has a blank line between rows")
        if number < skip:
            first = False
            blank = ends
            continue
        begins = first and header is not None
        starts_file = first and source.first_line == 1
        try:
            frame = _parsed(text, separator, has_header=begins, starts_file=starts_file)
        except pl.exceptions.NoDataError:
            raise DataError(_EMPTY.format(source.path)) from None
        except pl.exceptions.PolarsError as e:
            explain(source, separator, width, str(e).splitlines()[0])
        if frame.width != width:
            explain(source, separator, width, f"polars found {frame.width} columns")
        frame.columns = columns
        if width > 1:  # polars fills a line that lacks fields with nulls
            result = _count(text, separator)
            expected = (frame.height + begins) * (width - 1)
            expected += sum(name.count(separator) for name in header or ()) if first else 0
            if b'"' in text:
                inside = frame.select(
                    pl.all().str.count_matches(separator, literal=True).sum()
                ).sum_horizontal()
                expected += int(inside.item() or 0)
            if result != expected:
                explain(source, separator, width, f"{result} delimiters instead of {expected}")
        first = False
        blank = ends
        yield frame
    if first:
        raise DataError(_EMPTY.format(source.path))


def _check_different(columns: Sequence[str], source: ByteSource) -> None:
    """Refuse a header that repeats a name."""
    twice = sorted(name for name, count in Counter(columns).items() if count > 1)
    if twice:
        raise DataError(
            f"columns must have different names: the header of {source.path} repeats {', '.join(map(repr, twice))}; "
            "rename them, or add a header if the first line is a row"
        )


def _whole_rows(source: ByteSource, separator: str, width: int, size: int) -> Iterator[bytes]:
    """Chunks that end where a row ends: at a line end that an even number of quotes precedes.

    The first chunk has more than blank lines, and the last one a line end.
    """
    rest = b""
    first = True
    tried = 0
    for chunk in source.chunks(size):
        rest += chunk
        if len(rest) < 2 * tried:  # a long row is not searched again for every chunk
            continue
        end = rest.rfind(b"\n") + 1
        quotes = _count(rest, '"', end)
        while end and quotes % 2:  # the last line end is within quotes
            before = rest.rfind(b"\n", 0, end - 1) + 1
            quotes -= rest.count(b'"', before, end)
            end = before
        tried = 0 if end else len(rest)
        if end and (not first or rest[:end].lstrip(b"\r\n\xef\xbb\xbf")):
            yield rest[:end]
            rest = rest[end:]
            first = False
        elif len(rest) > max(_LONGEST, 2 * size):
            explain(source, separator, width, f"a row has more than {_LONGEST >> 20} MiB")
    if rest or first:
        yield rest if rest.endswith(b"\n") else rest + b"\n"


def _without_blank_end(rows: bytes) -> tuple[bytes, bool]:
    """The rows without blank lines at their end, and whether there were any."""
    filled = len(rows.rstrip(b"\r\n"))
    end = rows.find(b"\n", filled) + 1 if filled else 0
    blank = rows[end:].replace(b"\r\n", b"\n")
    return (rows[:end], True) if blank and not blank.strip(b"\n") else (rows, False)


_MOST_FIELDS = 1_000

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LINE = rf"^{_NUMBER}(?: +\d+:{_NUMBER})* *$"


def read_libfm(source: ByteSource) -> pl.DataFrame:
    """Read libFM text, plain or packed, with LF or CRLF line ends.

    Returns:
        One row per line: `label` (Float64), `ids` (List of Int64), `values` (List of Float64), in
        the line's order.

    Errors:
        DataError: no line at all, or a malformed one; file and line are named.
    """
    path = source.path
    lines = read_lines(source)
    if not len(lines):
        raise DataError(f"{path} is empty: libFM text has one line `label id:value ...` per row")
    fine = lines.str.contains(_LINE).fill_null(False)
    if not fine.all():
        row = int((~fine).arg_max() or 0)
        line = row + source.first_line
        tokens = (lines[row] or "").split(" ")
        if not (lines[row] or "").strip():
            raise DataError(
                f"{path} line {line} is blank: libFM text has `label id:value ...` on every line; remove it"
            )
        head = pl.Series(tokens[:1]).str.contains(rf"^{_NUMBER}$").item()
        rest = pl.Series([token for token in tokens[1:] if token], dtype=pl.String)
        bad = rest.filter(~rest.str.contains(rf"^\d+:{_NUMBER}$"))
        what, token = (
            ("go on with id:value", bad[0])
            if head and len(bad)
            else ("begin with a number", tokens[0])
        )
        raise DataError(f"a libFM line must {what}: {path} line {line} holds {token!r}; correct it")
    cells = lines.str.strip_chars_end(" ").str.replace_all(" +", " ").str.split(" ")
    frame = pl.DataFrame({"label": cells.list.first(), "pairs": cells.list.slice(1)})
    pairs = pl.element().str.split_exact(":", 1)
    try:
        return frame.select(
            pl.col("label").cast(pl.Float64),
            ids=pl.col("pairs").list.eval(pairs.struct.field("field_0").cast(pl.Int64)),
            values=pl.col("pairs").list.eval(pairs.struct.field("field_1").cast(pl.Float64)),
        )
    except pl.exceptions.PolarsError:
        number = int(lines.str.contains(r"\d{19,}:").arg_max() or 0)
        raise DataError(
            f"a feature id must fit in 64 bits: {path} line {number + source.first_line} holds a longer one"
        ) from None


def libfm_chunks(path: Path, size: int) -> Iterator[pl.DataFrame]:
    """The rows of a libFM file in chunks; together the rows of `read_libfm`."""
    line = 1
    held = b""
    for chunk in chain(ByteSource(path=path).chunks(size), [b"\n"]):
        held += chunk
        lines = held[: held.rfind(b"\n") + 1]
        kept = lines.rstrip()
        if not kept:
            continue
        end = lines.find(b"\n", len(kept)) + 1
        yield read_libfm(ByteSource(path=path, content=lines[:end], first_line=line))
        line += lines.count(b"\n", 0, end)
        held = held[end:]  # blank lines: only at the end of the file are they no fault
    if line == 1:
        read_libfm(ByteSource(path=path, content=b""))  # whose error says that the file is empty


class LibfmFields:
    """Whether libFM rows have fields: as many features in every row, each position with a range of ids of its own.

    Then a table has a column of ids per position, `f1_id` and so on, and if any value is not 1, a
    column of values, `f1_value` and so on; where the id of a position never changes, its values are
    a number's. Other rows keep their lists of ids and values.

    >>> rows = pl.DataFrame({"label": [1.0, 0.0], "ids": [[3, 70], [4, 71]], "values": [[1.0, 1.0], [1.0, 1.0]]})
    >>> fields = LibfmFields()
    >>> fields.add(rows)
    >>> fields.table(rows).rows(named=True)
    [{'label': 1.0, 'f1_id': 3, 'f2_id': 70}, {'label': 0.0, 'f1_id': 4, 'f2_id': 71}]
    """

    def __init__(self) -> None:
        # [2, F]: the least and the greatest id of each position
        self._ranges: np.ndarray | None = None
        self._any = True
        self._weighted = False

    def add(self, frame: pl.DataFrame) -> None:
        """Take the next rows of `read_libfm` into account, at least one."""
        lengths = frame.get_column("ids").list.len().unique().to_list()
        count = lengths[0] if len(lengths) == 1 else 0
        self._any = self._any and 1 <= count <= _MOST_FIELDS
        if not self._any:
            return
        ids = frame.get_column("ids").explode().to_numpy().reshape(-1, count)
        result = np.stack([ids.min(0), ids.max(0)])
        if self._ranges is not None and self._ranges.shape != result.shape:
            self._any = False
            return
        known = result if self._ranges is None else self._ranges
        self._ranges = np.stack([np.minimum(known[0], result[0]), np.maximum(known[1], result[1])])
        low, high = self._ranges[:, np.argsort(self._ranges[0])]
        self._any = bool((high[:-1] < low[1:]).all())
        self._weighted = self._weighted or bool((frame.get_column("values").explode() != 1).any())

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of `read_libfm` with a column per position if they have fields, else unchanged."""
        if not self._any or self._ranges is None:
            return frame
        lists = ("ids", "values") if self._weighted else ("ids",)
        places = range(self._ranges.shape[1])
        return frame.select(
            "label",
            *(
                pl.col(name).list.get(k).alias(f"f{k + 1}_{name[:-1]}")
                for name in lists
                for k in places
            ),
        )
