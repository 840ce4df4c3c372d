"""Atomic writing of files and folders, checks that a place can be written to, checksums, and exclusive locks.

Checksums are SHA-256, and a fast one that detects damage.

A lock is released by the system when its process ends. It is on a file, since NFS clients see each
other's locks on files alone, not on folders. That of a folder is the file `.fieldwise.lock` in it,
which names host and process while one holds it, and is removed at the end.

Folders are made whole, in one step, or for scratch files. Whole ones are for what other programs
read, or what never changes; `storage.artifact` is for the others.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol, Self

from fieldwise.errors import Argument, ConfigError, DataError, FieldwiseError

_BLOCK = 1 << 17  # 64-bit words: 1 MiB
_OCTETS = 8 * _BLOCK


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Written(Protocol):
    """Interface of a file that is written."""

    def write(self, content: Any, /) -> int:
        """Append bytes, or what has a buffer of them."""


class WordSums:
    """A fast checksum of bytes that come chunk by chunk: sums of 64-bit words per megabyte, at memory speed.

    It detects damage by disks and incomplete copies, but not a deliberate change. It is used as
    hashes of `hashlib`.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._length = 0
        self._rest = bytearray()

    def update(self, content: Any) -> None:
        """Take the next bytes into account, or what has a buffer of them."""
        octets = memoryview(content)
        if not octets.nbytes:  # such a buffer has no bytes to view
            return
        octets = octets.cast("B")
        self._length += len(octets)
        # fill the block that was begun: a copy of all octets would take as much memory as they
        if self._rest:
            missing = _OCTETS - len(self._rest)
            self._rest += octets[:missing]
            octets = octets[missing:]
        if len(self._rest) == _OCTETS:
            self._digest.update(_block_sums(self._rest))
            self._rest = bytearray()
        whole = len(octets) // _OCTETS * _OCTETS
        if whole:
            self._digest.update(_block_sums(octets[:whole]))
        self._rest += octets[whole:]

    def hexdigest(self) -> str:
        """The checksum of all bytes so far."""
        digest = self._digest.copy()
        digest.update(self._rest + self._length.to_bytes(8, "little"))
        return digest.hexdigest()


def word_sums(path: Path) -> str:
    """The `WordSums` of a file."""
    import numpy as np  # not needed to list a cache

    sums = WordSums()
    if path.stat().st_size:
        sums.update(np.memmap(path, dtype=np.uint8, mode="r"))
    return sums.hexdigest()


def _block_sums(octets: Any) -> bytes:
    """The sums of 64-bit words of whole blocks."""
    import numpy as np  # not needed to list a cache

    result: bytes = (
        np.frombuffer(octets, np.uint64).reshape(-1, _BLOCK).sum(axis=1, dtype=np.uint64).tobytes()
    )
    return result


FULL = (errno.ENOSPC, errno.EDQUOT)
PROBE_BYTES = 1 << 20
FLUSHED = 1 << 26  # bytes that are written before they are flushed
PARTIAL = re.compile(r"\.[0-9a-f]{12}\.part")
KILLED = 86_400  # seconds without a change after which an unfinished file is abandoned
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
                        and age > KILLED
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


def already_exists(out: Path, argument: str) -> ConfigError:
    """The error for an output that exists, and is not to be replaced; `argument` is the one that gives it."""
    overwrite = Argument("overwrite", True)
    return ConfigError(
        f"{out} exists: give ", overwrite, " to replace it, or another ", Argument(argument)
    )


def check_not_input(out: Path, inputs: Iterable[Path]) -> None:
    """Check that an output would replace none of the inputs: files, folders, or files in these folders.

    Errors:
        ConfigError: it would, under this name or another one (a link).
    """
    if not out.exists():
        return
    for path in inputs:
        same = path.exists() and path.samefile(out)
        if same or (
            path.is_dir() and out.is_file() and out.resolve().is_relative_to(path.resolve())
        ):
            shown = (
                f"{out}"
                if path == out
                else f"{out}, which is {'' if same else 'part of '}the input {path}"
            )
            raise ConfigError(
                Argument("out"),
                f" must not be an input, which it would replace, found {shown}: choose another name",
            )


def check_output(out: Path, *, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Check, before any work, that a file can be written and replaces nothing unless `overwrite` says so.

    An input is never replaced. Folders that are replaced as a whole have
    `ArtifactKind.check_folder`.

    Errors:
        ConfigError: the file exists, or is one of the inputs: see `check_not_input`.
        DataError: as for `check_file`.
    """
    check_not_input(out, inputs)
    check_file(out)
    if out.exists() and not overwrite:
        raise already_exists(out, "out")


def check_file(path: Path) -> None:
    """Check, before any work, that a file can be written; errors as for `check_folder` on its folder."""
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder; choose another name")
    check_folder(path.parent, path)


def check_folder(folder: Path, wanted: Path | None = None) -> None:
    """Check, before any work, that files can be written to a folder; it need not exist, and is not created.

    A file of one megabyte is written there and removed: permissions do not show a read-only or full
    disk, and always allow root. Errors name the file that is `wanted` there, or the folder.
    """
    wanted = wanted or folder
    there = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path)
    )
    if not there.is_dir():
        raise DataError(f"cannot write {wanted}: {there} is not a folder; choose a writable folder")
    probe = there / f".{secrets.token_hex(6)}.part"
    try:
        try:
            with open(probe, "xb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as e:
        raise cannot_write(wanted, e) from e


def keep_elsewhere(write: Callable[[Path], object], failure: Exception) -> Path:
    """Save a result to another place if its own failed, so that nothing computed is lost.

    `write` writes into the folder that it is given.

    Returns:
        The new folder: in the system's temporary folder, the user's home or the current folder, the
        first that worked.

    Errors:
        The `failure` of its own place, if none did.
    """
    for candidate in (tempfile.gettempdir, Path.home, Path.cwd):
        try:
            folder = Path(tempfile.mkdtemp(prefix="fieldwise-kept-", dir=candidate()))
        except (OSError, RuntimeError):  # RuntimeError: a user without a home
            continue
        try:
            write(folder)
        except (OSError, FieldwiseError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    raise failure


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
        if self._written > FLUSHED and (self._flushing is None or self._flushing.done()):
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
        rest = 0.0 if host == platform.node() else KILLED
    rest = KILLED if sys.platform == "win32" else rest
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


SCRATCH = ".fieldwise-scratch."
YOUNG = 60  # seconds
NAME = re.compile(rf"{re.escape(SCRATCH)}[a-z0-9_]{{8}}")  # as tempfile names it


@contextlib.contextmanager
def whole_folder(folder: Path, *, replace: bool = True) -> Iterator[Path]:
    """A context with a new folder to fill, which replaces `folder` if the block ends without an error.

    Linux and macOS exchange the two in one step, on most file systems. Elsewhere the old one is
    moved aside first: for a moment there is none, and if the process is killed then, the next
    writer puts the old one back.

    Args:
        folder: the final path; its parent is created if it is missing.
        replace: if False, a folder that exists at the end stays, and the new one is removed.

    Errors:
        DataError: the disk is full, or the place is not writable; an existing folder is then
            unchanged.
    """
    folder = folder.absolute()
    parent = folder.parent
    aside = folder.with_name(f".{folder.name}.old")
    try:
        with one_writer(parent):
            if aside.exists():
                shutil.rmtree(aside) if folder.exists() else aside.rename(folder)
        with scratch_folder(parent) as scratch:
            new = scratch / "new"
            new.mkdir()
            yield new
            sync_tree(new)
            with one_writer(parent):
                if not folder.exists():
                    new.rename(folder)
                elif replace and not _exchange(new, folder):
                    # of a writer that was killed meanwhile
                    shutil.rmtree(aside, ignore_errors=True)
                    folder.rename(aside)
                    try:
                        new.rename(folder)
                    except BaseException:
                        aside.rename(folder)
                        raise
                    aside.rename(scratch / "old")
            sync_folder(parent)
    except OSError as e:
        raise cannot_write(folder, e) from e


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """A context with a new, locked folder in `parent`, removed at its end.

    The system's temporary folder is the parent if omitted. Files that are still mapped then stay
    usable. Folders that killed processes left in the parent are removed first.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_scratch(parent)
    with contextlib.ExitStack() as held:
        temporary = tempfile.TemporaryDirectory(
            prefix=SCRATCH, dir=parent, ignore_cleanup_errors=True
        )
        folder = Path(held.enter_context(temporary))
        with contextlib.suppress(OSError):  # a file system without locks
            held.enter_context(try_lock(folder))
        yield folder


def remove_scratch(parent: Path) -> None:
    """Remove the scratch folders of processes that are surely dead; none on a file system without locks."""
    for path in parent.glob(f"{SCRATCH}*/"):
        if NAME.fullmatch(path.name):
            # another user's
            with contextlib.suppress(OSError), abandoned(path, young=YOUNG) as dead:
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


def _exchange(path: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if one is missing, or the system or file system cannot do it."""
    try:
        system = ctypes.CDLL(None, use_errno=True)
    except (OSError, TypeError):  # Windows
        return False
    a = os.fsencode(path)
    b = os.fsencode(other)
    if hasattr(system, "renameat2"):
        working_folder = -100  # AT_FDCWD
        exchange = 2  # RENAME_EXCHANGE
        return bool(system.renameat2(working_folder, a, working_folder, b, exchange) == 0)
    if hasattr(system, "renamex_np"):
        return bool(system.renamex_np(a, b, 2) == 0)  # RENAME_SWAP
    return False
