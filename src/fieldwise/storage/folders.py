"""Exclusive locks, which the system releases when the process ends, and folders that one process makes.

A lock is on a file, since NFS clients see each other's locks on files alone, not on folders. That of a folder is the
file `.fieldwise.lock` in it, which names host and process while one holds it, and is removed at the end.

Folders are made whole, in one step, or for scratch files. Whole ones are for what other programs read, or what never
changes; `storage.artifact` is for the others.
"""

import contextlib
import ctypes
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fieldwise.storage.files import KILLED, cannot_write, sync_folder

LOCK = ".fieldwise.lock"


@contextlib.contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """A context that holds a folder's exclusive lock, after waiting for it; the folder is created if it is missing.

    On systems and file systems without locks (Windows, some network drives) it has no effect, and a `UserWarning` says
    so once per process; nor has it in a folder that is not writable.
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

    If so, nobody else can lock it meanwhile. A process on another machine, whose locks this one may not see, counts as
    dead after a day in which no file of the folder has changed.
    A folder without a lock may be one that was just made if it is less than `young` seconds old.
    """
    rest = young
    with contextlib.suppress(OSError, ValueError, IndexError):
        host = (folder / LOCK).read_text("utf-8").split()[0]
        rest = 0.0 if host == platform.node() else KILLED
    rest = KILLED if sys.platform == "win32" else rest
    if rest and time.time() - max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) < rest:
        yield False
        return
    with try_lock(folder) as free:
        yield free


def _locked(path: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock of a file, which then names this process; None if another process holds it."""
    import fcntl

    while True:
        # A link of this name, which another user may have created, is not followed.
        safe, is_own = getattr(os, "O_NOFOLLOW", 0), True
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | safe, 0o644)
        except PermissionError:  # another user's, which can be locked all the same
            descriptor, is_own = os.open(path, os.O_RDONLY | safe), False
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
        os.close(descriptor)  # it was removed or replaced while this process waited, and its folder maybe too
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
        f"{where} has no file locks: two processes that save into one folder at the same time may mix their files; "
        "let only "
        "one process write there",
        stacklevel=4,
    )


SCRATCH = ".fieldwise-scratch."
YOUNG = 60  # seconds
NAME = re.compile(rf"{re.escape(SCRATCH)}[a-z0-9_]{{8}}")  # as tempfile names it


@contextlib.contextmanager
def whole_folder(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """A context with a new folder to fill, which replaces `folder` if the block ends without an error.

    Linux and macOS exchange the two in one step, on most file systems. Elsewhere the old one is moved aside first: for
    a moment there is none, and if the process is killed then, the next writer puts the old one back.

    Args:
        folder: the final path; its parent is created if it is missing.
        replace: if False, a folder that exists at the end stays, and the new one is removed.

    Errors:
        DataError: the disk is full, or the place is not writable; an existing folder is then unchanged.
    """
    folder = folder.absolute()
    place, aside = folder.parent, folder.with_name(f".{folder.name}.old")
    try:
        with one_writer(place):
            if aside.exists():
                shutil.rmtree(aside) if folder.exists() else aside.rename(folder)
        with scratch_folder(place) as scratch:
            new = scratch / "new"
            new.mkdir()
            yield new
            sync_tree(new)
            with one_writer(place):
                if not folder.exists():
                    new.rename(folder)
                elif replace and not _exchange(new, folder):
                    shutil.rmtree(aside, ignore_errors=True)  # of a writer that was killed meanwhile
                    folder.rename(aside)
                    try:
                        new.rename(folder)
                    except BaseException:
                        aside.rename(folder)
                        raise
                    aside.rename(scratch / "old")
            sync_folder(place)
    except OSError as e:
        raise cannot_write(folder, e) from e


@contextlib.contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """A context with a new folder, which holds its lock alone, and which is removed at its end.

    Files that are still mapped then can be used further.

    Those that killed processes have left in the same place are removed before.
    It lies in the folder of temporary files if `place` is omitted.
    """
    place = Path(tempfile.gettempdir()) if place is None else place
    remove_scratch(place)
    with contextlib.ExitStack() as held:
        made = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=place, ignore_cleanup_errors=True)
        folder = Path(held.enter_context(made))
        with contextlib.suppress(OSError):  # a file system without locks
            held.enter_context(try_lock(folder))
        yield folder


def remove_scratch(place: Path) -> None:
    """Remove the scratch folders of processes that are surely dead; none on a file system without locks."""
    for path in place.glob(f"{SCRATCH}*/"):
        if NAME.fullmatch(path.name):
            with contextlib.suppress(OSError), abandoned(path, young=YOUNG) as dead:  # another user's
                if dead:
                    shutil.rmtree(path, ignore_errors=True)


def sync_tree(folder: Path) -> None:
    """Flush all files and folders below a folder to disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if one is missing, or the system or file system cannot do it."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return False
    a, b = os.fsencode(one), os.fsencode(other)
    if hasattr(system, "renameat2"):
        at, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return bool(system.renameat2(at, a, at, b, exchange) == 0)
    if hasattr(system, "renamex_np"):
        return bool(system.renamex_np(a, b, 2) == 0)  # RENAME_SWAP
    return False
