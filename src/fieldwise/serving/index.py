"""The item index: IntTower's item heads of a whole catalogue in one folder, mapped into memory and checked.

index.json              the manifest (`storage.artifact`): model, storage, number of items
heads.HASH.npy          [N, K, P] float32, int16 (the bits of bfloat16) or int8
scale.HASH.npy          [N, K] float32, of int8
items.HASH.arrow        the catalogue's rows, in the same order, with all their columns
"""

import io
import time
from collections.abc import Callable, Iterator, Sequence
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
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.schema import Categorical, Schema
from fieldwise.scoring.batches import SCORING_BATCH
from fieldwise.serving.index_files import INDEX, MANIFEST, write_heads
from fieldwise.serving.items import ItemTable, checked_ids
from fieldwise.storage.arrays import arrow_bytes, map_array
from fieldwise.storage.artifact import Artifact
from fieldwise.storage.writer import Writer, writing
from fieldwise.version import __version__

__all__ = ["Changes", "ItemIndex", "build_index", "check_columns_apart", "item_column", "old_index", "open_index"]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What an update found: items that are new, whose fields changed, that are gone, and that stayed as they were."""

    new: int
    changed: int
    removed: int
    kept: int


@dataclass(frozen=True, eq=False, kw_only=True)
class ItemIndex(ItemTable):
    """A catalogue's item heads, in the order of its rows.

    Args:
        id_column: which column of `items` names an item.
        items: the catalogue's rows.
        model: the digest of the bundle that made the heads (`Bundle.digest`).
        stored: their heads.
        generation: the checksum of its manifest: another one after every update.
    """

    model: str
    stored: StoredItems
    generation: str = ""
    what: ClassVar[str] = "index"

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
        "an index needs a column that names items, and no category of role item has one: give the field of the item's "
        "id the role item in the schema and train again, or name one that no model reads with `fieldwise index --id`"
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
    """Write the index of a catalogue to a folder; over an index of the same bundle it is an update.

    An update computes the heads of new and changed items alone, those whose encoded fields differ, and copies the
    others. The index that was there stays whole, and can be read, until the new one takes its place. Another update
    of the same folder waits for this one.

    Args:
        bundle: an IntTower.
        items: one row an item, with the columns of the item fields; other columns (a title) are kept beside them.
        folder: its own folder, new or with an index.
        id_column: `item_column` where left out.
        storage: `float32`, `bfloat16` (half the size) or `int8` (a quarter).
        note: hears where a damaged index was there, which is built anew.

    Errors:
        ConfigError: not an IntTower, an unknown storage, no column of ids, a column that both towers read.
        DataError: no items, an id absent or twice, a missing column, heads that are not finite, a full disk.
        BundleError: the folder holds something else, or an index of a newer version.
    """
    network, items = _network(bundle), as_table(items)
    column = item_column(bundle.schema, id_column)
    texts = checked_ids(items, column)
    table = _encoded(bundle, items)
    INDEX.check_folder(folder)
    with writing(INDEX, folder) as writer:
        changes = _write(writer, bundle, network, items, column, texts, table, storage, note)
    return open_index(folder, verify=False), changes


def _write(
    writer: Writer,
    bundle: Bundle,
    network: IntTowerNetwork,
    items: pl.DataFrame,
    column: str,
    texts: list[str],
    table: EncodedTable,
    storage: Storage,
    note: Callable[[str], None],
) -> Changes:
    folder = writer.folder
    old = old_index(folder, note)
    reusable = old is not None and old.model == bundle.digest and old.stored.storage == storage
    source = np.full(len(texts), -1)  # the row in the old index that an item's heads are copied from
    changes = Changes(new=len(texts), changed=0, removed=0, kept=0)
    if old is not None and old.id_column == column:
        places = np.array([old.places.get(text, -1) for text in texts])
        same = np.zeros(len(texts), bool)
        if reusable:
            same = _same_rows(_encoded(bundle, old.items), places, table)
            source = np.where(same, places, -1)
        known = int((places >= 0).sum())
        kept = int(same.sum())
        changes = Changes(new=len(texts) - known, changed=known - kept, removed=len(old) - known, kept=kept)
    write_heads(writer, _blocks(network, table, storage, old, source, texts), len(texts))
    writer.add("items", arrow_bytes(items))
    writer.finish(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        fieldwise=__version__,
        model=bundle.digest,
        id_column=column,
        storage=storage,
        items=len(texts),
    )
    return changes


def old_index(folder: Path, note: Callable[[str], None] = lambda _: None) -> ItemIndex | None:
    """The index that is there; a damaged one counts as none, and is told of."""
    if not (folder / MANIFEST).exists():
        return None
    INDEX.check_version(folder)
    try:
        return open_index(folder)
    except BundleError as e:
        note(f"{e}: nothing of it is used")
        return None


def open_index(folder: Path, *, verify: bool = True) -> ItemIndex:
    """Map an index into memory, after every file was checked against its checksum.

    Args:
        folder: where `build_index` put it.
        verify: read all of it for the checksums; without, only sizes are checked.

    Errors:
        BundleError: no index there, a damaged one, or one of a newer version.
    """
    return INDEX.load(folder, lambda saved: _opened(saved, verify), (PolarsError,))


def _opened(saved: Artifact, verify: bool) -> ItemIndex:
    about, paths = saved.about, {part: saved.path(part, verify=verify) for part in ("heads", "items")}
    heads = torch.from_numpy(map_array(paths["heads"]))
    if about["storage"] == "bfloat16":
        heads = heads.view(torch.bfloat16)
    tensors = {"heads": heads}
    if "scale" in saved.parts:
        tensors["scale"] = torch.from_numpy(map_array(saved.path("scale", verify=verify)))
    items = pl.read_ipc(io.BytesIO(paths["items"].read_bytes()))
    stored = StoredItems.from_tensors(tensors)
    index = ItemIndex(
        id_column=str(about["id_column"]),
        items=items,
        model=str(about["model"]),
        stored=stored,
        generation=saved.digest,
    )
    if not len(index) == items.height == about["items"] or stored.storage != about["storage"]:
        raise INDEX.damaged(saved.folder, "its files do not belong together")
    return index


def _network(bundle: Bundle) -> IntTowerNetwork:
    if not isinstance(bundle.network, IntTowerNetwork):
        name = type(bundle.settings).__name__
        raise ConfigError(f"an index holds the item heads of an IntTower of one label, found {name}: train inttower")
    check_columns_apart(bundle.schema)
    return bundle.network


def check_columns_apart(schema: Schema) -> None:
    """Refuse a column that fields of both sides read: a request has it either for the context or for the items.

    Errors:
        ConfigError: it names the column and its fields.
    """
    items = {f.column: f.name for f in schema.with_role("item")}
    for field in schema.fields:
        if field.role != "item" and field.column in items:
            raise ConfigError(
                f"a column is the items' or the context's, found {field.column!r} read by {items[field.column]!r} "
                f"(role item) and {field.name!r} (role {field.role}): give one of them a column of its own"
            )


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


def _same_rows(old: EncodedTable, places: np.ndarray, new: EncodedTable) -> np.ndarray:
    """Which rows of `new` are encoded as the rows of `old` at `places` (-1: none)."""
    rows = np.flatnonzero(places >= 0)
    at = places[rows]
    same = (old.ids[at] == new.ids[rows]).all(1) & (old.values[at] == new.values[rows]).all(1)
    bags = len(new.layout.positions(kind="bag"))
    if bags:
        before, now = (np.diff(table.bag_offsets).reshape(-1, bags) for table in (old, new))
        same &= (before[at] == now[rows]).all(1)
        left, right = at[same], rows[same]
        differs = (
            old.bag_ids[_spans(old.bag_offsets[::bags], left)] != new.bag_ids[_spans(new.bag_offsets[::bags], right)]
        )
        row_of = np.repeat(np.arange(len(right)), now[right].sum(1))
        same[same] = np.bincount(row_of[differs], minlength=len(right)) == 0
    found = np.zeros(len(new), bool)
    found[rows] = same
    return found


def _spans(starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The positions from starts[row] to starts[row + 1], row after row."""
    first, lengths = starts[rows], starts[rows + 1] - starts[rows]
    before = np.cumsum(lengths) - lengths
    positions: np.ndarray = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
    return positions


def _blocks(
    network: IntTowerNetwork,
    table: EncodedTable,
    storage: Storage,
    old: ItemIndex | None,
    source: np.ndarray,
    texts: Sequence[str],
) -> Iterator[StoredItems]:
    """The heads of all items, block by block: copied where `source` names a row, else computed."""
    with torch.no_grad(), flushed_denormals():
        for start in range(0, len(table), SCORING_BATCH):
            block = source[start : start + SCORING_BATCH]
            fresh = torch.from_numpy(np.flatnonzero(block < 0))
            made = None
            if len(fresh):
                heads = network.item(table.batch(fresh + start)[0])
                broken = torch.isfinite(heads).flatten(1).all(1).logical_not().nonzero()
                if len(broken):
                    item = texts[start + int(fresh[int(broken[0])])]
                    raise DataError(f"item heads must be finite, found others for item {item!r}: mend its row")
                made = StoredItems.of(heads, storage)
                if len(fresh) == len(block):
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
