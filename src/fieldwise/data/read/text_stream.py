"""Text files as bytes, chunks, lines or UTF-8: unpacked, converted, with errors that name the file."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import polars as pl

from fieldwise.data.read.file_listing import suffix_of
from fieldwise.errors import DataError, MissingExtraError

CHUNK = 1 << 24
_LINES = 1 << 20  # bytes that are cut into lines at once
RATIO = 100  # of a packed file; logs pack to a fifth or a twentieth
FREE = 1 << 28  # bytes that any packed file may hold


def byte_chunks(path: Path, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a file in chunks of at most `size`, unpacked if its name ends in `.gz` or `.zst`."""
    packing = suffix_of(path)[1]
    with explained(path):
        most, total = max(FREE, RATIO * path.stat().st_size), 0
        with _opened(path, packing) as file:
            while chunk := file.read(size):
                total += len(chunk)
                if packing and total > most:  # a few bytes may stand for gigabytes
                    raise DataError(
                        f"a packed file may hold {RATIO} times its size, or {FREE >> 20} MiB, and {path} holds more: "
                        f"unpack it with {'gunzip' if packing == '.gz' else 'unzstd'} first if that is right"
                    )
                yield chunk


def decode_utf8(path: Path, encoding: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks of a file in an encoding as UTF-8; every chunk ends between two characters.

    Errors:
        DataError: a byte that the encoding does not have; its line is named.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    for chunk in chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as e:
            begun = len(e.object) - len(chunk)  # bytes of the chunk before, whose lines have been counted
            line += e.object[: e.start].count(b"\n") - e.object[: max(0, begun)].count(b"\n")
            raise DataError(
                f"{path} is not in encoding {encoding}: line {line} holds the byte 0x{e.object[e.start]:02x}; "
                "give the encoding that the file was written in"
            ) from None
        line += chunk.count(b"\n")
        yield text.encode("utf-8")


def _opened(path: Path, packing: str) -> IO[bytes] | Any:
    if packing == ".gz":
        return gzip.open(path, "rb")
    if packing != ".zst":
        return path.open("rb")
    path.open("rb").close()  # Python's errors have the names that are explained below
    try:
        import pyarrow
    except ImportError as e:
        raise MissingExtraError(
            f"{path} is unpacked by pyarrow, which is not installed: pip install 'fieldwise[large]'"
        ) from e
    return pyarrow.input_stream(str(path), compression="zstd")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """A context in which the system's and the unpackers' errors become a DataError that names the file."""
    try:
        yield
    except FileNotFoundError as e:
        raise DataError(f"the file {path} does not exist; check the path") from e
    except IsADirectoryError as e:
        raise DataError(f"{path} is a folder, not a file; name the file in it") from e
    except (gzip.BadGzipFile, EOFError, zlib.error) as e:
        raise DataError(f"{path} is not a whole gzip file ({e}); copy or fetch it again") from e
    except OSError as e:
        if suffix_of(path)[1] == ".zst" and e.errno is None:
            raise DataError(f"{path} is not a whole zstd file ({e}); copy or fetch it again") from e
        raise DataError(f"cannot read {path}: {e.strerror or e}") from e


@dataclass(frozen=True, kw_only=True)
class ByteSource:
    """A text file as UTF-8 bytes, read from disk as they are asked for, or held in memory.

    Args:
        path: the file, for errors and, if `content` is None, for reading.
        content: its bytes after unpacking and conversion to UTF-8.
        first_line: the line number of the content's first line in the file, if lines before it were removed.
        encoding: the file's encoding, if it is read from disk.

    Errors:
        DataError: the encoding is unknown.
    """

    path: Path
    content: bytes | None = None
    first_line: int = 1
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise DataError(
                f"encoding {self.encoding!r} for {self.path} is unknown; give one such as utf-8 or iso-8859-1"
            ) from None

    def chunks(self, size: int = CHUNK) -> Iterator[bytes]:
        """The bytes, in pieces of about `size`."""
        if self.content is not None:
            yield from (self.content[at : at + size] for at in range(0, len(self.content), size))
            return
        chunks = byte_chunks(self.path, size)
        is_utf8 = self.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
        yield from chunks if is_utf8 else decode_utf8(self.path, self.encoding, chunks)

    def lines(self) -> Iterator[bytes]:
        r"""The physical lines with their `\n`; for finding a bad line, not for reading a table."""
        rest = b""
        for chunk in self.chunks(_LINES):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line + b"\n" for line in lines)
        if rest:
            yield rest


def read_lines(source: ByteSource) -> pl.Series:
    r"""The lines of a text file as a String column, without `\n` or `\r\n`; without blank lines at the end."""
    text = b"".join(source.chunks())
    try:
        lines = pl.read_lines(text, name="line").get_column("line") if text else pl.Series("line", [], pl.String)
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
