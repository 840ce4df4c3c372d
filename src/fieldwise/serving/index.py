"""The item index: IntTower's item heads of a whole catalogue in one folder, mapped into memory and checked.

index.json              the manifest (`storage.artifact`): model, storage, number of items
heads.HASH.npy          [N, K, P] float32, int16 (the bits of bfloat16) or int8
scale.HASH.npy          [N, K] float32, of int8
items.HASH.arrow        the catalogue's rows, in the same order, with all their columns
"""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import BundleError, ConfigError, DataError, Row
from fieldwise.models.twotower import HeadsNetwork
from fieldwise.ops.devices import device_of
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.schema.ids import id_column as id_of
from fieldwise.scoring.batches import SCORING_BATCH, scoring_mode
from fieldwise.scoring.candidates import check_columns_apart
from fieldwise.scoring.items import ItemIndex, checked_ids, item_table
from fieldwise.storage.arrays import (
    SharedArrays,
    arrow_bytes,
    map_array,
    write_header,
    write_values,
)
from fieldwise.storage.artifact import Artifact, ArtifactKind, Writer, writing
from fieldwise.version import __version__

MANIFEST = "index.json"
INDEX = ArtifactKind(
    name="index",
    manifest=MANIFEST,
    format=1,
    parts={"heads": "npy", "scale": "npy", "items": "arrow"},
    remedy="build it again",
    origin="give the folder of `fieldwise index`",
)
CHECKED_ITEMS_PER_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Numbers of new, changed, removed and unchanged items in an update."""

    new: int
    changed: int
    removed: int
    kept: int


def build_index(
    bundle: Bundle,
    items: TableLike,
    folder: str | Path,
    *,
    id_column: str | None = None,
    storage: Storage = "float32",
    note: Callable[[str], None] = lambda _: None,
) -> tuple[ItemIndex, Changes]:
    """Write the index of a catalogue to a folder, or update an existing index of the same bundle.

    An update only computes the heads of new items and of items whose encoded fields changed, and
    copies the others; also those of the bundle before its last `Bundle.grow`, if it was not trained
    since. The old index can be read until the new one replaces it. Another update of the same
    folder waits for this one.

    Args:
        bundle: an IntTower.
        items: one row per item, with the columns of the item fields; other columns (a title) are
            stored too.
        folder: a folder for the index only, new or with an index.
        id_column: the column of item ids in `items`; default: the schema's
            (`fieldwise.schema.ids`).
        storage: `float32`, `bfloat16` (half the size) or `int8` (a quarter).
        note: called with a message if a damaged index is replaced.

    Returns:
        The index, mapped, and what changed.

    Errors:
        ConfigError: not an IntTower, an unknown storage, no column of ids, a column that both
            towers read.
        DataError: no items, a missing or duplicate id, a missing column, heads that are not finite,
            a full disk.
        BundleError: the folder has other files, or an index of a newer version.
    """
    folder = Path(folder)
    INDEX.check_folder(folder)
    network = _item_network(bundle)
    items = as_table(items, text_columns=(*bundle.schema.text_columns, *filter(None, [id_column])))
    column = id_of("item", [bundle.schema], items.columns, id_column, option="--id")
    texts = item_table(items, column).texts.to_list()
    table = _encoded_items(bundle, items)

    with writing(INDEX, folder) as writer:
        old = old_index(writer.folder, note)
        if old is not None and old.id_column != column:
            old = None
        old_rows = _rows_in(old, texts)
        source = _copied_rows(bundle, old, storage, old_rows, table)

        write_heads(writer, _head_blocks(network, table, storage, old, source, texts), len(texts))
        writer.add("items", arrow_bytes(items))
        writer.finish(
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            fieldwise=__version__,
            model=bundle.digest,
            id_column=column,
            storage=storage,
            items=len(texts),
        )

    return open_index(folder, verify=False), _changes(old, old_rows, source)


def _changes(old: ItemIndex | None, old_rows: np.ndarray, source: np.ndarray) -> Changes:
    """What an update changed, from each item's row in the old index and the row that its heads are copied from."""
    known = int((old_rows >= 0).sum())
    unchanged = int((source >= 0).sum())
    items_before = 0 if old is None else len(old)
    return Changes(
        new=len(old_rows) - known,
        changed=known - unchanged,
        removed=items_before - known,
        kept=unchanged,
    )


def _rows_in(old: ItemIndex | None, texts: Sequence[str]) -> np.ndarray:
    """The row of each id in the old index; -1 for an item that it does not have."""
    if old is None:
        return np.full(len(texts), -1)
    return np.array([old.places.get(text, -1) for text in texts])


def _copied_rows(
    bundle: Bundle,
    old: ItemIndex | None,
    storage: Storage,
    old_rows: np.ndarray,
    items: EncodedTable,
) -> np.ndarray:
    """The row of the old index whose heads each item has too; -1 for an item whose heads must be computed."""
    maker = None
    if old is not None and old.stored.storage == storage:
        maker = _maker(bundle, old)
    if old is None or maker is None:
        return np.full(len(old_rows), -1)
    is_same = _same_rows(_encoded_items(maker, old.items), old_rows, items)
    return np.where(is_same, old_rows, -1)


def without_items(items: TableLike, removed: TableLike, column: str) -> pl.DataFrame:
    """The items but for those whose ids another table has, for `build_index`.

    Errors:
        DataError: an id that is not among the items, or no column of ids.
    """
    catalogue = as_table(items)
    removed_ids = _id_texts(as_table(removed), column, "--remove")
    ids = _id_texts(catalogue, column, "--items")
    unknown = removed_ids.filter(~removed_ids.is_in(ids.implode()))
    if len(unknown):
        raise DataError(
            f"--remove must name items of the index, found {unknown[0]!r}, which is not in it"
        )
    return catalogue.filter(~ids.is_in(removed_ids.implode()))


def with_changed_items(items: TableLike, changed: TableLike, column: str) -> pl.DataFrame:
    """The items with changed rows in place of those of the same ids, and with new ones at the end, for `build_index`.

    Errors:
        DataError: other columns than the items', a value of another type, or no column of ids.
    """
    former = as_table(items)
    current = as_table(changed)
    changed_ids = _id_texts(current, column, "--items").implode()
    if sorted(current.columns) != sorted(former.columns):
        raise DataError(
            f"changed items must have the columns of the index: {', '.join(former.columns)}; found "
            f"{', '.join(current.columns)}"
        )
    added = []
    for name, dtype in former.schema.items():
        values = current.get_column(name)
        # the first id that is no number
        if name == column and dtype.is_integer() and values.dtype == pl.String:
            dtype = pl.String()
            former = former.with_columns(pl.col(name).cast(dtype))
        cast_values = values.cast(dtype, strict=False)
        is_same = cast_values.cast(values.dtype, strict=False).eq_missing(values)
        if not is_same.all():
            row = int((~is_same).arg_max() or 0)
            raise DataError(
                f"changed items must have the types of the index: column {name!r} is {dtype} there, found "
                f"{values[row]!r} in ",
                Row(row),
                "; build the index from the whole catalogue instead",
            )
        added.append(cast_values)
    is_changed = _id_texts(former, column, "the index").is_in(changed_ids)
    return pl.concat([former.filter(~is_changed), pl.DataFrame(added)])


def _id_texts(table: pl.DataFrame, column: str, option: str) -> pl.Series:
    """The ids of a table as texts."""
    if column not in table.columns:
        raise DataError(
            f"the table of {option} must have the column {column!r} of ids: {nearest(column, table.columns)}"
        )
    return as_text(table.get_column(column))


def write_heads(writer: Writer, blocks: Iterator[StoredItems], rows: int) -> None:
    """Write blocks of heads as they come: memory holds one."""
    with contextlib.ExitStack() as stack:
        files = {}
        for block in blocks:
            for name, tensor in block.tensors().items():
                if tensor.dtype == torch.bfloat16:
                    tensor = tensor.view(torch.int16)
                array = tensor.numpy()
                if name not in files:
                    files[name] = stack.enter_context(writer.open(name))
                    write_header(files[name], array.dtype, (rows, *array.shape[1:]))
                write_values(files[name], array)


def old_index(folder: Path, note: Callable[[str], None] = lambda _: None) -> ItemIndex | None:
    """The existing index; None with a note if it is damaged."""
    if not (folder / MANIFEST).exists():
        return None
    INDEX.check_version(folder)
    try:
        return open_index(folder)
    except BundleError as e:
        note(f"{e}: nothing of it is used")
        return None


def open_index(
    folder: str | Path, *, verify: bool = True, shared: SharedArrays | None = None
) -> ItemIndex:
    """Open an index, checking every file against its checksum; its heads are mapped.

    Several processes share the memory of the heads, and pages are read as they are needed. Nobody
    may write into the files: an edit changes scores, and cutting one off ends the process (SIGBUS).
    `build_index` never does, it puts new files in their place.

    Args:
        folder: the folder written by `build_index`.
        verify: check the checksums; otherwise only sizes.
        shared: where several processes share what is made of the index, such as its rows.

    Errors:
        BundleError: no index there, a damaged one (also ids that are absent or stand twice, heads
            that are not finite), or one of a newer version.
    """
    return INDEX.load(Path(folder), lambda saved: _opened(saved, verify, shared), (PolarsError,))


def _opened(saved: Artifact, verify: bool, shared: SharedArrays | None) -> ItemIndex:
    def tensor(part: str) -> torch.Tensor:
        return torch.from_numpy(map_array(saved.path(part, verify=verify)))

    about = saved.about
    heads = tensor("heads")
    if about["storage"] == "bfloat16":
        heads = heads.view(torch.bfloat16)
    tensors = {"heads": heads}
    if "scale" in saved.parts:
        tensors["scale"] = tensor("scale")
    id_column = str(about["id_column"])

    def rows() -> pl.DataFrame:
        rows = pl.read_ipc(io.BytesIO(saved.content("items", verify=verify)))
        if verify:
            checked_ids(rows, id_column)
        return rows

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
    if verify and not all(map(_is_finite, tensors.values())):
        raise INDEX.damaged(saved.folder, "it has heads that are not finite")
    return index


def _is_finite(tensor: torch.Tensor) -> bool:
    """Whether all numbers are finite; looked at in chunks of items, to need little memory."""
    chunks = torch.split(tensor, CHECKED_ITEMS_PER_CHUNK)
    return all(bool(chunk.isfinite().all()) for chunk in chunks)


def _item_network(bundle: Bundle) -> HeadsNetwork:
    """The bundle's IntTower network; a ConfigError if it is another one, or both sides read a column."""
    if not isinstance(bundle.network, HeadsNetwork):
        name = type(bundle.settings).__name__
        raise ConfigError(
            f"an index needs the item heads of an IntTower with one label, found {name}: train inttower"
        )
    check_columns_apart(bundle.schema)
    return bundle.network


def _maker(bundle: Bundle, old: ItemIndex) -> Bundle | None:
    """The bundle that made an index: this one, or it before its encoder grew; None if it was another."""
    former = bundle if old.model == bundle.digest else bundle.before_growth()
    return former if former is not None and former.digest == old.model else None


def _encoded_items(bundle: Bundle, items: pl.DataFrame) -> EncodedTable:
    """The items encoded as rows of the whole layout; user and context fields, which are not read, are missing."""
    item_columns = {field.column for field in bundle.schema.with_role("item")}
    missing = [column for column in item_columns if column not in items.columns]
    if missing:
        raise DataError(
            f"the items must hold every column of the item fields: {missing[0]!r} is missing among "
            f"{', '.join(items.columns)}"
        )
    not_read = {
        column: pl.lit(None, pl.String)
        for column in bundle.schema.columns
        if column not in item_columns
    }
    return bundle.encoder.transform(items.select(sorted(item_columns)).with_columns(**not_read))


def _same_rows(old: EncodedTable, old_rows: np.ndarray, new: EncodedTable) -> np.ndarray:
    """Mask of the rows of `new` that are encoded like those of `old` by number (-1: no such row)."""
    known = np.flatnonzero(old_rows >= 0)
    before = old_rows[known]
    same = (old.ids[before] == new.ids[known]).all(1)
    same &= (old.values[before] == new.values[known]).all(1)
    for old_vectors, new_vectors in zip(old.vectors, new.vectors, strict=True):
        same &= old_vectors.equals(before, new_vectors, known)
    bags = new.layout.num_bags
    if bags:
        old_lengths = old.bags.lengths.view(-1, bags)
        new_lengths = new.bags.lengths.view(-1, bags)
        same &= (old_lengths[before] == new_lengths[known]).all(1).numpy()
        # of bags with equal lengths, the ids stand in the same order
        old_bags = old.bags.rows(torch.from_numpy(before[same]), bags)
        new_bags = new.bags.rows(torch.from_numpy(known[same]), bags)
        differing = new_bags.segments[old_bags.ids != new_bags.ids] // bags
        differences = np.bincount(differing.numpy(), minlength=int(same.sum()))
        same[same] = differences == 0

    is_same = np.zeros(len(new), bool)
    is_same[known] = same
    return is_same


def _head_blocks(
    network: HeadsNetwork,
    table: EncodedTable,
    storage: Storage,
    old: ItemIndex | None,
    source: np.ndarray,
    texts: Sequence[str],
) -> Iterator[StoredItems]:
    """The heads of all items in blocks: copied from row `source` of the old heads, or computed where it is -1."""
    with scoring_mode(network):
        for start in range(0, len(table), SCORING_BATCH):
            old_rows = torch.from_numpy(source[start : start + SCORING_BATCH])
            computed = (old_rows < 0).nonzero().flatten()
            tensors: dict[str, torch.Tensor] = {}
            if old is not None and len(computed) < len(old_rows):
                copied = old_rows.clamp(min=0)
                tensors = {name: tensor[copied] for name, tensor in old.stored.tensors().items()}
            if len(computed):
                batch, _ = table.batch(computed + start)
                heads = network.item(batch.to(device_of(network))).cpu()
                broken = torch.isfinite(heads).flatten(1).all(1).logical_not().nonzero()
                if len(broken):
                    item = texts[start + int(computed[int(broken[0])])]
                    raise DataError(
                        f"item heads must be finite, those of item {item!r} are not: correct its row"
                    )
                computed_tensors = StoredItems.of(heads, storage).tensors()
                if tensors:
                    for name, tensor in tensors.items():
                        tensor[computed] = computed_tensors[name]
                else:
                    tensors = computed_tensors
            yield StoredItems.from_tensors(tensors)
