"""Text files as streams of bytes: unpacked, converted to UTF-8, with errors that name the file."""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fieldwise.data.read.kinds import suffix_of
from fieldwise.errors import DataError, MissingExtraError

__all__ = ["CHUNK", "byte_chunks", "check_encoding", "explained", "in_utf8", "is_utf8"]

CHUNK = 1 << 24
RATIO = 100  # of a packed file; logs pack to a fifth or a twentieth
FREE = 1 << 28  # bytes that any packed file may hold


def is_utf8(encoding: str) -> bool:
    """Whether text in this encoding is UTF-8, perhaps with a byte order mark."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


def check_encoding(path: Path, encoding: str) -> None:
    """Check that an encoding is known.

    Errors:
        DataError: it is not.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(f"encoding {encoding!r} for {path} is unknown; give one such as utf-8 or iso-8859-1") from None


def byte_chunks(path: Path, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a file in chunks of at most `size`, unpacked if its name ends in `.gz` or `.zst`.

    Errors:
        DataError: the file is absent, unreadable, broken, or holds far more than text packs to.
        MissingExtraError: a `.zst` file, and pyarrow is not installed.
    """
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


def in_utf8(path: Path, encoding: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks of a file in an encoding as UTF-8; every chunk ends between two characters.

    Errors:
        DataError: a byte that the encoding does not have; its line is named.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    line = 1
    for chunk, last in _with_last(chunks):
        try:
            text = decoder.decode(chunk, final=last)
        except UnicodeDecodeError as e:
            begun = len(e.object) - len(chunk)  # bytes of the chunk before, whose lines have been counted
            line += e.object[: e.start].count(b"\n") - e.object[: max(0, begun)].count(b"\n")
            raise DataError(
                f"{path} is not in encoding {encoding}: line {line} holds the byte 0x{e.object[e.start]:02x}; "
                "give the encoding that the file was written in"
            ) from None
        line += chunk.count(b"\n")
        yield text.encode("utf-8")


def _with_last(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, bool]]:
    before = next(chunks, b"")
    for chunk in chunks:
        yield before, False
        before = chunk
    yield before, True


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
