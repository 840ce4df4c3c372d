"""An encoded table made of encoded pieces."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fieldwise.config import to_plain
from fieldwise.data.table import TABLE, EncodedTable
from fieldwise.layout import Layout
from fieldwise.storage.arrays import write_array, write_header, write_values
from fieldwise.storage.scratch import Scratch
from fieldwise.storage.writer import writing

__all__ = ["join_pieces", "save_pieces"]


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
    joined = _Bags(bags, rows, scratch)
    for at, table in pieces:
        ids[at], numbers[at] = table.ids, table.values
        joined.add(at, table)
        scratch.told(len(table))
    return EncodedTable(layout, ids, numbers, joined.ids.whole(), joined.offsets, y)


def save_pieces(
    folder: Path,
    layout: Layout,
    rows: int,
    pieces: Iterable[tuple[slice, EncodedTable]],
    y: np.ndarray | None,
    scratch: Scratch,
) -> EncodedTable:
    """The table of consecutive pieces, saved to a folder: what `EncodedTable.save` of `join_pieces` writes.

    Args:
        folder: of the table; see `EncodedTable.save`.
        layout: of the table.
        rows: N, in all pieces together.
        pieces: each with the rows that it holds.
        y: targets [N, T] float32, or None.
        scratch: where bags lie while the table is made.

    Errors:
        DataError: as `EncodedTable.save`.
    """
    bags = len(layout.positions(kind="bag"))
    values = len(layout.positions(kind="value"))
    joined = _Bags(bags, rows, scratch)
    with writing(TABLE, folder) as writer:
        with writer.open("values") as numbers, writer.open("ids") as ids:  # the manifest names first what closes first
            write_header(ids, np.dtype(np.int32), (rows, len(layout.fields) - bags))
            write_header(numbers, np.dtype(np.float32), (rows, values))
            for at, table in pieces:
                write_values(ids, table.ids)
                write_values(numbers, table.values)
                joined.add(at, table)
                scratch.told(len(table))
        for name, array in (("bag_ids", joined.ids.whole()), ("bag_offsets", joined.offsets), ("y", y)):
            if array is not None:
                with writer.open(name) as file:
                    write_array(file, array)
        writer.finish(rows=rows, layout=to_plain(layout))
    return EncodedTable.open(folder)


class _Bags:
    """The bags of consecutive pieces: their ids one after another, and the offset of each cell among them."""

    def __init__(self, bags: int, rows: int, scratch: Scratch) -> None:
        self.bags, self.ids = bags, scratch.growing(np.int32)
        self.offsets = scratch.empty(rows * bags + 1, np.int64)
        self.offsets[0] = 0

    def add(self, at: slice, table: EncodedTable) -> None:
        """The bags of a piece with the rows `at`."""
        self.offsets[at.start * self.bags + 1 : at.stop * self.bags + 1] = table.bag_offsets[1:] + self.ids.length
        self.ids.add(table.bag_ids)
