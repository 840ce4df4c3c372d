"""Writing an artifact (see `fieldwise.storage.artifact`): under a lock, to hidden names, then replacing the old one."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fieldwise.storage.artifact import Artifact, Kind
from fieldwise.storage.checksums import SummedFile, Written
from fieldwise.storage.files import FlushedFile, cannot_write, sync_folder, write_atomically
from fieldwise.storage.locks import one_writer

__all__ = ["Writer", "seal", "writing"]

HIDDEN = re.compile(r"\.[0-9a-f]{12}\.part")


class Writer:
    """Writes the files of a new artifact, which replaces the old one only at `finish`."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.files: dict[str, dict[str, Any]] = {}

    def add(self, part: str, content: bytes) -> None:
        """Write a file in one piece."""
        with self.open(part) as file:
            file.write(content)

    @contextlib.contextmanager
    def open(self, part: str) -> Iterator[Written]:
        """Open a file to write it piece by piece, from its start to its end."""
        partial = self.folder / f".{secrets.token_hex(6)}.part"
        with open(partial, "xb") as file, FlushedFile(file) as flushed:
            summed = SummedFile(flushed) if self.kind.fast else None
            yield flushed if summed is None else summed
        entry = self.kind.entry(partial, None if summed is None else summed.sums())
        name = f"{part}.{entry[self.kind.rule][:12]}.{self.kind.parts[part]}"
        self.files[part] = {"name": name, **entry}
        os.replace(partial, self.folder / name)

    def finish(self, **facts: Any) -> Artifact:
        """Replace the old artifact by the new one.

        Args:
            facts: further JSON-compatible entries of the manifest.
        """
        artifact = Artifact.of(self.kind, self.folder, facts, self.files)
        sync_folder(self.folder)
        write_atomically(self.folder / self.kind.manifest, artifact.text())
        return artifact

    def sweep(self) -> None:
        """Remove files that are not in the manifest: old ones, and those that a failed or killed writer left."""
        named = self.kind.named_files(self.folder)
        for path in self.folder.iterdir():
            if HIDDEN.fullmatch(path.name) or (self.kind.owns(path.name) and path.name not in named):
                with contextlib.suppress(OSError):  # a folder, or another user's file: harmless
                    path.unlink(missing_ok=True)


def seal(kind: Kind, folder: Path, sums: Mapping[str, str] | None = None, **facts: Any) -> Artifact:
    """Write the manifest of a filled folder, for a kind whose files keep their own names.

    Args:
        kind: the kind.
        folder: the folder.
        sums: checksums of files that are known, by their paths in the folder.
        facts: further JSON-compatible entries of the manifest.
    """
    known = sums or {}
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {name: {"name": name, **kind.entry(path, known.get(name))} for name, path in paths.items()}
    artifact = Artifact.of(kind, folder, facts, files)
    write_atomically(folder / kind.manifest, artifact.text())
    return artifact


@contextlib.contextmanager
def writing(kind: Kind, folder: Path, *, replaces: str | None = None) -> Iterator[Writer]:
    """A context to write an artifact under the folder's lock; `Writer.finish` replaces the old artifact.

    Without that call, or if the block or the disk fails, the old artifact is unchanged.

    Args:
        kind: the kind of artifact.
        folder: created if it is missing.
        replaces: the digest of the artifact that the new one was made from (`Artifact.digest`), if any.

    Errors:
        `kind.damage`: the folder is a file or holds other files; another process has replaced the artifact `replaces`.
        DataError: the disk is full, or the folder is not writable.
    """
    kind.check_folder(folder)
    was_there = folder.exists()
    try:
        with one_writer(folder):
            if replaces is not None and kind.current_digest(folder) != replaces:
                raise kind.damage(
                    f"the {kind.name} {folder} was replaced by another process since it was read, and is not "
                    "overwritten: read it and make the change again"
                )
            writer = Writer(kind, folder)
            try:
                yield writer
            except OSError as e:
                raise cannot_write(folder, e) from e
            finally:
                with contextlib.suppress(OSError):
                    writer.sweep()
    finally:
        if not was_there:
            with contextlib.suppress(OSError):
                folder.rmdir()  # removes only empty folders
