"""Saving and loading prepared data, and their key in the cache."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.found import file_state
from fieldwise.data.read.mapped import SUMS, map_folder
from fieldwise.data.table import TABLE, EncodedTable
from fieldwise.errors import DataError
from fieldwise.storage.arrays import map_array
from fieldwise.storage.checksums import file_digest
from fieldwise.storage.files import cannot_write, write_atomically
from fieldwise.version import __version__

__all__ = ["GROUP", "ROWS", "Inputs", "data_key", "prepared_sums", "read_prepared", "write_facts", "write_prepared"]

SOURCES = ("config.py", "layout.py", "runs/data.py", "runs/data_settings.py", "runs/recipe.py")
FOLDERS = ("data", "schema")
ROWS = "{}.rows"  # raw rows of a part that are mapped; those of smaller tables are in one file
GROUP = "{}.group.npy"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The input files of a recipe at one moment.

    Args:
        files: digest of each file's content, by name.
        state: size, modification time and inode of each file, for a cheap check for changes.
    """

    files: Mapping[str, str]
    state: Mapping[str, tuple[int, int, int]]

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> "Inputs":
        """The state and digests of files.

        Errors:
            OSError: a file cannot be read.
        """
        state = {name: file_state(path) for name, path in paths.items()}
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            digests = threads.map(file_digest, paths.values())
            return cls(dict(zip(paths, digests, strict=True)), state)

    def unchanged(self, paths: Mapping[str, Path]) -> bool:
        """Whether no file has changed."""
        try:
            return self.state == {name: file_state(path) for name, path in paths.items()}
        except OSError:
            return False


def data_key(settings: Mapping[str, Any], inputs: Inputs) -> str:
    """The cache key of prepared data: equal only if settings and files are equal.

    It includes the code that prepares data and the versions of polars and NumPy, so data made by other code are not
    used.
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
    write_facts(folder, prepared.counts, prepared.unseen)
    for name in PARTS:
        part: Part = getattr(prepared, name)
        part.table.save(folder / name)
        try:
            part.frame.write_ipc(folder / f"{name}.arrow")
        except OSError as e:
            raise cannot_write(folder, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"the {name} rows cannot be written as Arrow: {str(e).splitlines()[0]}") from e
        if part.group is not None:
            np.save(folder / GROUP.format(name), part.group, allow_pickle=False)


def write_facts(folder: Path, counts: Mapping[str, int], unseen: Mapping[str, Mapping[str, float]]) -> None:
    """Write what `Prepared` states about its rows."""
    about = {"counts": dict(counts), "unseen": {name: dict(shares) for name, shares in unseen.items()}}
    write_atomically(folder / "prepared.json", json.dumps(about).encode())


def prepared_sums(folder: Path) -> dict[str, str]:
    """The `word_sums` of the files of mapped rows and of encoded rows, as they were written, by path in the folder."""
    found: dict[str, str] = {}
    for name in PARTS:
        entries = TABLE.open(folder / name).about["files"].values()
        found |= {f"{name}/{entry['name']}": entry[TABLE.rule] for entry in entries}
        rows = ROWS.format(name)
        sums = json.loads((folder / rows / SUMS).read_text("utf-8"))
        found |= {f"{rows}/{file}": one for file, one in sums.items()}
    return found


def read_prepared(folder: Path) -> Prepared:
    """Prepared data from `write_prepared`; encoded rows are mapped, and raw rows are read when needed.

    Errors:
        DataError, OSError, ValueError, LookupError: an invalid folder.
    """
    about = json.loads((folder / "prepared.json").read_text("utf-8"))
    encoder = Encoder.from_json((folder / "encoder.json").read_text("utf-8"), "the cache's encoder")
    parts = {name: _read_part(folder, name) for name in PARTS}
    if any(part.table.layout != encoder.layout for part in parts.values()):
        raise DataError("the cache's encoder does not match its rows")
    return Prepared(encoder=encoder, counts=about["counts"], unseen=about["unseen"], **parts)


def _read_part(folder: Path, name: str) -> Part:
    table = EncodedTable.open(folder / name)
    group = folder / GROUP.format(name)
    groups = map_array(group) if group.exists() else None
    mapped = folder / ROWS.format(name)
    if mapped.is_dir():
        return Part(partial(map_folder, mapped), table, groups, stored=mapped)
    path = folder / f"{name}.arrow"
    return Part(partial(_read_rows, path, len(table)), table, groups, stored=path)


def _read_rows(path: Path, rows: int) -> pl.DataFrame:
    try:
        frame = pl.read_ipc(path)
    except (pl.exceptions.PolarsError, OSError) as e:
        raise DataError(f"the cache's raw rows can no longer be read: {str(e).splitlines()[0]}; start again") from e
    if frame.height != rows:
        raise DataError(f"the cache's raw rows {path} must be {rows}, found {frame.height}; clear the cache")
    return frame


@cache
def _code_digest() -> str:
    """Digest of the source code that prepares data."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in [
        *(package / name for name in SOURCES),
        *(p for name in FOLDERS for p in sorted((package / name).rglob("*.py"))),
    ]:
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
