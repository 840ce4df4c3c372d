"""The item index: IntTower's item heads of a whole catalogue in one folder, mapped into memory and checked.

    index.json              the manifest: format, model, storage, and name, size and SHA-256 of every file; written last
    heads.HASH.npy          [N, K, P] float32, int16 (the bits of bfloat16) or int8
    scale.HASH.npy          [N, K] float32, of int8
    items.HASH.arrow        the catalogue's rows, in the same order, with all their columns

Files carry the start of their own SHA-256 in their names: an update writes new ones beside the old, renames the
manifest, and only then removes what is no longer named. A crash, or a kill, at any moment leaves the old index or the
new one.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError
from torch import Tensor

import fieldwise
from fieldwise.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.columns import as_text
from fieldwise.data.encoded import EncodedTable
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.files import sync_folder, write_atomically
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.models.scoring import SCORING_BATCH
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.schema import Categorical, Schema

__all__ = ["Changes", "ItemIndex", "build_index", "item_column", "open_index"]

FORMAT = 1
MANIFEST = "index.json"
PARTS = ("heads", "scale", "items")
PART_NAME = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{12}}\.(npy|arrow)")
CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What an update found: items that are new, whose fields changed, that are gone, and that stayed as they were."""

    new: int
    changed: int
    removed: int
    kept: int


@dataclass(frozen=True, eq=False)
class ItemIndex:
    """A catalogue's item heads, in the order of its rows.

    Args:
        model: the digest of the bundle that made the heads (`Bundle.digest`).
        id_column: which column of `items` names an item.
        items: the catalogue's rows.
        stored: their heads.
    """

    model: str
    id_column: str
    items: pl.DataFrame
    stored: StoredItems

    def __len__(self) -> int:
        return len(self.stored)

    @cached_property
    def ids(self) -> list[str]:
        """The items' ids as text."""
        return as_text(self.items.get_column(self.id_column)).to_list()

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each id stands."""
        return {name: row for row, name in enumerate(self.ids)}

    def rows_of(self, ids: Collection[str]) -> Tensor:
        """The rows of items by id, int64.

        Errors:
            DataError: an id that the index does not hold.
        """
        try:
            return torch.tensor([self.places[str(one)] for one in ids], dtype=torch.int64)
        except KeyError as e:
            raise DataError(f"an item must be one of the index's {len(self):,}, found {e.args[0]!r}") from None

    def check_model(self, bundle: Bundle) -> None:
        """Refuse a bundle that did not make these heads.

        Errors:
            BundleError: its fields or weights are others.
        """
        if self.model != bundle.digest:
            raise BundleError(
                "an index belongs to the model that made it, but this bundle has other fields or weights: build the "
                "index anew with it"
            )


def item_column(schema: Schema, given: str | None = None) -> str:
    """The column that names an item: as given, or that of the schema's first category of role item.

    Errors:
        ConfigError: none was given, and the schema has no such field.
    """
    if given is not None:
        return given
    for field in schema.with_role("item"):
        if isinstance(field, Categorical):
            return field.column
    raise ConfigError(
        "an index needs a column that names items, and no category of role item has one: give --id COLUMN"
    )


def build_index(
    bundle: Bundle,
    items: pl.DataFrame,
    folder: Path,
    *,
    id_column: str | None = None,
    storage: Storage = "float32",
) -> tuple[ItemIndex, Changes]:
    """Write the index of a catalogue to a folder; over an index of the same bundle it is an update.

    An update computes the heads of new and changed items alone, those whose encoded fields differ, and copies the
    others. The index that was there stays whole, and can be read, until the new one takes its place.

    Args:
        bundle: an IntTower.
        items: one row an item, with the columns of the item fields; other columns (a title) are kept beside them.
        folder: its own folder, new or with an index.
        id_column: `item_column` where left out.
        storage: `float32`, `bfloat16` (half the size) or `int8` (a quarter).

    Errors:
        ConfigError: not an IntTower, an unknown storage, no column of ids.
        DataError: no items, an id absent or twice, a missing column, a full disk.
        BundleError: the folder holds something else, or a damaged index.
    """
    network = _network(bundle)
    column = item_column(bundle.schema, id_column)
    texts = _checked_ids(items, column)
    table = _encoded(bundle, items)
    old = open_index(folder) if (folder / MANIFEST).exists() else None
    _check_folder(folder)
    reusable = old is not None and old.model == bundle.digest and old.stored.storage == storage
    source = np.full(len(texts), -1)  # the row in the old index that an item's heads are copied from
    changes = Changes(new=len(texts), changed=0, removed=0, kept=0)
    if old is not None and old.id_column == column:
        places = np.array([old.places.get(text, -1) for text in texts])
        same = np.zeros(len(texts), bool)
        if reusable:
            before = _signatures(_encoded(bundle, old.items))
            now = _signatures(table)
            same = np.array([p >= 0 and before[p] == now[row] for row, p in enumerate(places)])
            source = np.where(same, places, -1)
        known = int((places >= 0).sum())
        kept = int(same.sum())
        changes = Changes(new=len(texts) - known, changed=known - kept, removed=len(old) - known, kept=kept)
    with _writing(folder) as writer:
        writer.heads(_blocks(network, table, storage, old, source), len(texts))
        writer.add("items", ".arrow", _arrow(items))
        manifest = {
            "format": FORMAT,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "fieldwise": fieldwise.__version__,
            "model": bundle.digest,
            "id_column": column,
            "storage": storage,
            "items": len(texts),
            "files": writer.files,
        }
        manifest["sha256"] = _digest(manifest)
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    _remove_strangers(folder, {str(f["name"]) for f in manifest["files"].values()})  # type: ignore[attr-defined]
    return open_index(folder), changes


def open_index(folder: Path) -> ItemIndex:
    """Map an index into memory, after every file was checked against its checksum.

    Errors:
        BundleError: no index there, a damaged one, or one of a newer version.
    """
    manifest = _read_manifest(folder)
    try:
        paths = {part: _checked(folder, part, entry) for part, entry in manifest["files"].items()}
        heads = torch.from_numpy(np.load(paths["heads"], mmap_mode="c", allow_pickle=False))
        if manifest["storage"] == "bfloat16":
            heads = heads.view(torch.bfloat16)
        tensors = {"heads": heads}
        if "scale" in paths:
            tensors["scale"] = torch.from_numpy(np.load(paths["scale"], mmap_mode="c", allow_pickle=False))
        items = pl.read_ipc(io.BytesIO(paths["items"].read_bytes()))
        index = ItemIndex(str(manifest["model"]), str(manifest["id_column"]), items, StoredItems.from_tensors(tensors))
        fits = len(index) == items.height == manifest["items"] == len(index.places)
        if not fits or index.stored.storage != manifest["storage"]:
            raise ValueError("its files do not belong together")
    except (LookupError, TypeError, ValueError, OSError, ConfigError, DataError, PolarsError) as e:
        raise BundleError(f"the index {folder} is damaged: {str(e).splitlines()[0]}; build it again") from None
    return index


def _network(bundle: Bundle) -> IntTowerNetwork:
    if not isinstance(bundle.network, IntTowerNetwork):
        name = type(bundle.settings).__name__
        raise ConfigError(f"an index holds the item heads of an IntTower of one label, found {name}: train inttower")
    return bundle.network


def _checked_ids(items: pl.DataFrame, column: str) -> list[str]:
    if column not in items.columns:
        raise DataError(f"the items must have the column {column!r} of ids: {nearest(column, items.columns)}")
    if not items.height:
        raise DataError("an index needs items, found none")
    texts = as_text(items.get_column(column))
    if texts.null_count():
        row = int(texts.is_null().arg_max() or 0)
        raise DataError(f"every item needs an id: column {column!r} is empty in row {row} (counting from 0)")
    twice = texts.is_duplicated()
    if twice.any():
        row = int(twice.arg_max() or 0)
        raise DataError(f"an id names one item: {texts[row]!r} in column {column!r} stands more than once")
    return [str(text) for text in texts.to_list()]


def _encoded(bundle: Bundle, items: pl.DataFrame) -> EncodedTable:
    """The items as rows of the whole layout, users and contexts absent: the item tower does not read them."""
    own = {f.column for f in bundle.schema.with_role("item")}
    missing = [column for column in own if column not in items.columns]
    if missing:
        raise DataError(
            f"the items must hold every column of the item fields: {missing[0]!r} is missing among "
            f"{', '.join(items.columns)}"
        )
    absent = {column: pl.lit(None, pl.String) for column in bundle.schema.columns if column not in own}
    return bundle.encoder.transform(items.select(sorted(own)).with_columns(**absent))


def _signatures(table: EncodedTable) -> list[bytes]:
    """What each row's encoded fields are, as bytes."""
    bags = len(table.layout.positions(kind="bag"))
    found = []
    for row in range(len(table)):
        own = table.ids[row].tobytes() + table.values[row].tobytes()
        offsets = table.bag_offsets[row * bags : (row + 1) * bags + 1]
        lengths = np.diff(offsets).tobytes()
        found.append(own + lengths + table.bag_ids[offsets[0] : offsets[-1]].tobytes())
    return found


def _blocks(
    network: IntTowerNetwork, table: EncodedTable, storage: Storage, old: ItemIndex | None, source: np.ndarray
) -> Iterator[StoredItems]:
    """The heads of all items, block by block: copied where `source` names a row, else computed."""
    with torch.no_grad(), flushed_denormals():
        for start in range(0, len(table), SCORING_BATCH):
            block = source[start : start + SCORING_BATCH]
            fresh = torch.from_numpy(np.flatnonzero(block < 0))
            made = StoredItems.of(network.item(table.batch(fresh + start)[0]), storage) if len(fresh) else None
            if made is not None and len(fresh) == len(block):
                yield made
                continue
            assert old is not None
            copied = torch.from_numpy(np.flatnonzero(block >= 0))
            rows = torch.from_numpy(block[block >= 0])
            tensors = {}
            for name, theirs in old.stored.tensors().items():
                tensors[name] = theirs.new_empty(len(block), *theirs.shape[1:])
                tensors[name][copied] = theirs[rows]
                if made is not None:
                    tensors[name][fresh] = made.tensors()[name]
            yield StoredItems.from_tensors(tensors)


class _Writer:
    """Files under temporary names, until `files` names them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}
        self.partial: list[Path] = []

    def add(self, part: str, suffix: str, content: bytes) -> None:
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
def _writing(folder: Path) -> Iterator[_Writer]:
    writer = _Writer(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield writer
    except OSError as e:
        raise DataError(
            f"cannot write the index {folder}: {e.strerror or e}; free space or choose another folder"
        ) from e
    finally:
        for path in writer.partial:
            path.unlink(missing_ok=True)


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"an index is a folder, but {folder} is a file; choose another name")
    if not folder.exists() or (folder / MANIFEST).exists():
        return
    strangers = sorted(
        p.name for p in folder.iterdir() if not p.name.startswith(".") and not PART_NAME.fullmatch(p.name)
    )
    if strangers:
        raise BundleError(f"an index needs a folder of its own: {folder} holds other files, such as {strangers[0]!r}")


def _remove_strangers(folder: Path, named: Collection[str]) -> None:
    """Parts of former indexes, also of updates that were killed."""
    for path in folder.iterdir():
        old = PART_NAME.fullmatch(path.name) and path.name not in named
        if old or (path.name.startswith(".") and path.name.endswith(".part")):
            path.unlink(missing_ok=True)


def _arrow(items: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    items.write_ipc(buffer)
    return buffer.getvalue()


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BundleError(f"{folder} is no index: it has no {MANIFEST}; give the folder of `fieldwise index`") from None
    except (OSError, ValueError) as e:
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} cannot be read ({e}); build it again") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} has no format number; build it again")
    if manifest["format"] > FORMAT:
        raise BundleError(
            f"the index {folder} has format {manifest['format']}, but this fieldwise {fieldwise.__version__} reads up "
            f"to format {FORMAT}: install a newer fieldwise"
        )
    if manifest.get("sha256") != _digest(manifest):
        raise BundleError(f"the index {folder} is damaged: {MANIFEST} has not its checksum; build it again")
    return manifest


def _checked(folder: Path, part: str, entry: Mapping[str, Any]) -> Path:
    name = str(entry["name"])
    if part not in PARTS or not PART_NAME.fullmatch(name):
        raise ValueError(f"{MANIFEST} names {name!r}, which is no file of an index")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{name} is missing")
    if path.stat().st_size != entry["bytes"] or _file_digest(path) != entry["sha256"]:
        raise ValueError(f"{name} has not its checksum")
    return path
