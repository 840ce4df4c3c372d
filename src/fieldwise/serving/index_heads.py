"""Item heads of an index: computed by IntTower for new and changed items, copied for the others."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
import torch

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.schema import Schema
from fieldwise.scoring.batches import SCORING_BATCH

__all__ = ["check_columns_apart", "encoded_items", "head_blocks", "item_network", "same_rows"]


def item_network(bundle: Bundle) -> IntTowerNetwork:
    """The bundle's IntTower network, whose item tower computes the heads.

    Errors:
        ConfigError: the model is not an IntTower with one label, or fields of both sides read the same column.
    """
    if not isinstance(bundle.network, IntTowerNetwork):
        name = type(bundle.settings).__name__
        raise ConfigError(f"an index needs the item heads of an IntTower with one label, found {name}: train inttower")
    check_columns_apart(bundle.schema)
    return bundle.network


def check_columns_apart(schema: Schema) -> None:
    """Refuse a column that both an item field and another field read: a request gives it for one side only.

    Errors:
        ConfigError: there is such a column; the message names it and its fields.
    """
    items = {f.column: f.name for f in schema.with_role("item")}
    for field in schema.fields:
        if field.role != "item" and field.column in items:
            raise ConfigError(
                f"a column belongs either to the items or to the context, found {field.column!r} read by "
                f"{items[field.column]!r} (role item) and {field.name!r} (role {field.role}): give one of them its own "
                "column"
            )


def encoded_items(bundle: Bundle, items: pl.DataFrame) -> EncodedTable:
    """The items encoded as rows of the whole layout; user and context fields, which are not read, are missing."""
    own = {f.column for f in bundle.schema.with_role("item")}
    missing = [column for column in own if column not in items.columns]
    if missing:
        raise DataError(
            f"the items must hold every column of the item fields: {missing[0]!r} is missing among "
            f"{', '.join(items.columns)}"
        )
    absent = {column: pl.lit(None, pl.String) for column in bundle.schema.columns if column not in own}
    return bundle.encoder.transform(items.select(sorted(own)).with_columns(**absent))


def same_rows(old: EncodedTable, places: np.ndarray, new: EncodedTable) -> np.ndarray:
    """Mask of the rows of `new` that are encoded like the rows of `old` at `places` (-1: no such row)."""
    rows = np.flatnonzero(places >= 0)
    at = places[rows]
    same = (old.ids[at] == new.ids[rows]).all(1) & (old.values[at] == new.values[rows]).all(1)
    bags = len(new.layout.positions(kind="bag"))
    if bags:
        lengths = [table.bags.lengths.view(-1, bags) for table in (old, new)]
        same &= (lengths[0][at] == lengths[1][rows]).all(1).numpy()
        left, right = (torch.from_numpy(some[same]) for some in (at, rows))
        before, now = old.bags.rows(left, bags), new.bags.rows(right, bags)
        differs = now.segments[before.ids != now.ids] // bags
        same[same] = np.bincount(differs.numpy(), minlength=len(right)) == 0
    found = np.zeros(len(new), bool)
    found[rows] = same
    return found


def head_blocks(
    network: IntTowerNetwork,
    table: EncodedTable,
    storage: Storage,
    old: StoredItems | None,
    source: np.ndarray,
    texts: Sequence[str],
) -> Iterator[StoredItems]:
    """The heads of all items in blocks: copied from row `source` of the old heads, or computed where it is -1."""
    with torch.no_grad(), flushed_denormals():
        for start in range(0, len(table), SCORING_BATCH):
            block = source[start : start + SCORING_BATCH]
            fresh = torch.from_numpy(np.flatnonzero(block < 0))
            made = None
            if len(fresh):
                heads = network.item(table.batch(fresh + start)[0].to(device_of(network))).cpu()
                broken = torch.isfinite(heads).flatten(1).all(1).logical_not().nonzero()
                if len(broken):
                    item = texts[start + int(fresh[int(broken[0])])]
                    raise DataError(f"item heads must be finite, those of item {item!r} are not: correct its row")
                made = StoredItems.of(heads, storage)
                if len(fresh) == len(block):
                    yield made
                    continue
            assert old is not None
            copied = torch.from_numpy(np.flatnonzero(block >= 0))
            rows = torch.from_numpy(block[block >= 0])
            tensors = {}
            for name, theirs in old.tensors().items():
                tensors[name] = theirs.new_empty(len(block), *theirs.shape[1:])
                tensors[name][copied] = theirs[rows]
                if made is not None:
                    tensors[name][fresh] = made.tensors()[name]
            yield StoredItems.from_tensors(tensors)
