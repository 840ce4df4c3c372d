"""Folders that are made by one process: whole, in one step, or for its scratch files.

Whole folders are for what other programs read, or what never changes. `storage.artifact` is for the others.
"""

import contextlib
import ctypes
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fieldwise.storage.files import cannot_write, sync_folder
from fieldwise.storage.locks import abandoned, one_writer, try_lock

__all__ = ["remove_leftovers", "remove_scratch", "scratch_folder", "whole_folder"]

END = ".part"
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
    place = folder.parent
    try:
        with contextlib.ExitStack() as held:
            with one_writer(place):  # so that no other process takes the new folder for a killed writer's leftover
                remove_leftovers(place, folder.name)
                partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=END, dir=place))
                held.callback(shutil.rmtree, partial, ignore_errors=True)
                held.enter_context(try_lock(partial))
            new = partial / "new"
            new.mkdir()
            yield new
            _flush(new)
            _put(new, folder, partial / "old", replace)
            sync_folder(place)
    except OSError as e:
        raise cannot_write(folder, e) from e


def remove_leftovers(place: Path, name: str | None = None) -> None:
    """Remove leftovers of killed `whole_folder` writers from a folder, for one name or all."""
    for path in place.iterdir():
        if not (path.name.startswith("." if name is None else f".{name}.") and path.name.endswith(END)):
            continue
        own = path.name[1:].removesuffix(END).rpartition(".")[0]
        if not path.is_dir():
            continue
        with contextlib.suppress(OSError), abandoned(path) as dead:
            if not dead:
                continue
            if (path / "old").exists() and not (place / own).exists():
                (path / "old").rename(place / own)
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(place: Path | None = None) -> Iterator[Path]:
    """A context with a new folder, which holds its lock alone, and which is removed at its end.

    Files that are still mapped then can be used further.

    Those that killed processes have left in the same place are removed before.

    Args:
        place: where; the system's folder of temporary files if omitted.
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


def _flush(folder: Path) -> None:
    """Flush all files and folders below a folder to disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(path)
    sync_folder(folder)


def _put(new: Path, folder: Path, aside: Path, replace: bool) -> None:
    while not (replace and _exchange(new, folder)):
        try:
            if not folder.exists():
                new.rename(folder)
                return
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            continue  # another writer was first
        if replace:
            folder.rename(aside)
            try:
                new.rename(folder)
            except BaseException:
                aside.rename(folder)
                raise
        return


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
