"""Folders that are made whole, in one step, or for scratch files.

Whole ones are for what other programs read, or what never changes; `storage.artifact` is for the
others.
"""

import contextlib
import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fieldwise.storage.files import cannot_write, sync_folder
from fieldwise.storage.locks import abandoned, one_writer, try_lock

SCRATCH = ".fieldwise-scratch."
YOUNG_SECONDS = 60
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
            with contextlib.suppress(OSError), abandoned(path, young=YOUNG_SECONDS) as dead:
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
