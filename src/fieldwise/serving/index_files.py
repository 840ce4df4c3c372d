"""The files of an item index: written under temporary names, checked, one writer at a time. See `serving.index`."""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise.errors import BundleError, DataError
from fieldwise.ops.stored_items import StoredItems
from fieldwise.storage.files import sync_folder, write_atomically
from fieldwise.version import __version__

__all__ = [
    "FORMAT",
    "MANIFEST",
    "NewerError",
    "Writer",
    "arrow_bytes",
    "check_folder",
    "checked_file",
    "manifest_digest",
    "read_manifest",
    "remove_strangers",
    "writing",
]

FORMAT = 1
MANIFEST = "index.json"
LOCK = ".lock"
PARTS = ("heads", "scale", "items")
PART_NAME = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{12}}\.(npy|arrow)")
CHUNK = 1 << 22


class NewerError(BundleError):
    """An index of a newer version, which must not be written over."""


class Writer:
    """Files under temporary names, until `files` names them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}
        self.partial: list[Path] = []

    def add(self, part: str, suffix: str, content: bytes) -> None:
        """Write a part as one file."""
        digest = hashlib.sha256(content).hexdigest()
        self.files[part] = {"name": f"{part}.{digest[:12]}{suffix}", "bytes": len(content), "sha256": digest}
        write_atomically(self.folder / str(self.files[part]["name"]), content)

    def heads(self, blocks: Iterator[StoredItems], rows: int) -> None:
        """Write blocks of heads as they come: memory holds one."""
        files: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            for block in blocks:
                for name, tensor in block.tensors().items():
                    array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
                    if name not in files:
                        path = self.folder / f".{secrets.token_hex(6)}.part"
                        self.partial.append(path)
                        files[name] = stack.enter_context(open(path, "xb"))
                        shape = (rows, *array.shape[1:])
                        header = {
                            "descr": np.lib.format.dtype_to_descr(array.dtype),
                            "fortran_order": False,
                            "shape": shape,
                        }
                        np.lib.format.write_array_header_1_0(files[name], header)
                    files[name].write(np.ascontiguousarray(array).tobytes())
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())
        for name, path in zip(files, self.partial, strict=True):
            digest = _file_digest(path)
            self.files[name] = {"name": f"{name}.{digest[:12]}.npy", "bytes": path.stat().st_size, "sha256": digest}
            os.replace(path, self.folder / str(self.files[name]["name"]))
        sync_folder(self.folder)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """A writer alone in the folder; what is left of it goes when it fails.

    Errors:
        DataError: the disk is full, or the folder cannot be written to.
    """
    writer = Writer(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            yield writer
    except OSError as e:
        raise DataError(
            f"cannot write the index {folder}: {e.strerror or e}; free space or choose another folder"
        ) from e
    finally:
        for path in writer.partial:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time; the lock ends with its process."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with open(folder / LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_folder(folder: Path) -> None:
    """Refuse a folder of something else.

    Errors:
        BundleError: it is a file, or holds files but no index.
    """
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"an index is a folder, but {folder} is a file; choose another name")
    if not folder.exists() or (folder / MANIFEST).exists():
        return
    strangers = sorted(
        p.name for p in folder.iterdir() if not p.name.startswith(".") and not PART_NAME.fullmatch(p.name)
    )
    if strangers:
        raise BundleError(f"an index needs a folder of its own: {folder} holds other files, such as {strangers[0]!r}")


def remove_strangers(folder: Path, named: Collection[str]) -> None:
    """Parts of former indexes, also of updates that were killed."""
    for path in folder.iterdir():
        old = PART_NAME.fullmatch(path.name) and path.name not in named
        if old or (path.name.startswith(".") and path.name.endswith(".part")):
            path.unlink(missing_ok=True)


def arrow_bytes(items: pl.DataFrame) -> bytes:
    """A table as an Arrow file."""
    buffer = io.BytesIO()
    items.write_ipc(buffer)
    return buffer.getvalue()


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """The checksum of a manifest, its own left out."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an index, checked.

    Errors:
        BundleError: no index there, a damaged one, or one of a newer version.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"{folder} is no index: it has no {MANIFEST}; give the folder of `fieldwise index`") from None
    except (OSError, ValueError) as e:
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} cannot be read ({e}); build it again") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} has no format number; build it again")
    if manifest["format"] > FORMAT:
        raise NewerError(
            f"the index {folder} has format {manifest['format']}, but this fieldwise {__version__} reads up "
            f"to format {FORMAT}: install a newer fieldwise"
        )
    if manifest.get("sha256") != manifest_digest(manifest):
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} has not its checksum; build it again")
    return manifest


def checked_file(folder: Path, part: str, entry: Mapping[str, Any], verify: bool) -> Path:
    """Where a file that the manifest names lies, with its size and, where asked, its checksum checked.

    Errors:
        ValueError: another file, or none.
    """
    name = str(entry["name"])
    if part not in PARTS or not PART_NAME.fullmatch(name):
        raise ValueError(f"{MANIFEST} names {name!r}, which is no file of an index")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{name} is missing")
    if path.stat().st_size != entry["bytes"] or (verify and _file_digest(path) != entry["sha256"]):
        raise ValueError(f"{name} has not its checksum")
    return path
