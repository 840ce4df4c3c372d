"""A folder of things that took time to make, each under the digest of all that it was made from.

An entry is a folder with `entry.json` beside its files: size and check sum of each. It appears whole or not at all, two
processes may make the same one at once, and one that is damaged is told, removed and made again. The entries that were
used longest ago are removed where all together grow beyond the limit.
"""

import contextlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fieldwise.errors import FieldwiseError
from fieldwise.storage.files import sync_folder, write_atomically

__all__ = ["Cache", "Entry", "default_cache"]

T = TypeVar("T")
FORMAT = 1
ABOUT = "entry.json"
PARTIAL = ".part-"
STALE_SECONDS = 86_400  # a part left behind by a process that was killed
LIMIT = 20 * 2**30


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry: what it is of, in words, its size in bytes, and when it was last used (seconds since 1970)."""

    folder: Path
    title: str
    size: int
    used: float


@dataclass(frozen=True, kw_only=True)
class Cache:
    """A folder of entries.

    Args:
        folder: made where it is needed.
        limit: bytes that all entries together may take.
        note: hears, in a sentence, what is read, what is damaged, and what cannot be kept.
    """

    folder: Path
    limit: int = LIMIT
    note: Callable[[str], None] = lambda _: None

    def get(self, key: str, read: Callable[[Path], T]) -> T | None:
        """What `read` makes of the entry's folder, or None where there is none; a damaged entry is removed."""
        folder = self.folder / key
        try:
            if not (folder / ABOUT).is_file():
                return None
            about = json.loads((folder / ABOUT).read_text("utf-8"))
            _check_files(folder, about)
            found = read(folder)
        except (FieldwiseError, OSError, ValueError, LookupError, TypeError) as e:
            self.note(f"the cache's entry {folder} is damaged ({str(e).splitlines()[0]}): it is made anew")
            _remove(folder)
            return None
        with contextlib.suppress(OSError):  # a cache that can only be read serves as well
            os.utime(folder / ABOUT)
        self.note(f"read from the cache: {about['title']}, made {about['made']} ({folder})")
        return found

    def put(self, key: str, title: str, write: Callable[[Path], None]) -> None:
        """Keep what `write` puts into a folder; what cannot be kept is told, and is no error."""
        partial: Path | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.folder))
            write(partial)
            files = {str(p.relative_to(partial)): p for p in sorted(partial.rglob("*")) if p.is_file()}
            about = {
                "format": FORMAT,
                "title": title,
                "made": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "files": {name: {"bytes": p.stat().st_size, "sum": _check_sum(p)} for name, p in files.items()},
            }
            size = sum(p.stat().st_size for p in files.values())
            if size > self.limit:
                self.note(f"not kept in the cache: {title} takes {size / 2**30:.1f} GiB, more than its limit")
                return
            for path in files.values():
                _flush(path)
            write_atomically(partial / ABOUT, json.dumps(about, indent=1).encode())
            self._make_room(size)
            self._take_place(partial, self.folder / key)
        except (FieldwiseError, OSError) as e:
            self.note(f"not kept in the cache: {title} ({str(e).splitlines()[0]})")
        finally:
            if partial is not None:
                shutil.rmtree(partial, ignore_errors=True)

    def entries(self) -> list[Entry]:
        """All entries, the last used first."""
        found = []
        whole = (p for p in self.folder.glob(f"*/{ABOUT}") if not p.parent.name.startswith(PARTIAL))
        for path in whole:
            try:
                about = json.loads(path.read_text("utf-8"))
                size = sum(int(f["bytes"]) for f in about["files"].values())
                found.append(Entry(folder=path.parent, title=about["title"], size=size, used=path.stat().st_mtime))
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                found.append(Entry(folder=path.parent, title="damaged", size=0, used=0.0))
        return sorted(found, key=lambda entry: -entry.used)

    def clear(self) -> list[Entry]:
        """Remove all entries, and parts of entries; returns what was there. Nothing else in the folder is touched."""
        found = self.entries()
        for entry in found:
            _remove(entry.folder)
        for part in self.folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(part, ignore_errors=True)
        return found

    def _sweep(self) -> None:
        for part in self.folder.glob(f"{PARTIAL}*"):
            with contextlib.suppress(FileNotFoundError):  # another process has just finished it
                if part.stat().st_mtime < time.time() - STALE_SECONDS:
                    shutil.rmtree(part, ignore_errors=True)

    def _take_place(self, partial: Path, folder: Path) -> None:
        """Make a whole part the entry, unless another process has made the same meanwhile."""
        if not (folder / ABOUT).is_file():
            _remove(folder)  # without its list of files it is no entry, and would stand in the way for ever
            try:
                partial.rename(folder)
            except OSError:
                if not (folder / ABOUT).is_file():
                    raise
            sync_folder(self.folder)

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


def _check_sum(path: Path) -> str:
    from fieldwise.storage.checksums import word_sums

    return word_sums(path)


def _check_files(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise ValueError unless every file is there as it was written."""
    if about["format"] != FORMAT:
        raise ValueError(f"it has format {about['format']!r}, this version reads {FORMAT}")
    for name, facts in about["files"].items():
        path = folder / name
        if path.stat().st_size != facts["bytes"] or _check_sum(path) != facts["sum"]:
            raise ValueError(f"{name} is not as it was written")


def _remove(folder: Path) -> None:
    """Take an entry away at once: what a kill leaves of it is a part, and no other process's new entry is hit."""
    aside = folder.with_name(f"{PARTIAL}{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):  # not there any more, or a folder that can only be read
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
