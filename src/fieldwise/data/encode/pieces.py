"""An encoded table made of encoded pieces."""

from collections.abc import Iterable

import numpy as np

from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.storage.scratch import Scratch

__all__ = ["join_pieces"]


def join_pieces(
    layout: Layout,
    rows: int,
    pieces: Iterable[tuple[slice, EncodedTable]],
    y: np.ndarray | None,
    scratch: Scratch,
) -> EncodedTable:
    """The table of consecutive pieces.

    Args:
        layout: of the table.
        rows: N, in all pieces together.
        pieces: each with the rows that it holds.
        y: targets [N, T] float32, or None.
        scratch: where the table's arrays lie.
    """
    bags = len(layout.positions(kind="bag"))
    values = len(layout.positions(kind="value"))
    ids = scratch.empty((rows, len(layout.fields) - bags), np.int32)
    numbers = scratch.empty((rows, values), np.float32)
    offsets = scratch.empty(rows * bags + 1, np.int64)
    offsets[0] = 0
    bag_ids = scratch.growing(np.int32)
    for at, table in pieces:
        ids[at], numbers[at] = table.ids, table.values
        offsets[at.start * bags + 1 : at.stop * bags + 1] = table.bag_offsets[1:] + bag_ids.length
        bag_ids.add(table.bag_ids)
        scratch.told(len(table))
    return EncodedTable(layout, ids, numbers, bag_ids.whole(), offsets, y)
