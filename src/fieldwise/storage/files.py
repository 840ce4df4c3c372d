"""Files written in one step, or flushed while they are written, and the errors of a disk that is full or read-only."""

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol, Self

from fieldwise.errors import DataError
from fieldwise.storage.checksums import WordSums

FULL = (errno.ENOSPC, errno.EDQUOT)
BYTES_BETWEEN_FLUSHES = 1 << 26
PARTIAL = re.compile(r"\.[0-9a-f]{12}\.part")
ABANDONED_AFTER_SECONDS = 86_400
"""Without a change: an unfinished file is then taken for one of a killed process."""
_SWEPT: set[Path] = set()


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a file in one step: see `new_file`.

    Unfinished files that writers left in its folder which were killed at least a day ago are
    removed; once a process.
    """
    if path.parent not in _SWEPT:
        _SWEPT.add(path.parent)
        with contextlib.suppress(OSError):
            for entry in os.scandir(path.parent):
                with contextlib.suppress(OSError):
                    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if (
                        PARTIAL.fullmatch(entry.name)
                        and entry.is_file(follow_symlinks=False)
                        and age > ABANDONED_AFTER_SECONDS
                    ):
                        os.unlink(entry)
    with new_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def new_file(path: Path, *, flush: bool = True, partial: Path | None = None) -> Iterator[IO[bytes]]:
    """A context with an open file of a temporary name, `partial` or beside `path`, which it is renamed to at the end.

    A crash at any moment leaves the old file or the new one. Without `flush` this is not so if the
    power fails.

    Errors:
        DataError: the disk is full or the folder is not writable; `path` is then unchanged.
    """
    partial = partial or path.with_name(f".{secrets.token_hex(6)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            yield file
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
        if flush:
            sync_folder(path.parent)
    except OSError as e:
        raise cannot_write(path, e) from e
    finally:
        if partial.exists():
            partial.unlink()


class Written(Protocol):
    """Interface of a file that is written."""

    def write(self, content: Any, /) -> int:
        """Append bytes, or what has a buffer of them."""


class FlushedFile:
    """An open file whose content is flushed to the disk in another thread, while more is written, and summed."""

    def __init__(self, file: IO[bytes], sums: WordSums | None = None) -> None:
        self._file = file
        self._sums = sums
        self._written = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-flusher")
        self._flushing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown()
        if kind is None:
            self._check_flushed()
            self._file.flush()
            os.fsync(self._file.fileno())

    def write(self, content: Any) -> int:
        """Append bytes, or what has a buffer of them; returns their number."""
        written = self._file.write(content)
        self._written += written
        if self._sums is not None:
            self._sums.update(content)
        if self._written > BYTES_BETWEEN_FLUSHES and (
            self._flushing is None or self._flushing.done()
        ):
            self._check_flushed()
            self._flushing = self._thread.submit(os.fsync, self._file.fileno())
            self._written = 0
        return written

    def _check_flushed(self) -> None:
        """Raise the error of the last flush: the system reports it once, and a later flush would succeed."""
        if self._flushing is not None:
            self._flushing.result()


def cannot_write(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that could not be written, with the reason."""
    if disk_is_full(error):
        return DataError(f"the disk is full: cannot write {path}; free some space there")
    return DataError(f"cannot write {path}: {error.strerror or error}; choose a writable folder")


def disk_is_full(error: OSError) -> bool:
    """Whether there was no space, or none left of a quota; an error of Polars has the number in its text alone."""
    if error.errno is None:
        return any(f"(os error {number})" in str(error) for number in FULL)
    return error.errno in FULL


def sync_folder(folder: Path) -> None:
    """Flush a rename to disk; does nothing on file systems that cannot open folders."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


FileState = tuple[int, int, int]
"""Size, modification time and inode of a file, which tell cheaply whether its content has changed."""


def file_state(path: Path) -> FileState:
    """The state of a file.

    The time of the last change of its entry (ctime) is another one after a new hard link or other
    permissions.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
