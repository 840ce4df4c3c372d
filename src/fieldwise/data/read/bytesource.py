"""Reading files, plain or gzipped, as bytes, chunks, lines or checked UTF-8, with errors that name the file."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import polars as pl

from fieldwise.errors import DataError

__all__ = ["ByteSource", "open_source", "read_content", "read_lines"]

_CHUNK = 1 << 24
RATIO = 100  # of a gzip file; logs pack to a fifth or a twentieth
FREE = 1 << 28  # bytes that any gzip file may hold


@dataclass(frozen=True, kw_only=True)
class ByteSource:
    """A text file as UTF-8 bytes: read from disk if it is plain UTF-8, else held in memory.

    Args:
        path: the file, for errors and, if `content` is None, for reading.
        content: its bytes after unpacking and conversion to UTF-8.
        first_line: the line number of the content's first line in the file, if lines before it were removed.
    """

    path: Path
    content: bytes | None = None
    first_line: int = 1

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces of at most 16 MiB."""
        if self.content is not None:
            yield from (self.content[at : at + _CHUNK] for at in range(0, len(self.content), _CHUNK))
            return
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def lines(self) -> Iterator[bytes]:
        r"""The physical lines with their `\n`; for finding a bad line, not for reading a table."""
        if self.content is not None:
            start = 0
            while start < len(self.content):
                end = self.content.find(b"\n", start) + 1 or len(self.content)
                yield self.content[start:end]
                start = end
            return
        with self.path.open("rb") as file:
            yield from file

    def tail(self, size: int = 1 << 16) -> bytes:
        """The last `size` bytes."""
        if self.content is not None:
            return self.content[-size:]
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - size))
            return file.read()


def open_source(path: Path, encoding: str = "utf-8") -> ByteSource:
    """The file as a `ByteSource`, unpacked if its name ends in `.gz`, and converted to UTF-8.

    Errors:
        DataError: the file is absent, unreadable or a broken gzip, or `encoding` is unknown or does not fit.
    """
    utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(f"encoding {encoding!r} for {path} is unknown; give one such as utf-8 or iso-8859-1") from None
    if utf8 and path.suffix.lower() != ".gz":
        with _explained(path), path.open("rb") as file:
            ends = _last_byte(file)
        # A missing final line end is added in memory: otherwise polars accepts a ragged last line.
        return ByteSource(path=path) if ends == b"\n" else ByteSource(path=path, content=read_content(path) + b"\n")
    content = read_content(path)
    if not utf8:
        try:
            content = content.decode(encoding).encode("utf-8")
        except UnicodeDecodeError as e:
            line = content[: e.start].count(b"\n") + 1
            raise DataError(
                f"{path} is not in encoding {encoding}: line {line} holds the byte 0x{content[e.start]:02x}; "
                "give the encoding that the file was written in"
            ) from None
    return ByteSource(path=path, content=content if content.endswith(b"\n") else content + b"\n")


def read_content(path: Path) -> bytes:
    """All bytes of a file, unpacked if its name ends in `.gz`.

    Errors:
        DataError: the file is absent, unreadable or a broken gzip.
    """
    with _explained(path):
        if path.suffix.lower() == ".gz":
            return _unpacked(path)
        return path.read_bytes()


def _unpacked(path: Path) -> bytes:
    """The content of a gzip file, if it is no more than text packs to: a few bytes may stand for gigabytes."""
    most = max(FREE, RATIO * path.stat().st_size)
    parts, size = [], 0
    with gzip.open(path, "rb") as packed:
        while part := packed.read(_CHUNK):
            parts.append(part)
            size += len(part)
            if size > most:
                raise DataError(
                    f"a gzip file may hold {RATIO} times its size, or {FREE >> 20} MiB, and {path} holds more: "
                    "unpack it with gunzip first if that is right"
                )
    return b"".join(parts)


def read_lines(path: Path, encoding: str = "utf-8", content: bytes | None = None) -> pl.Series:
    r"""The lines of a text file as a String column, without `\n` or `\r\n`; without blank lines at the end.

    Args:
        path: the file, plain or `.gz`.
        encoding: the file's encoding.
        content: its bytes, if the caller has already read them.
    """
    raw = read_content(path) if content is None else content
    try:
        text = raw if encoding == "utf-8" else raw.decode(encoding).encode("utf-8")
        lines = pl.read_lines(text, name="line").get_column("line") if text else pl.Series("line", [], pl.String)
    except (pl.exceptions.ComputeError, UnicodeDecodeError) as e:
        raise DataError(encoding_sentence(ByteSource(path=path, content=raw), encoding)) from e
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


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as e:
        raise DataError(f"the file {path} does not exist; check the path") from e
    except IsADirectoryError as e:
        raise DataError(f"{path} is a folder, not a file; name the file in it") from e
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise DataError(f"{path} is not a whole gzip file ({e}); copy or fetch it again") from e
    except OSError as e:
        raise DataError(f"cannot read {path}: {e.strerror or e}") from e
