"""A cache on disk: entries that took time to make, each under the digest of its inputs.

An entry is a folder with `entry.json` and its files (`fieldwise.storage.artifact`). It appears whole or not at all. Two
processes may make the same entry at once. A damaged entry is reported, removed and made again. The least recently used
entries are removed when the cache exceeds its limit.
"""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fieldwise.errors import DataError, FieldwiseError
from fieldwise.storage.artifact import UNREADABLE, Kind
from fieldwise.storage.folders import END, remove_leftovers, remove_scratch, whole_folder
from fieldwise.storage.locks import abandoned, one_writer
from fieldwise.storage.writer import seal

__all__ = ["Cache", "Entry", "default_cache"]

T = TypeVar("T")
ABOUT = "entry.json"
MAKING = ".making"
ENTRY = Kind(
    name="entry of the cache",
    manifest=ABOUT,
    format=2,
    oldest=2,
    damage=DataError,
    remedy="clear the cache",
    origin="give a folder of the cache",
    fast=True,
)
LIMIT = 20 * 2**30


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A cache entry: its title, its size in bytes, and when it was last used (seconds since 1970)."""

    folder: Path
    title: str
    size: int
    used: float


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A cache folder.

    Args:
        folder: created when needed.
        limit: maximum size of all entries, in bytes.
        note: called with a sentence when an entry is read, is damaged or cannot be stored.
        verify: whether the files of an entry that is read are checked; if not, a damaged one may be read.
    """

    folder: Path
    limit: int = LIMIT
    note: Callable[[str], None] = lambda _: None
    verify: bool = True

    def get(self, key: str, read: Callable[[Path], T], *, verify: bool = True) -> T | None:
        """The result of `read` for the entry's folder, or None if there is no entry; a damaged entry is removed.

        Args:
            key: of the entry.
            read: reads the entry.
            verify: whether its files are checked: not needed if this process has just written them.
        """
        folder = self.folder / key
        if not (folder / ABOUT).is_file():
            return None
        if not _is_ours(folder):
            self.note(f"the cache entry {folder} is another user's and not read: use a cache folder of your own")
            return None
        try:
            entry = ENTRY.open(folder)
            for part in entry.parts:
                entry.path(part, verify=verify and self.verify)
            found = read(folder)
        except UNREADABLE as e:
            self.note(f"the cache entry {folder} is damaged ({str(e).splitlines()[0]}): it is made again")
            _remove(folder)
            return None
        with contextlib.suppress(OSError):  # a read-only cache works too
            os.utime(folder / ABOUT)
        self.note(f"read from the cache: {entry.about['title']}, made {entry.about['made']} ({folder})")
        return found

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A context with a folder in which an entry may be made in steps, and which a killed process leaves as it is.

        One process at a time is in the context; others wait for it. At the end, `put` takes the entry from there.

        Errors:
            DataError: the folder cannot be created.
        """
        folder = self.folder / MAKING / key
        with one_writer(folder):
            yield folder

    def put(
        self,
        key: str,
        title: str,
        write: Callable[[Path], None],
        *,
        limited: bool = True,
        sums: Mapping[str, str] | None = None,
    ) -> None:
        """Store what `write` puts into a folder; a failure is reported through `note` and is not an error.

        Args:
            key: of the entry.
            title: shown to users.
            write: fills the folder.
            limited: whether the entry is refused if it alone exceeds the cache's limit.
            sums: `word_sums` of its files that are known, by path in the folder.
        """
        try:
            with one_writer(self.folder):  # else a folder that another writer has just made counts as left over
                remove_leftovers(self.folder)
            if not (self.folder / key / ABOUT).is_file():
                _remove(self.folder / key)  # not an entry without its manifest, and would block this key for ever
            with whole_folder(self.folder / key, replace=False) as new:
                write(new)
                made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
                files = seal(ENTRY, new, sums, title=title, made=made).about["files"]
                size = sum(entry["bytes"] for entry in files.values())
                if limited and size > self.limit:
                    raise DataError(f"it takes {size / 2**30:.1f} GiB, more than the cache's limit")
                self._make_room(size)
        except (FieldwiseError, OSError) as e:
            self.note(f"not stored in the cache: {title} ({str(e).splitlines()[0]})")

    def entries(self) -> list[Entry]:
        """All entries, most recently used first."""
        found = []
        whole = (p for p in self.folder.glob(f"*/{ABOUT}") if not p.parent.name.startswith("."))
        for path in whole:
            try:
                about = json.loads(path.read_text("utf-8"))
                size = sum(int(f["bytes"]) for f in about["files"].values())
                found.append(Entry(folder=path.parent, title=about["title"], size=size, used=path.stat().st_mtime))
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
                found.append(Entry(folder=path.parent, title="damaged", size=0, used=0.0))
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> list[Entry]:
        """Remove all entries and the leftovers of killed writers, but nothing else; returns the entries."""
        found = self.entries()
        for entry in found:
            _remove(entry.folder)
        if self.folder.is_dir():
            with one_writer(self.folder):
                remove_leftovers(self.folder)
            remove_scratch(self.folder)
            self._clear_unfinished()
        return found

    def _clear_unfinished(self) -> None:
        """Remove entries in the making whose process is surely dead."""
        for folder in (self.folder / MAKING).glob("*"):
            with contextlib.suppress(OSError), abandoned(folder) as dead:
                if dead:
                    shutil.rmtree(folder, ignore_errors=True)

    def _make_room(self, size: int) -> None:
        kept = size
        for entry in self.entries():
            kept += entry.size
            if kept > self.limit:
                _remove(entry.folder)


def default_cache(note: Callable[[str], None] = lambda _: None) -> Cache:
    """The cache of prepared data: below FIELDWISE_CACHE, else below the user's cache folder."""
    named = os.environ.get("FIELDWISE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(named) if named else (Path(base) if base else Path.home() / ".cache") / "fieldwise"
    return Cache(folder=root / "prepared", note=note)


def _remove(folder: Path) -> None:
    """Remove an entry in one step: a kill leaves only a leftover, and a new entry of another process is not removed."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}{END}")
    with contextlib.suppress(OSError):  # already removed, or a read-only folder
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    """Whether an entry and its manifest belong to this user, or to the system's."""
    if not hasattr(os, "getuid"):  # Windows
        return True
    owners = {path.lstat().st_uid for path in (folder, folder / ABOUT)}
    return owners <= {os.getuid(), 0}
