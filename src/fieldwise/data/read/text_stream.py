"""A text file as UTF-8 bytes: unpacked and decoded as it is read."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import polars as pl

from fieldwise.errors import Argument, DataError, MissingExtraError

CHUNK_BYTES = 1 << 24
LINES_CHUNK_BYTES = 1 << 20
"""Cut into lines at once."""
MOST_PACKING_RATIO = 100
"""Logs pack to a fifth or a twentieth."""
UNPACKED_BYTES_ALLOWED = 1 << 28
"""Any packed file may hold them."""
_UTF_8 = ("utf-8", "utf8", "utf-8-sig")


def suffix_of(path: Path) -> tuple[str, str]:
    """A name's suffix in lower case without the packing's, and the packing: `.gz`, `.zst` or empty.

    >>> suffix_of(Path("clicks.CSV.gz"))
    ('.csv', '.gz')
    """
    suffix = path.suffix.lower()
    if suffix in (".gz", ".zst"):
        return Path(path.stem).suffix.lower(), suffix
    return suffix, ""


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

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The bytes, in chunks of about `size`.

        Errors:
            DataError: no whole file, the encoding is unknown, or a byte that it does not have, with
                its line.
        """
        if self.content is not None:
            for start in range(0, len(self.content), size):
                yield self.content[start : start + size]
            return
        lines_left = self.first_line - 1
        for chunk in self._decoded(size):
            start = 0
            while lines_left and start < len(chunk):
                line_end = chunk.find(b"\n", start)
                if line_end < 0:
                    start = len(chunk)
                else:
                    start = line_end + 1
                    lines_left -= 1
            yield chunk[start:] if start else chunk

    def lines(self) -> Iterator[bytes]:
        r"""The physical lines with their `\n`; for finding a bad line, not for reading a table."""
        rest = b""
        for chunk in self.chunks(LINES_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if rest:
            yield rest

    def _decoded(self, size: int) -> Iterator[bytes]:
        """The whole file as UTF-8, in chunks of about `size`, each of which ends between two characters."""
        if self.encoding.lower().replace("_", "-") in _UTF_8:
            yield from self._unpacked(size)
            return
        try:
            decoder = codecs.getincrementaldecoder(self.encoding)()
        except LookupError:
            raise DataError(
                f"encoding {self.encoding!r} for {self.path} is unknown; give one such as utf-8 or iso-8859-1"
            ) from None
        line = 1
        for chunk in chain(self._unpacked(size), [b""]):
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as e:
                # The lines of the bytes that the decoder held back have been counted.
                counted_bytes = max(0, len(e.object) - len(chunk))
                line += e.object[: e.start].count(b"\n")
                line -= e.object[:counted_bytes].count(b"\n")
                raise DataError(
                    f"{self.path} is not in encoding {self.encoding}: line {line} holds the byte "
                    f"0x{e.object[e.start]:02x}; give the encoding that the file was written in"
                ) from None
            line += chunk.count(b"\n")
            yield text.encode("utf-8")

    def _unpacked(self, size: int) -> Iterator[bytes]:
        """The unpacked bytes in chunks of at most `size`."""
        path = self.path
        packing = suffix_of(path)[1]
        try:
            most_bytes = max(UNPACKED_BYTES_ALLOWED, MOST_PACKING_RATIO * path.stat().st_size)
            total_bytes = 0
            with path.open("rb") as raw_file:  # its errors name the causes that are told below
                file = _unpacking(raw_file, path, packing)
                while chunk := file.read(size):
                    total_bytes += len(chunk)
                    if packing and total_bytes > most_bytes:  # a few bytes may stand for gigabytes
                        command = "gunzip" if packing == ".gz" else "unzstd"
                        raise DataError(
                            f"a packed file may hold {MOST_PACKING_RATIO} times its size, or "
                            f"{UNPACKED_BYTES_ALLOWED >> 20} MiB, and {path} holds "
                            f"more: unpack it with {command} first if that is right"
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


def _unpacking(raw_file: IO[bytes], path: Path, packing: str) -> IO[bytes] | Any:
    """A file whose bytes are those of another, unpacked."""
    if packing == ".gz":
        return gzip.GzipFile(fileobj=raw_file)
    if packing != ".zst":
        return raw_file
    try:
        import pyarrow
    except ImportError as e:
        raise MissingExtraError(
            f"{path} is unpacked by pyarrow, which is not installed: pip install 'fieldwise[large]'"
        ) from e
    return pyarrow.input_stream(str(path), compression="zstd")


def read_lines(source: ByteSource) -> pl.Series:
    r"""The lines of a text file as a String column, without `\n` or `\r\n`; without blank lines at the end."""
    text = b"".join(source.chunks())
    try:
        # The line in front keeps polars from taking text for packed bytes, as `x^` begins zlib's.
        lines = pl.read_lines(b"\n" + text, name="line").get_column("line").slice(1)
    except pl.exceptions.ComputeError as e:
        raise not_utf8(source) from e
    last_filled = (lines.str.strip_chars() != "").arg_true().max()
    if last_filled is None:
        return lines.head(0)
    return lines.head(int(last_filled) + 1)  # type: ignore[arg-type]


def not_utf8(source: ByteSource) -> DataError:
    """The error for text that is not in UTF-8: the first bad line, and the encoding to try."""
    for number, line in enumerate(source.lines(), source.first_line):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as e:
            likely = _likely_encoding(line, is_first=number == 1)
            return DataError(
                f"{source.path} is not in encoding utf-8: line {number} holds the byte 0x{line[e.start]:02x}; "
                "give the encoding it was written in, probably ",
                Argument("encoding", likely),
            )
    return DataError(
        f"{source.path} is not in encoding utf-8; give the encoding that it was written in"
    )


def _likely_encoding(line: bytes, *, is_first: bool) -> str:
    """The most common encoding of a line that is not in UTF-8."""
    if is_first and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if any(0x80 <= byte < 0xA0 for byte in line):
        return "cp1252"
    return "iso-8859-1"
