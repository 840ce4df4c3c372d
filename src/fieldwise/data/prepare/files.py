"""Prepared data in a folder, mapped when read back, and the key of all that it was made from."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import PARTS, Part, Prepared
from fieldwise.data.table import EncodedTable
from fieldwise.errors import DataError
from fieldwise.storage.checksums import file_digest
from fieldwise.version import __version__

__all__ = ["Inputs", "data_key", "read_prepared", "write_prepared"]

SOURCES = ("config.py", "layout.py", "runs/data.py", "runs/recipe.py")
FOLDERS = ("data", "schema")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The files that a recipe reads, as they are at one moment.

    Args:
        files: digest of each file's content by its name.
        state: what tells cheaply whether a file was changed since: size, time of change and number of each.
    """

    files: Mapping[str, str]
    state: Mapping[str, tuple[int, int, int]]

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> "Inputs":
        """Read and digest files.

        Errors:
            OSError: one cannot be read.
        """
        state = {name: _state(path) for name, path in paths.items()}
        return cls({name: file_digest(path) for name, path in paths.items()}, state)

    def unchanged(self, paths: Mapping[str, Path]) -> bool:
        """Whether all files are still those that were digested."""
        try:
            return self.state == {name: _state(path) for name, path in paths.items()}
        except OSError:
            return False


def data_key(settings: Mapping[str, Any], inputs: Inputs) -> str:
    """A name for what these settings and files give: equal only where all of it is equal.

    It covers the code that prepares data and the versions of polars and NumPy: nothing made by other code is read.
    """
    facts = {
        "settings": settings,
        "files": dict(inputs.files),
        "code": _code_digest(),
        "versions": [__version__, pl.__version__, np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def write_prepared(prepared: Prepared, folder: Path) -> None:
    """Write prepared data to a folder.

    Errors:
        DataError: a column of the raw rows cannot be written, the disk is full.
    """
    (folder / "encoder.json").write_text(prepared.encoder.to_json(), "utf-8")
    about = {"counts": dict(prepared.counts), "unseen": {name: dict(s) for name, s in prepared.unseen.items()}}
    (folder / "prepared.json").write_text(json.dumps(about), "utf-8")
    for name in PARTS:
        part: Part = getattr(prepared, name)
        part.table.save(folder / name)
        try:
            part.frame.write_ipc(folder / f"{name}.arrow")
        except (pl.exceptions.PolarsError, OSError) as e:
            raise DataError(f"the {name} rows cannot be written as Arrow: {str(e).splitlines()[0]}") from e
        if part.group is not None:
            np.save(folder / f"{name}.group.npy", part.group, allow_pickle=False)


def read_prepared(folder: Path) -> Prepared:
    """What `write_prepared` wrote; encoded rows are mapped, and raw ones read when they are asked for.

    Errors:
        DataError, OSError, ValueError, LookupError: not such a folder.
    """
    about = json.loads((folder / "prepared.json").read_text("utf-8"))
    encoder = Encoder.from_json((folder / "encoder.json").read_text("utf-8"), "the cache's encoder")
    parts = {name: _read_part(folder, name) for name in PARTS}
    if any(part.table.layout != encoder.layout for part in parts.values()):
        raise DataError("the cache's encoder is not that of its rows")
    return Prepared(encoder=encoder, counts=about["counts"], unseen=about["unseen"], **parts)


def _read_part(folder: Path, name: str) -> Part:
    table = EncodedTable.open(folder / name)
    group = folder / f"{name}.group.npy"
    groups = np.load(group, allow_pickle=False) if group.exists() else None
    return Part(partial(_read_rows, folder / f"{name}.arrow", len(table)), table, groups)


def _read_rows(path: Path, rows: int) -> pl.DataFrame:
    try:
        frame = pl.read_ipc(path)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise DataError(f"the cache's raw rows cannot be read any more: {str(e).splitlines()[0]}; start again") from e
    if frame.height != rows:
        raise DataError(f"the cache's raw rows {path} must be {rows}, found {frame.height}; clear the cache")
    return frame


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, max(found.st_mtime_ns, found.st_ctime_ns), found.st_ino


@cache
def _code_digest() -> str:
    """Of the source of all that decides what prepared data hold."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in [
        *(package / name for name in SOURCES),
        *(p for name in FOLDERS for p in sorted((package / name).rglob("*.py"))),
    ]:
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
