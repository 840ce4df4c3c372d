"""A cache on disk: entries that took time to make, each under the digest of its inputs.

An entry is a folder with `entry.json` and its files (`fieldwise.storage.artifact`). It appears
whole or not at all. Two processes may make the same entry at once. A damaged entry is reported,
removed and made again. The least recently used entries are removed when the cache exceeds its
limit.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fieldwise.errors import DataError, FieldwiseError, first_line
from fieldwise.storage.artifact import UNREADABLE, ArtifactKind, seal
from fieldwise.storage.folders import remove_scratch, scratch_folder, whole_folder
from fieldwise.storage.locks import abandoned, one_writer

T = TypeVar("T")
ABOUT = "entry.json"
MAKING = ".making"
KEPT_BEGUN = 7 * 86_400  # seconds: what a killed process began on data that may have changed since
ENTRY = ArtifactKind(
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
OFF = "off"  # the value of FIELDWISE_CACHE without a cache


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
        verify: whether the files of an entry that is read are checked; if not, a damaged one may be
            read.
    """

    folder: Path
    limit: int = LIMIT
    note: Callable[[str], None] = lambda _: None
    verify: bool = True

    def get(self, key: str, read: Callable[[Path], T]) -> T | None:
        """The result of `read` for the entry's folder, or None if there is no entry; a damaged entry is removed."""
        folder = self.folder / key
        if not (folder / ABOUT).is_file():
            return None
        # Windows has no such owners; what belongs to the system's user is as good as one's own.
        if hasattr(os, "getuid") and not {p.lstat().st_uid for p in (folder, folder / ABOUT)} <= {
            os.getuid(),
            0,
        }:
            self.note(
                f"the cache entry {folder} is another user's and not read: use a cache folder of your own"
            )
            return None
        try:
            entry = ENTRY.open(folder)
            for part in entry.parts:
                entry.path(part, verify=self.verify)
            result = read(folder)
        except UNREADABLE as e:
            self.note(f"the cache entry {folder} is damaged ({first_line(e)}): it is made again")
            _remove(folder)
            return None
        with contextlib.suppress(OSError):  # a read-only cache works too
            os.utime(folder / ABOUT)
        self.note(
            f"read from the cache: {entry.about['title']}, made {entry.about['made']} ({folder})"
        )
        return result

    @contextlib.contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """A context with a folder in which an entry may be made in steps, and which a killed process leaves as it is.

        One process at a time is in the context; others wait for it. At the end, `put` takes the
        entry from there.
        """
        folder = self.folder / MAKING / key
        with one_writer(folder):
            yield folder

    def put(
        self, key: str, title: str, write: Callable[[Path], None], *, limited: bool = True
    ) -> None:
        """Store what `write` puts into a folder; a failure is reported through `note` and is not an error.

        An entry that is not `limited` is stored also where it alone exceeds the limit of the cache.
        """
        try:
            if not (self.folder / key / ABOUT).is_file():
                # not an entry without its manifest, and would block this key for ever
                _remove(self.folder / key)
            with whole_folder(self.folder / key, replace=False) as new:
                write(new)
                written_at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
                files = seal(ENTRY, new, title=title, made=written_at).about["files"]
                size = sum(entry["bytes"] for entry in files.values())
                if limited and size > self.limit:
                    raise DataError(f"it takes {size / 2**30:.1f} GiB, more than the cache's limit")
                for entry in self.entries():
                    size += entry.size
                    if size > self.limit:
                        _remove(entry.folder)
            self._remove_begun(KEPT_BEGUN)
        except (FieldwiseError, OSError) as e:
            self.note(f"not stored in the cache: {title} ({first_line(e)})")

    def entries(self) -> list[Entry]:
        """All entries, most recently used first."""
        results = []
        whole = (p for p in self.folder.glob(f"*/{ABOUT}") if not p.parent.name.startswith("."))
        for path in whole:
            try:
                about = ENTRY.current(path.parent)
                size = sum(int(f["bytes"]) for f in about["files"].values())
                results.append(
                    Entry(
                        folder=path.parent,
                        title=about["title"],
                        size=size,
                        used=path.stat().st_mtime,
                    )
                )
            except (OSError, ValueError, LookupError, TypeError):
                results.append(Entry(folder=path.parent, title="damaged", size=0, used=0.0))
        return sorted(results, key=lambda entry: -entry.used)

    def clear(self) -> list[Entry]:
        """Remove all entries and what killed writers have begun, but nothing else; returns the entries."""
        result = self.entries()
        for entry in result:
            _remove(entry.folder)
        if self.folder.is_dir():
            remove_scratch(self.folder)
        self._remove_begun()
        return result

    def _remove_begun(self, age: float = 0.0) -> None:
        """Remove what was begun at least `age` seconds ago and no process goes on with."""
        for folder in (self.folder / MAKING).glob("*"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat().st_mtime < age:
                    continue
                with abandoned(folder) as dead:
                    if dead:
                        shutil.rmtree(folder, ignore_errors=True)


def user_cache_folder() -> Path:
    """The folder of fieldwise in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    cache = Path(base) if base else Path.home() / ".cache"
    return cache / "fieldwise"


def default_cache(note: Callable[[str], None] = lambda _: None) -> Cache:
    """The cache of prepared data: below FIELDWISE_CACHE, else below the user's cache folder.

    Errors:
        DataError: FIELDWISE_CACHE is `off`.
    """
    named = os.environ.get("FIELDWISE_CACHE")
    if named == OFF:
        raise DataError(
            "there is no cache, since FIELDWISE_CACHE is off: unset it, or give it the path of a folder"
        )
    root = Path(named) if named else user_cache_folder()
    return Cache(folder=root / "prepared", note=note)


def _remove(folder: Path) -> None:
    """Remove an entry in one step: a kill leaves only a leftover, and a new entry of another process is not removed."""
    if folder.is_dir():
        # not in a read-only folder
        with contextlib.suppress(OSError), scratch_folder(folder.parent) as aside:
            folder.rename(aside / folder.name)
