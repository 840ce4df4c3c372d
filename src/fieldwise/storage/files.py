"""Files that a crash can never leave half-written."""

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fieldwise.errors import DataError, FieldwiseError

__all__ = ["cannot_write", "check_file", "check_folder", "keep_elsewhere", "sync_folder", "write_atomically"]

PROBE_BYTES = 1 << 20


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a temporary name beside `path`, flush it to disk, then rename it over `path`.

    A crash at any moment leaves the old file or the new one.

    Errors:
        DataError: the disk is full or the folder cannot be written to; `path` is then as it was.
    """
    partial = path.with_name(f".{secrets.token_hex(6)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as e:
        raise cannot_write(path, e) from e
    finally:
        if partial.exists():
            partial.unlink()


def check_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that files cannot be written to; it need not be there, and is not made.

    A file of a megabyte is written and removed where the folder is, or would be: permissions do not tell of a
    read-only or a full disk, nor anything where root asks.

    Errors:
        DataError: it is a file or lies below one, cannot be written to, or the disk is full.
    """
    _probe(folder, folder)


def check_file(path: Path) -> None:
    """Refuse, before any work, a file that cannot be written; errors as of `check_folder` for its folder.

    Errors:
        DataError: it is a folder.
    """
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder; choose another name")
    _probe(path.parent, path)


def _probe(folder: Path, wanted: Path) -> None:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise DataError(f"cannot write {wanted}: {there} is no folder; choose a folder that can be written to")
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


def keep_elsewhere(write: Callable[[Path], object]) -> Path | None:
    """Write what its own place does not take into a new folder of another: nothing computed is lost with a disk.

    Args:
        write: writes into the folder that it is given.

    Returns:
        The folder: among the system's temporary files, in the user's home or in the current folder, the first that
        took it; None where none did.
    """
    for place in (tempfile.gettempdir, Path.home, Path.cwd):
        try:
            folder = Path(tempfile.mkdtemp(prefix="fieldwise-kept-", dir=place()))
        except (OSError, RuntimeError):  # RuntimeError: a user without a home
            continue
        try:
            write(folder)
        except (OSError, FieldwiseError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            return folder
    return None


def cannot_write(path: Path, error: OSError) -> DataError:
    """The error that says in a sentence why a file or folder could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"the disk is full: {path} cannot be written; free space there")
    return DataError(f"cannot write {path}: {error.strerror or error}; choose a folder that can be written to")


def sync_folder(folder: Path) -> None:
    """Flush a rename; some file systems refuse to open folders, and then there is nothing to do."""
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
