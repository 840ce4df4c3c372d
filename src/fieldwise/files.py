"""Files that a crash can never leave half-written."""

import errno
import os
import secrets
from pathlib import Path

from fieldwise.errors import DataError

__all__ = ["sync_folder", "write_atomically"]


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
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk is full: {path} ({len(content)} bytes) was not written; free space there") from e
        why = e.strerror or str(e)
        raise DataError(f"cannot write {path}: {why}; choose a folder that can be written to") from e
    finally:
        if partial.exists():
            partial.unlink()


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
