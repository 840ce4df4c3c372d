"""Files that a crash can never leave half-written."""

import errno
import os
import tempfile
from pathlib import Path

from fieldwise.errors import DataError

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to a temporary name beside `path`, flush it to disk, then rename it over `path`.

    A crash at any moment leaves the old file or the new one.

    Errors:
        DataError: the disk is full or the folder cannot be written to; `path` is then as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as e:
        raise DataError(f"cannot write {path}: {e.strerror or e}; choose a folder that can be written to") from e
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as e:
        Path(name).unlink(missing_ok=True)
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk is full: {path} ({len(content)} bytes) was not written; free space there") from e
        raise DataError(f"cannot write {path}: {e.strerror or e}") from e
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
