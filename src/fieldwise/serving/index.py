"""The item index: IntTower's item heads of a whole catalogue in one folder, read into memory and checked.

index.json              the manifest (`storage.artifact`): model, storage, number of items
heads.HASH.npy          [N, K, P] float32, int16 (the bits of bfloat16) or int8
scale.HASH.npy          [N, K] float32, of int8
items.HASH.arrow        the catalogue's rows, in the same order, with all their columns
"""

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import BundleError
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.schema.ids import id_column as id_of
from fieldwise.serving.index_files import INDEX, MANIFEST, write_heads
from fieldwise.serving.index_heads import encoded_items, head_blocks, item_network, same_rows
from fieldwise.serving.items import ItemTable, checked_ids
from fieldwise.storage.arrays import array_of, arrow_bytes, map_array
from fieldwise.storage.artifact import Artifact
from fieldwise.storage.shared import SharedArrays
from fieldwise.storage.writer import Writer, writing
from fieldwise.version import __version__

CHECKED = 1 << 16  # items whose heads are checked at once

__all__ = ["Changes", "ItemIndex", "build_index", "old_index", "open_index"]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Numbers of new, changed, removed and unchanged items in an update."""

    new: int
    changed: int
    removed: int
    kept: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemIndex(ItemTable):
    """A catalogue's item heads, in the order of its rows.

    Args:
        id_column: the column of item ids in `items`.
        items: the catalogue's rows.
        model: the digest of the bundle that made the heads (`Bundle.digest`).
        stored: their heads.
        generation: the checksum of its manifest, which changes with every update.
    """

    model: str
    stored: StoredItems
    generation: str = ""
    what: ClassVar[str] = "index"

    def check_model(self, bundle: Bundle) -> None:
        """Check that a bundle computed these heads.

        Errors:
            BundleError: its fields or weights differ.
        """
        if self.model != bundle.digest:
            raise BundleError(
                "an index belongs to the model that made it, but this bundle has other fields or weights: build a "
                "new index with it"
            )


def build_index(
    bundle: Bundle,
    items: TableLike,
    folder: Path,
    *,
    id_column: str | None = None,
    storage: Storage = "float32",
    note: Callable[[str], None] = lambda _: None,
) -> tuple[ItemIndex, Changes]:
    """Write the index of a catalogue to a folder, or update an existing index of the same bundle.

    An update only computes the heads of new items and of items whose encoded fields changed, and copies the others.
    The old index can be read until the new one replaces it. Another update of the same folder waits for this one.

    Args:
        bundle: an IntTower.
        items: one row per item, with the columns of the item fields; other columns (a title) are stored too.
        folder: a folder for the index only, new or with an index.
        id_column: the column of item ids in `items`; default: the schema's (`fieldwise.schema.ids`).
        storage: `float32`, `bfloat16` (half the size) or `int8` (a quarter).
        note: called with a message if a damaged index is replaced.

    Returns:
        The index, mapped (see `open_index`), and what changed.

    Errors:
        ConfigError: not an IntTower, an unknown storage, no column of ids, a column that both towers read.
        DataError: no items, a missing or duplicate id, a missing column, heads that are not finite, a full disk.
        BundleError: the folder has other files, or an index of a newer version.
    """
    network, items = item_network(bundle), as_table(items)
    column = id_of("item", [bundle.schema], items.columns, id_column, option="--id")
    wanted = _Wanted(
        bundle=bundle,
        network=network,
        items=items,
        column=column,
        texts=checked_ids(items, column).to_list(),
        table=encoded_items(bundle, items),
        storage=storage,
    )
    INDEX.check_folder(folder)
    with writing(INDEX, folder) as writer:
        changes = _write(writer, wanted, note)
    return open_index(folder, verify=False, mapped=True), changes


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The index to write: its bundle, the catalogue, and the encoded items."""

    bundle: Bundle
    network: IntTowerNetwork
    items: pl.DataFrame
    column: str
    texts: list[str]
    table: EncodedTable
    storage: Storage

    def against(self, old: ItemIndex | None) -> tuple[np.ndarray, Changes]:
        """For every item, the row of the old index to copy its heads from (-1: none), and the changes."""
        count = len(self.texts)
        source = np.full(count, -1)
        if old is None or old.id_column != self.column:
            return source, Changes(new=count, changed=0, removed=0, kept=0)
        places = np.array([old.places.get(text, -1) for text in self.texts])
        same = np.zeros(count, bool)
        if old.model == self.bundle.digest and old.stored.storage == self.storage:
            same = same_rows(encoded_items(self.bundle, old.items), places, self.table)
            source = np.where(same, places, -1)
        known = int((places >= 0).sum())
        kept = int(same.sum())
        return source, Changes(new=count - known, changed=known - kept, removed=len(old) - known, kept=kept)


def _write(writer: Writer, wanted: _Wanted, note: Callable[[str], None]) -> Changes:
    old, texts = old_index(writer.folder, note), wanted.texts
    source, changes = wanted.against(old)
    copied = None if old is None else old.stored
    blocks = head_blocks(wanted.network, wanted.table, wanted.storage, copied, source, texts)
    write_heads(writer, blocks, len(texts))
    writer.add("items", arrow_bytes(wanted.items))
    writer.finish(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        fieldwise=__version__,
        model=wanted.bundle.digest,
        id_column=wanted.column,
        storage=wanted.storage,
        items=len(texts),
    )
    return changes


def old_index(folder: Path, note: Callable[[str], None] = lambda _: None) -> ItemIndex | None:
    """The existing index; None with a note if it is damaged."""
    if not (folder / MANIFEST).exists():
        return None
    INDEX.check_version(folder)
    try:
        return open_index(folder, mapped=True)
    except BundleError as e:
        note(f"{e}: nothing of it is used")
        return None


def open_index(
    folder: Path, *, verify: bool = True, mapped: bool = False, shared: SharedArrays | None = None
) -> ItemIndex:
    """Read an index into memory, checking every file against its checksum.

    Args:
        folder: the folder written by `build_index`.
        verify: check the checksums; otherwise only sizes.
        mapped: map the heads' files rather than copy them: several processes share the memory, and pages are read as
            they are needed. Nobody may write into the files then: an edit changes scores, and cutting one off ends the
            process (SIGBUS). `build_index` never does, it puts new files in their place.
        shared: where several processes share the copy of the files in memory, which the first of them makes.

    Errors:
        BundleError: no index there, a damaged one (also ids that are absent or stand twice, heads that are not finite),
            or one of a newer version.
    """
    return INDEX.load(folder, lambda saved: _opened(saved, verify, mapped, shared), (PolarsError,))


def _opened(saved: Artifact, verify: bool, mapped: bool, shared: SharedArrays | None) -> ItemIndex:
    def read(part: str) -> np.ndarray:
        return array_of(saved.octets(part, verify=verify))

    def tensor(part: str) -> torch.Tensor:
        if mapped:
            array = map_array(saved.path(part, verify=verify))
        elif shared is not None:
            array = shared.array(f"{part}-{saved.digest}", lambda: read(part))
        else:
            array = read(part)
        return torch.from_numpy(array)

    about, heads = saved.about, tensor("heads")
    if about["storage"] == "bfloat16":
        heads = heads.view(torch.bfloat16)
    tensors = {"heads": heads}
    if "scale" in saved.parts:
        tensors["scale"] = tensor("scale")
    id_column = str(about["id_column"])

    def rows() -> pl.DataFrame:
        found = pl.read_ipc(io.BytesIO(saved.octets("items", verify=verify)))
        if verify:
            checked_ids(found, id_column)
        return found

    items = rows() if shared is None else shared.frame(f"items-{saved.digest}", rows)
    stored = StoredItems.from_tensors(tensors)
    index = ItemIndex(
        id_column=id_column,
        items=items,
        name=saved.digest,
        shared=shared,
        model=str(about["model"]),
        stored=stored,
        generation=saved.digest,
    )
    if not len(index) == items.height == about["items"] or stored.storage != about["storage"]:
        raise INDEX.damaged(saved.folder, "its files do not belong together")
    if verify and not all(part.isfinite().all() for one in tensors.values() for part in torch.split(one, CHECKED)):
        raise INDEX.damaged(saved.folder, "it has heads that are not finite")
    return index
