"""A folder of files that belong together, whole at every moment: a bundle, an index, an encoded table, a finished run.

    KIND.json               the manifest: the format's number, facts of the kind's own, and name, size and checksum of
                            every file below; it has a checksum of its own, and is written last, by renaming
    PART.HASH.SUFFIX        a file of the manifest, which carries the start of its checksum in its name

Writers take turns by a lock on the folder. A file is written to a hidden name, flushed, and renamed to its own; once
all are there and the folder is flushed too, the new manifest takes the old one's place in one step, and only then is
removed what it does not name. So a kill or a failure of power at any moment leaves the old artifact or the new one,
and the next writer removes what a killed one left. Readers need no lock: one whose files vanish because a writer
replaced them reads the new manifest.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fieldwise.errors import BundleError, FieldwiseError
from fieldwise.storage.checksums import file_digest, word_sums
from fieldwise.version import __version__

__all__ = ["Artifact", "Kind"]

T = TypeVar("T")
# What damaged files raise in readers.
UNREADABLE: tuple[type[Exception], ...] = (FieldwiseError, OSError, ValueError, LookupError, TypeError)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of artifact.

    Args:
        name: as sentences name it.
        manifest: the file that makes a folder one of this kind.
        format: the number of the format that is written.
        oldest: the oldest format that is read.
        parts: every file that one may have, with the suffix of its name; none where files have names of their own.
        damage: the error that a damaged one raises.
        remedy: what to do about a damaged one.
        origin: what to give in place of a folder that holds none.
        fast: checksums are `word_sums` rather than SHA-256, for files of gigabytes that can be made again.
        nan: numbers of the manifest may be NaN, which is no JSON of the standard.
    """

    name: str
    manifest: str
    format: int
    oldest: int = 1
    parts: Mapping[str, str] = field(default_factory=dict)
    damage: type[FieldwiseError] = BundleError
    remedy: str
    origin: str
    fast: bool = False
    nan: bool = False

    def open(self, folder: Path) -> "Artifact":
        """The manifest of an artifact, checked; its files are not.

        Errors:
            `damage`: there is none, or it is damaged or of another version's format.
        """
        found = self._read(folder)
        self._check_format(folder, found["format"])
        digest = _digest(found)
        if found.get("sha256") != digest:
            raise self.damaged(folder, f"{self.manifest} does not have the checksum that it names")
        return Artifact(self, folder, found, digest)

    def load(self, folder: Path, read: Callable[["Artifact"], T], unreadable: tuple[type[Exception], ...] = ()) -> T:
        """What `read` makes of an artifact; it is called again where a writer replaced the artifact meanwhile.

        Args:
            folder: of the artifact.
            read: reads files.
            unreadable: what damaged files raise in it, besides the usual.

        Errors:
            `damage`: there is none, or it is damaged or of another version's format.
        """
        failed, expected = None, UNREADABLE + unreadable
        while True:
            artifact = self.open(folder)
            try:
                return read(artifact)
            except expected as e:
                if artifact.digest == failed:  # twice: no writer was beside
                    if isinstance(e, self.damage):
                        raise
                    reason = (str(e).splitlines() or [type(e).__name__])[0].rstrip(".")
                    raise self.damage(f"the {self.name} {folder} cannot be read: {reason}; {self.remedy}") from e
                failed = artifact.digest

    def check_folder(self, folder: Path) -> None:
        """Refuse a folder that cannot be written to for what it holds, before any work.

        Errors:
            `damage`: it is a file, or holds files but no such artifact.
        """
        if folder.exists() and not folder.is_dir():
            raise self.damage(f"{self.a_name} is a folder, but {folder} is a file; choose another name")
        if not folder.exists() or (folder / self.manifest).exists():
            return
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        strangers = [name for name in names if not (self.parts and self.owns(name))]
        if strangers:
            raise self.damage(
                f"{self.a_name} needs a folder of its own: {folder} holds other files, such as {strangers[0]!r}; "
                "choose another folder"
            )

    def check_version(self, folder: Path) -> None:
        """Refuse an artifact of a newer version, which is not to be written over; any other, or none, passes.

        Errors:
            `damage`: it has a newer format.
        """
        try:
            found = self._read(folder)["format"]
        except FieldwiseError:
            return
        if found > self.format:
            self._check_format(folder, found)

    def owns(self, file: str) -> bool:
        """Whether a file of this name is a part of such an artifact, or was once."""
        if not self.parts:
            return not Path(file).is_absolute() and ".." not in Path(file).parts
        part, _, rest = file.partition(".")
        return part in self.parts and re.fullmatch(rf"[0-9a-f]{{12}}\.{self.parts[part]}", rest) is not None

    def damaged(self, folder: Path, what: str) -> FieldwiseError:
        """The error that says what is wrong with an artifact."""
        return self.damage(f"the {self.name} {folder} is damaged: {what}; {self.remedy}")

    def checksum(self, path: Path) -> str:
        """Of a file, by this kind's rule."""
        return word_sums(path) if self.fast else file_digest(path)

    def entry(self, path: Path) -> dict[str, Any]:
        """What a manifest says of a file besides its name: size and checksum."""
        return {"bytes": path.stat().st_size, self.rule: self.checksum(path)}

    def named_files(self, folder: Path) -> set[str]:
        """Names of the files that the manifest names; none where it cannot be read."""
        files = self._current(folder).get("files", {})
        return {str(entry.get("name")) for entry in files.values() if isinstance(entry, dict)}

    def current_digest(self, folder: Path) -> str | None:
        """The digest of the artifact that is there, unchecked; None where there is none."""
        return self._current(folder).get("sha256")

    @property
    def rule(self) -> str:
        """What manifests call the checksum of a file."""
        return "sum" if self.fast else "sha256"

    @property
    def a_name(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"

    def _read(self, folder: Path) -> dict[str, Any]:
        try:
            found: Any = json.loads((folder / self.manifest).read_text("utf-8"))
        except FileNotFoundError:
            raise self.damage(f"{folder} is no {self.name}: it has no {self.manifest}; {self.origin}") from None
        except NotADirectoryError:
            raise self.damage(f"{folder} is no {self.name}: it is a file; {self.origin}") from None
        except (OSError, ValueError) as e:
            raise self.damaged(folder, f"{self.manifest} cannot be read ({e})") from None
        if not isinstance(found, dict) or type(found.get("format")) is not int:
            raise self.damaged(folder, f"{self.manifest} has no format number")
        return found

    def _check_format(self, folder: Path, found: int) -> None:
        about = f"the {self.name} {folder} has format {found}, but this fieldwise {__version__} reads"
        if found > self.format:
            raise self.damage(f"{about} up to format {self.format}: install a newer fieldwise")
        if found < self.oldest:
            raise self.damage(f"{about} no format before {self.oldest}: {self.remedy}")

    def _current(self, folder: Path) -> dict[str, Any]:
        """The manifest as it is, or an empty one; no checksum is checked."""
        try:
            found = self._read(folder)
        except FieldwiseError:
            return {}
        return found if isinstance(found.get("files"), dict) else {}


@dataclass(frozen=True)
class Artifact:
    """An artifact on disk, as its manifest is at one moment.

    Args:
        about: the manifest.
        digest: its checksum, which covers those of all files: another one after every change.
    """

    kind: Kind
    folder: Path
    about: Mapping[str, Any]
    digest: str

    @classmethod
    def of(cls, kind: Kind, folder: Path, facts: Mapping[str, Any], files: Mapping[str, Any]) -> "Artifact":
        """A new one, of facts as JSON has them and of files as `Kind.entry` describes them."""
        about = json.loads(json.dumps({"format": kind.format, **facts, "files": files}, allow_nan=kind.nan))
        about["sha256"] = _digest(about)
        return cls(kind, folder, about, about["sha256"])

    def text(self) -> bytes:
        """The manifest's file."""
        return (json.dumps(self.about, indent=1) + "\n").encode()

    @property
    def parts(self) -> tuple[str, ...]:
        """The files that it has, by the names of their parts."""
        return tuple(self.about["files"])

    def path(self, part: str, *, verify: bool = True) -> Path:
        """Where a file lies, with its size and, where asked, its checksum checked.

        Errors:
            `damage`: it is absent, or another one.
        """
        kind, folder, manifest = self.kind, self.folder, self.kind.manifest
        try:
            entry = self.about["files"][part]
            name, size, checksum = str(entry["name"]), entry["bytes"], entry[kind.rule]
        except (LookupError, TypeError):
            raise kind.damaged(folder, f"{manifest} names no file for {part}") from None
        if not kind.owns(name):
            raise kind.damaged(folder, f"{manifest} names {name!r}, which is no file of {kind.a_name}")
        path = folder / name
        try:
            if path.stat().st_size != size or (verify and kind.checksum(path) != checksum):
                raise kind.damaged(folder, f"{name} does not have its checksum or its size")
        except OSError as e:
            raise kind.damaged(folder, f"{name} cannot be read: {e.strerror or e}") from None
        return path

    def content(self, part: str) -> bytes:
        """The bytes of a file, checked.

        Errors:
            `damage`: it is absent, or another one.
        """
        return self.path(part).read_bytes()


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
