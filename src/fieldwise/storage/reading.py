"""Reading regular files of limited size. A pipe or a device is an error, and does not block the reader."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["read_octets", "read_regular"]

BLOCK = 1 << 24


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a file.

    Errors:
        OSError: it cannot be read, or is no regular file.
        ValueError: it has more than `most` bytes.
    """
    with _opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"it has {size:,} bytes, more than the {most:,} that it may have")
        return file.read(size)


def read_octets(path: Path, size: int, digest: bool) -> tuple[bytearray | None, str]:
    """The bytes of a file, and if wanted their SHA-256; None if the file has another size.

    Errors:
        OSError: it cannot be read, or is no regular file.
    """
    with _opened(path) as file:
        if os.fstat(file.fileno()).st_size != size:
            return None, ""
        found, hasher, read = bytearray(size), hashlib.sha256(), 0
        view = memoryview(found)
        while read < size:
            count = file.readinto(view[read : read + BLOCK])  # type: ignore[attr-defined]
            if not count:  # it was truncated meanwhile
                return None, ""
            if digest:
                hasher.update(view[read : read + count])
            read += count
        return found, hasher.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # opening a pipe would wait
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is no regular file")
        yield cast(BinaryIO, file)
