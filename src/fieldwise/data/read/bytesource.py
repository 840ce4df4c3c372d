"""Reading files, plain or packed, as bytes, chunks, lines or checked UTF-8, with errors that name the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polars as pl

from fieldwise.data.read.kinds import suffix_of
from fieldwise.data.read.unpacking import CHUNK, byte_chunks, check_encoding, explained, in_utf8, is_utf8
from fieldwise.errors import DataError

__all__ = ["ByteSource", "encoding_sentence", "open_source", "read_content", "read_lines", "stream_source"]


@dataclass(frozen=True, kw_only=True)
class ByteSource:
    """A text file as UTF-8 bytes, read from disk as they are asked for, or held in memory.

    Args:
        path: the file, for errors and, if `content` is None, for reading.
        content: its bytes after unpacking and conversion to UTF-8.
        first_line: the line number of the content's first line in the file, if lines before it were removed.
        encoding: the file's encoding, if it is read from disk.
    """

    path: Path
    content: bytes | None = None
    first_line: int = 1
    encoding: str = "utf-8"

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """The bytes, in pieces of about `size`."""
        if self.content is not None:
            yield from (self.content[at : at + size] for at in range(0, len(self.content), size))
            return
        chunks = byte_chunks(self.path, size)
        yield from chunks if is_utf8(self.encoding) else in_utf8(self.path, self.encoding, chunks)

    def lines(self) -> Iterator[bytes]:
        r"""The physical lines with their `\n`; for finding a bad line, not for reading a table."""
        rest = b""
        for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in lines)
        if rest:
            yield rest

    def tail(self, size: int = 1 << 16) -> bytes:
        """The last `size` bytes of content in memory, or of a plain file."""
        if self.content is not None:
            return self.content[-size:]
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - size))
            return file.read()


def open_source(path: Path, encoding: str = "utf-8") -> ByteSource:
    """The file as a `ByteSource`: in memory if it is packed, not in UTF-8 or without a line end after its last line.

    Errors:
        DataError: the file is absent, unreadable or broken, or `encoding` is unknown or does not fit.
    """
    source = stream_source(path, encoding)
    if is_utf8(encoding) and not suffix_of(path)[1]:
        with explained(path), path.open("rb") as file:
            ends = _last_byte(file)
        if ends == b"\n":
            return source
    content = b"".join(source.chunks())
    # A missing final line end is added in memory: otherwise polars accepts a ragged last line.
    return ByteSource(path=path, content=content if content.endswith(b"\n") else content + b"\n")


def stream_source(path: Path, encoding: str = "utf-8") -> ByteSource:
    """The file as a `ByteSource` that is always read from disk, unpacked and converted on the way.

    Errors:
        DataError: `encoding` is unknown.
    """
    check_encoding(path, encoding)
    return ByteSource(path=path, encoding=encoding)


def read_content(path: Path) -> bytes:
    """All bytes of a file, unpacked if its name ends in `.gz` or `.zst`.

    Errors:
        DataError: the file is absent, unreadable or broken.
    """
    return b"".join(byte_chunks(path))


def read_lines(path: Path, encoding: str = "utf-8", content: bytes | None = None, *, first_line: int = 1) -> pl.Series:
    r"""The lines of a text file as a String column, without `\n` or `\r\n`; without blank lines at the end.

    Args:
        path: the file, plain or packed.
        encoding: the file's encoding.
        content: its bytes, if the caller has already read them.
        first_line: the number of the content's first line in the file, for errors.
    """
    raw = read_content(path) if content is None else content
    try:
        text = raw if encoding == "utf-8" else raw.decode(encoding).encode("utf-8")
        lines = pl.read_lines(text, name="line").get_column("line") if text else pl.Series("line", [], pl.String)
    except (pl.exceptions.ComputeError, UnicodeDecodeError) as e:
        raise DataError(encoding_sentence(ByteSource(path=path, content=raw, first_line=first_line), encoding)) from e
    filled = lines.str.strip_chars() != ""
    last = int(filled.arg_true().max() or 0) if filled.any() else -1  # type: ignore[arg-type]
    return lines.head(last + 1)


def encoding_sentence(source: ByteSource, encoding: str = "utf-8") -> str:
    """A sentence for text that is not in `encoding`: the first bad line, and the encoding to try."""
    for number, line in enumerate(source.lines(), source.first_line):
        try:
            line.decode(encoding)
        except UnicodeDecodeError as e:
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                likely = "utf-16"
            else:
                likely = "cp1252" if any(0x80 <= byte < 0xA0 for byte in line) else "iso-8859-1"
            return (
                f"{source.path} is not in encoding {encoding}: line {number} holds the byte 0x{line[e.start]:02x}; "
                f"give the encoding it was written in, probably encoding={likely!r} (on the command line "
                f"--encoding {likely}, in a recipe data.encoding)"
            )
    return f"{source.path} is not in encoding {encoding}; give the encoding that it was written in"


def _last_byte(file: IO[bytes]) -> bytes:
    if file.seek(0, 2) == 0:
        return b""
    file.seek(-1, 2)
    return file.read(1)
