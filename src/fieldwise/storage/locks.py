"""Exclusive locks of folders and files.

A lock is released by the system when its process ends. It is on a file, since NFS clients see each
other's locks on files alone, not on folders. That of a folder is the file `.fieldwise.lock` in it,
which names host and process while one holds it, and is removed at the end.
"""

import contextlib
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fieldwise.storage.files import ABANDONED_AFTER_SECONDS, cannot_write

LOCK = ".fieldwise.lock"


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """A context that holds a folder's exclusive lock, after waiting for it; the folder is created if it is missing.

    On systems and file systems without locks (Windows, some network drives) it has no effect, and a
    `UserWarning` says so once per process; nor has it in a folder that is not writable.
    """
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise cannot_write(folder, e) from e
    descriptor = None
    try:
        descriptor = _locked(folder / LOCK, wait=True)
    except (ImportError, OSError):
        if sys.platform == "win32" or os.access(folder, os.W_OK):
            _warn_once("this system" if sys.platform == "win32" else f"the disk of {folder}")
    try:
        yield
    finally:
        _release(folder / LOCK, descriptor)


@contextlib.contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """A context that tries to lock an existing folder, or a file, created if missing; yields whether it has the lock.

    On systems without such locks, it always yields True.
    """
    path = path / LOCK if path.is_dir() else path
    try:
        descriptor = _locked(path, wait=False)
    except ImportError:
        yield True
        return
    try:
        yield descriptor is not None
    finally:
        _release(path, descriptor)


@contextlib.contextmanager
def abandoned(folder: Path, *, young: float = 0.0) -> Iterator[bool]:
    """A context that yields whether the process that has worked in a folder under its lock is surely dead.

    If so, nobody else can lock it meanwhile. A process on another machine, whose locks this one may
    not see, counts as dead after a day in which no file of the folder has changed.
    A folder without a lock may be one that was just made if it is less than `young` seconds old.
    """
    rest = young
    with contextlib.suppress(OSError, ValueError, IndexError):
        host = (folder / LOCK).read_text("utf-8").split()[0]
        rest = 0.0 if host == platform.node() else ABANDONED_AFTER_SECONDS
    rest = ABANDONED_AFTER_SECONDS if sys.platform == "win32" else rest
    if (
        rest
        and time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) < rest
    ):
        yield False
        return
    with try_lock(folder) as free:
        yield free


def _locked(path: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of a file, which then names this process; None if another process holds it."""
    import fcntl

    while True:
        # A link of this name, which another user may have created, is not followed.
        safe = getattr(os, "O_NOFOLLOW", 0)
        is_own = True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | safe, 0o644)
        except PermissionError:  # another user's, which can be locked all the same
            descriptor = os.open(path, os.O_RDONLY | safe)
            is_own = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    if is_own:
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, f"{platform.node()} {os.getpid()}\n".encode())
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # it was removed or replaced while this process waited, and its folder maybe too
        os.close(descriptor)
        if wait:
            path.parent.mkdir(parents=True, exist_ok=True)


def _release(path: Path, descriptor: int | None) -> None:
    """Release a lock; a folder's file is removed first, and who waits for it makes a new one."""
    if descriptor is None:
        return
    if path.name == LOCK:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    os.close(descriptor)


@cache
def _warn_once(where: str) -> None:
    warnings.warn(
        f"{where} has no file locks: two processes that save into one folder at the same time may mix their files; let "
        "only one process write there",
        stacklevel=4,
    )
