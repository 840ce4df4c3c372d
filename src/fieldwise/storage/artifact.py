"""Artifacts: folders of files that are consistent at every moment (a bundle, index, encoded table or finished run).

- `KIND.json` is the manifest: the format number, metadata of this kind of artifact, and the name,
  size and checksum of every other file. It has its own checksum, and is written last, by renaming.
- `PART.HASH.SUFFIX` is a file of the manifest, with the start of its checksum in its name.

A lock on the folder allows one writer at a time. A file is written to a hidden name, flushed, and
renamed. Once all files are there and the folder is flushed too, the new manifest replaces the old
one in one step; only then are the old files removed. A kill or power failure at any moment leaves
either the old artifact or the new one, and the next writer removes what a killed one left. Readers
need no lock: if files vanish because a writer replaced them, the reader reads the new manifest.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fieldwise.errors import BundleError, FieldwiseError, MissingExtraError, first_line
from fieldwise.storage import checksums, files
from fieldwise.storage.locks import one_writer
from fieldwise.storage.outputs import already_exists
from fieldwise.version import __version__


def read_regular(path: Path, most: int) -> bytearray:
    """The bytes of a file, which must be a regular one."""
    # opening a pipe would wait
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{path.name} is no regular file")
        if about.st_size > most:
            raise ValueError(
                f"it has {about.st_size:,} bytes, more than the {most:,} that it may have"
            )
        result = bytearray(about.st_size)
        del result[file.readinto(result) :]  # fewer if it was truncated meanwhile
        return result


T = TypeVar("T")
# Exceptions that readers raise on damaged files.
UNREADABLE: tuple[type[Exception], ...] = (
    FieldwiseError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    RecursionError,
)
MOST_OF_MANIFEST = 1 << 26  # bytes


@dataclass(frozen=True, kw_only=True)
class ArtifactKind:
    """A kind of artifact.

    Args:
        name: its name in messages.
        manifest: the name of the manifest file.
        format: the format number that is written.
        oldest: the oldest format that can be read.
        parts: every file that an artifact may have, with its suffix; empty if files keep their own
            names.
        damage: the error class raised for a damaged artifact.
        remedy: what to do about a damaged artifact.
        origin: what to give instead of a folder without an artifact.
        most: the largest size in bytes of some parts.
        fast: use `word_sums` rather than SHA-256, for large files that can be made again.
        trained: a training writes it at its end; until then its checkpoints lie beside it.
        nan: allow NaN in the manifest, which standard JSON does not have.
    """

    name: str
    manifest: str
    format: int
    oldest: int = 1
    parts: Mapping[str, str] = field(default_factory=dict)
    damage: type[FieldwiseError] = BundleError
    remedy: str
    origin: str
    most: Mapping[str, int] = field(default_factory=dict)
    fast: bool = False
    trained: bool = False
    nan: bool = False

    def open(self, folder: Path) -> "Artifact":
        """The artifact in a folder; its manifest is checked, its files are not.

        Errors:
            `damage`: there is none, or it is damaged or of another version's format.
        """
        result = self._read(folder)
        about = f"the {self.name} {folder} has format {result['format']}, but this fieldwise {__version__} reads"
        if result["format"] > self.format:
            raise self.damage(f"{about} up to format {self.format}: install a newer fieldwise")
        if result["format"] < self.oldest:
            raise self.damage(f"{about} no format before {self.oldest}: {self.remedy}")
        digest = _digest(result)
        if result.get("sha256") != digest:
            raise self.damaged(folder, f"{self.manifest} does not match its checksum")
        return Artifact(self, folder, result, digest)

    def load(
        self,
        folder: Path,
        read: Callable[["Artifact"], T],
        unreadable: tuple[type[Exception], ...] = (),
    ) -> T:
        """The result of `read` for an artifact; `read` is called again if a writer replaced the artifact meanwhile.

        Errors:
            `damage`: there is none, or it is damaged or of another version's format.
        """
        failed = None
        expected = UNREADABLE + unreadable
        while True:
            artifact = self.open(folder)
            try:
                return read(artifact)
            except MissingExtraError:
                raise
            except expected as e:
                # failed twice on the same artifact: no writer replaced it
                if artifact.digest == failed:
                    if isinstance(e, self.damage):
                        raise
                    reason = first_line(e).rstrip(".")
                    raise self.damage(
                        f"the {self.name} {folder} cannot be read: {reason}; {self.remedy}"
                    ) from e
                failed = artifact.digest

    def check_folder(self, folder: Path, *, overwrite: bool = True) -> None:
        """Check, before any work, that a folder's contents may be replaced by an artifact.

        Errors:
            `damage`: it is a file, or holds other files.
            ConfigError: it holds an artifact of this kind, and `overwrite` is False.
        """
        if folder.exists() and not folder.is_dir():
            raise self.damage(
                f"{self.a_name} is a folder, but {folder} is a file; choose another name"
            )
        has_artifact = (folder / self.manifest).exists()
        if has_artifact and not overwrite:
            raise already_exists(folder, "folder")
        if not folder.exists() or has_artifact:
            return
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        strangers = [name for name in names if not (self.parts and self.owns(name))]
        if strangers:
            raise self.damage(
                f"{self.a_name} needs a folder of its own: {folder} holds other files, such as {strangers[0]!r}; "
                "choose another folder"
            )

    def check_version(self, folder: Path) -> None:
        """Refuse to overwrite an artifact of a newer version; any other, or none, passes."""
        try:
            newer = self._read(folder)["format"] > self.format
        except FieldwiseError:
            return
        if newer:
            self.open(folder)  # whose error says so

    def owns(self, file: str) -> bool:
        """Whether a file of this name is a part of such an artifact, or was once."""
        if not self.parts:
            return not Path(file).is_absolute() and ".." not in Path(file).parts
        part, _, rest = file.partition(".")
        return (
            part in self.parts
            and re.fullmatch(rf"[0-9a-f]{{12}}\.{self.parts[part]}", rest) is not None
        )

    def damaged(self, folder: Path, what: str) -> FieldwiseError:
        """The error for a damaged artifact."""
        return self.damage(f"the {self.name} {folder} is damaged: {what}; {self.remedy}")

    def checksum(self, path: Path) -> str:
        """The checksum of a file, by this kind's rule."""
        return checksums.word_sums(path) if self.fast else checksums.file_digest(path)

    def entry(self, path: Path, checksum: str | None = None) -> dict[str, Any]:
        """A file's entry in the manifest: its size and checksum, for which it is read if the checksum is not given."""
        return {
            "bytes": path.stat().st_size,
            self.rule: self.checksum(path) if checksum is None else checksum,
        }

    def current(self, folder: Path) -> dict[str, Any]:
        """The current manifest, unchecked; empty if it cannot be read."""
        try:
            result = self._read(folder)
        except FieldwiseError:
            return {}
        return result if isinstance(result.get("files"), dict) else {}

    @property
    def rule(self) -> str:
        """The key of a file's checksum in the manifest."""
        return "sum" if self.fast else "sha256"

    @property
    def a_name(self) -> str:
        """The name with its indefinite article."""
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"

    def _read(self, folder: Path) -> dict[str, Any]:
        try:
            result: Any = json.loads(
                read_regular(folder / self.manifest, MOST_OF_MANIFEST).decode()
            )
        except FileNotFoundError:
            # Checkpoints of an artifact that a run would end with lie beside it.
            begun = self.trained and any(
                folder.absolute().parent.glob(f".{folder.absolute().name}.unfinished/*")
            )
            how = (
                "a training into it is unfinished: the same `fieldwise train` resumes it"
                if begun
                else self.origin
            )
            raise self.damage(
                f"{folder} is not {self.a_name}: it has no {self.manifest}; {how}"
            ) from None
        except NotADirectoryError:
            raise self.damage(
                f"{folder} is not {self.a_name}: it is a file; {self.origin}"
            ) from None
        except (OSError, ValueError, RecursionError) as e:
            raise self.damaged(folder, f"{self.manifest} cannot be read ({e})") from None
        if not isinstance(result, dict) or type(result.get("format")) is not int:
            raise self.damaged(folder, f"{self.manifest} has no format number")
        return result


@dataclass(frozen=True)
class Artifact:
    """An artifact on disk, by its manifest at one moment.

    Args:
        about: the manifest.
        digest: its checksum, which covers the checksums of all files and so changes with every
            change.
    """

    kind: ArtifactKind
    folder: Path
    about: Mapping[str, Any]
    digest: str

    @classmethod
    def of(
        cls, kind: ArtifactKind, folder: Path, facts: Mapping[str, Any], files: Mapping[str, Any]
    ) -> "Artifact":
        """A new artifact from JSON-compatible facts and from file entries as made by `ArtifactKind.entry`."""
        about = json.loads(
            json.dumps({"format": kind.format, **facts, "files": files}, allow_nan=kind.nan)
        )
        about["sha256"] = _digest(about)
        return cls(kind, folder, about, about["sha256"])

    def text(self) -> bytes:
        """The manifest's bytes."""
        return (json.dumps(self.about, indent=1) + "\n").encode()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of its parts."""
        return tuple(self.about["files"])

    def path(self, part: str, *, verify: bool = True) -> Path:
        """The path of a file, after checking its size and, if `verify`, its checksum.

        Errors:
            `damage`: the file is missing or does not match.
        """
        path, size, checksum = self._named(part)
        with self._reading(path):
            about = path.stat()
            fits = stat.S_ISREG(about.st_mode) and about.st_size == size
            fits = fits and (not verify or self.kind.checksum(path) == checksum)
        if not fits:
            raise self._another(path)
        return path

    def content(self, part: str, *, verify: bool = True) -> bytearray:
        """The bytes of a file, which are the checked ones even if the file changes meanwhile; errors as of `path`."""
        path, size, checksum = self._named(part)
        with self._reading(path):
            result = read_regular(path, size)
        if len(result) != size or (verify and hashlib.sha256(result).hexdigest() != checksum):
            raise self._another(path)
        return result

    def _named(self, part: str) -> tuple[Path, int, str]:
        """The path, size and checksum of a file by the manifest."""
        kind = self.kind
        folder = self.folder
        manifest = self.kind.manifest
        try:
            entry = self.about["files"][part]
            name = str(entry["name"])
            size = entry["bytes"]
            checksum = str(entry[kind.rule])
        except (LookupError, TypeError):
            raise kind.damaged(folder, f"{manifest} names no file for {part}") from None
        if not kind.owns(name):
            raise kind.damaged(
                folder, f"{manifest} names {name!r}, which is not a file of {kind.a_name}"
            )
        if type(size) is not int or not 0 <= size <= kind.most.get(part, size):
            raise kind.damaged(folder, f"{manifest} gives {part} a size of {size!r} bytes")
        return folder / name, size, checksum

    def _another(self, path: Path) -> FieldwiseError:
        return self.kind.damaged(self.folder, f"{path.name} does not match its checksum or size")

    @contextlib.contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise self.kind.damaged(
                self.folder, f"{path.name} cannot be read: {e.strerror or e}"
            ) from None


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


class Writer:
    """Writes the files of a new artifact, which replaces the old one only at `finish`."""

    def __init__(self, kind: ArtifactKind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, part: str, content: bytes) -> None:
        """Write a file in one chunk."""
        with self.open(part) as file:
            file.write(content)

    @contextlib.contextmanager
    def open(self, part: str) -> Iterator[files.Written]:
        """Open a file to write it chunk by chunk, from its start to its end."""
        partial = self.folder / f".{secrets.token_hex(6)}.part"
        sums = checksums.WordSums() if self.kind.fast else None
        with open(partial, "xb") as file, files.FlushedFile(file, sums) as flushed:
            yield flushed
        entry = self.kind.entry(partial, None if sums is None else sums.hexdigest())
        name = f"{part}.{entry[self.kind.rule][:12]}.{self.kind.parts[part]}"
        self.files[part] = {"name": name, **entry}
        os.replace(partial, self.folder / name)

    def finish(self, **facts: Any) -> Artifact:
        """Replace the old artifact by the new one.

        `facts` are further JSON-compatible entries of its manifest.
        """
        artifact = Artifact.of(self.kind, self.folder, facts, self.files)
        files.sync_folder(self.folder)
        files.write_atomically(self.folder / self.kind.manifest, artifact.text())
        return artifact


def seal(kind: ArtifactKind, folder: Path, **facts: Any) -> Artifact:
    """Write the manifest of a filled folder, for a kind whose files keep their own names.

    `facts` are further JSON-compatible entries of the manifest.
    """
    paths = {
        str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()
    }
    writer = Writer(kind, folder)
    with ThreadPoolExecutor() as threads:  # sums of large files take as long as reading them
        entries = zip(paths, threads.map(kind.entry, paths.values()), strict=True)
        writer.files = {name: {"name": name, **entry} for name, entry in entries}
    return writer.finish(**facts)


@contextlib.contextmanager
def writing(kind: ArtifactKind, folder: Path, *, replaces: str | None = None) -> Iterator[Writer]:
    """A context to write an artifact under the folder's lock; `Writer.finish` replaces the old artifact.

    Without that call, or if the block or the disk fails, the old artifact is unchanged.
    `replaces` is the digest of the artifact that the new one was made from, if any.

    Errors:
        `kind.damage`: the folder is a file or holds other files; another process has replaced the
            artifact `replaces`.
        DataError: the disk is full, or the folder is not writable.
    """
    kind.check_folder(folder)
    was_there = folder.exists()
    try:
        with one_writer(folder):
            if replaces is not None and kind.current(folder).get("sha256") != replaces:
                raise kind.damage(
                    f"the {kind.name} {folder} was replaced by another process since it was read, and is not "
                    "overwritten: read it and make the change again"
                )
            writer = Writer(kind, folder)
            try:
                yield writer
            except OSError as e:
                raise files.cannot_write(folder, e) from e
            finally:
                # What is not in the manifest goes: old files, and those that a failed or killed
                # writer left.
                with contextlib.suppress(OSError):
                    entries = kind.current(folder).get("files", {}).values()
                    named = {str(entry.get("name")) for entry in entries if isinstance(entry, dict)}
                    for path in folder.iterdir():
                        if files.PARTIAL.fullmatch(path.name) or (
                            kind.owns(path.name) and path.name not in named
                        ):
                            # a folder, or another user's file: harmless
                            with contextlib.suppress(OSError):
                                path.unlink(missing_ok=True)
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()  # removes only empty folders
