"""Exclusive locks on folders and files, which the system releases when the process ends."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fieldwise.storage.files import cannot_write

__all__ = ["one_writer", "try_lock"]


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """A context that holds a folder's exclusive lock, after waiting for it; the folder is created if it is missing.

    The lock is on the folder itself: no file is left. On systems and file systems without locks (Windows, some network
    drives) it has no effect, and a `UserWarning` says so once per process.

    Errors:
        DataError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise cannot_write(folder, e) from e
    descriptor = None
    try:
        descriptor = _locked(folder, wait=True)
    except (ImportError, OSError):
        _warn_once("this system" if sys.platform == "win32" else f"the disk of {folder}")
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """A context that tries to lock an existing folder, or a file, created if missing; yields whether it has the lock.

    On systems without such locks, it always yields True.

    Errors:
        OSError: it cannot be opened, or its file system refuses locks.
    """
    try:
        descriptor = _locked(path, wait=False)
    except ImportError:
        yield True
        return
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of a folder or file; None if another process holds it.

    Errors:
        ImportError: this system has no such locks.
    """
    import fcntl

    while True:
        is_folder = path.is_dir()
        # A link of this name, which another user may have created, is not followed.
        flags = os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed or replaced while this process waited
        if is_folder:
            path.mkdir(parents=True, exist_ok=True)


@cache
def _warn_once(where: str) -> None:
    warnings.warn(
        f"{where} has no file locks: two processes that save into one folder at the same time may mix their files; "
        "let only "
        "one process write there",
        stacklevel=4,
    )
