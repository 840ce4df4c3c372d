"""Encoded rows as arrays, in memory or mapped from disk, and batches of them.

On disk a table is a folder (`fieldwise.storage.artifact`): `table.json` (rows, layout) and one `.npy` file per array:
`ids` [N, S] int32, `values` [N, V] float32, `bag_ids` [M] int32, `bag_offsets` [N * G + 1] int64, and `y` [N] float32,
or [N, T] for several labels, if there are targets, and `weight` [N] float32, if rows have weights. Row ids include
their field's offset.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fieldwise.config import parse, to_plain
from fieldwise.errors import DataError
from fieldwise.layout import Bags, Batch, Layout
from fieldwise.storage.arrays import map_array, write_array, write_header, write_values
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.scratch import IN_MEMORY, Scratch

SLICE_ROWS = 1 << 21


def row_slices(rows: int) -> Iterator[slice]:
    """Slices of at most 2,097,152 rows."""
    return (slice(start, min(start + SLICE_ROWS, rows)) for start in range(0, rows, SLICE_ROWS))


def mean_target(y: np.ndarray, weight: np.ndarray | None = None, *, scale: float = 1.0) -> float:
    """The weighted mean of targets [N] over their scale, in float64."""
    if len(y) <= SLICE_ROWS:
        return float(np.average(np.asarray(y, np.float64) / scale, weights=weight))
    sums, masses = 0.0, 0.0
    for rows in row_slices(len(y)):
        values = np.asarray(y[rows], np.float64) / scale
        w = np.ones(len(values)) if weight is None else weight[rows].astype(np.float64)
        sums, masses = sums + float((values * w).sum()), masses + float(w.sum())
    return sums / masses


def deviations(y: np.ndarray) -> tuple[float, ...]:
    """The standard deviation of each label's targets [N, T]."""
    if len(y) <= SLICE_ROWS:
        return tuple(np.asarray(y, np.float64).std(axis=0).tolist())
    means = [mean_target(column) for column in y.T]
    squares = sum(np.square(np.asarray(y[rows], np.float64) - means).sum(axis=0) for rows in row_slices(len(y)))
    return tuple(np.sqrt(np.asarray(squares) / len(y)).tolist())


STRETCH = 32_768  # rows gathered per chunk
ARRAYS = ("ids", "values", "bag_ids", "bag_offsets")
OPTIONAL = ("y", "weight")
TABLE = Kind(
    name="encoded table",
    manifest="table.json",
    format=2,
    oldest=2,
    parts=dict.fromkeys((*ARRAYS, *OPTIONAL), "npy"),
    damage=DataError,
    remedy="encode the data again",
    origin="give a folder that an encoded table was saved to",
    fast=True,
)


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """N encoded rows.

    Args:
        layout: the fields and their positions in the shared embedding table.
        ids: [N, S] int32, single-valued fields.
        values: [N, V] float32, numeric fields (0 if missing).
        bag_ids: [M] int32, all bags, row by row and within a row field by field.
        bag_offsets: [N * G + 1] int64, the start of each bag.
        y: [N, T] float32 targets, a column per label, or None; [N] becomes [N, 1].
        weight: [N] float32, row weights for loss and metrics, or None.
    """

    layout: Layout
    ids: np.ndarray
    values: np.ndarray
    bag_ids: np.ndarray
    bag_offsets: np.ndarray
    y: np.ndarray | None = None
    weight: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.y is not None and self.y.ndim == 1:
            object.__setattr__(self, "y", self.y.reshape(-1, 1))

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [getattr(self, name) for name in ARRAYS]
        more = [a for a in (self.y, self.weight) if a is not None]
        return int(sum(a.nbytes for a in arrays + more))

    @cached_property
    def mean_weight(self) -> np.float64 | None:
        """What the rows' weights are divided by in a loss; None if all are equal."""
        weight = self.weight
        if weight is None or all((weight[rows] == weight[0]).all() for rows in row_slices(len(weight))):
            return None
        mean: np.float64 = weight.mean(dtype=np.float64)
        return mean

    def batches(self, batch_size: int, *, order: Tensor | None = None) -> Iterator[tuple[Batch, Tensor | None]]:
        """Batches of rows and their targets: in the table's order, or in `order` (row numbers, int64).

        A last batch of one row is merged into the one before, since batch normalization cannot train on one row.
        """
        rows = len(self) if order is None else int(order.shape[0])
        starts = batch_starts(rows, batch_size)
        together = max(1, STRETCH // batch_size)
        for k in range(0, len(starts), together):
            some = [*starts[k : k + together + 1], rows][: together + 1]
            first, last = some[0], some[-1]
            # Rows of several batches are gathered at once, so that each batch is a view.
            picked = self._picked(slice(first, last) if order is None else order[first:last])
            for start, end in pairwise(some):
                ids, values, y = (None if x is None else x[start - first : end - first] for x in picked)
                assert ids is not None
                assert values is not None
                bags = self._bags(slice(start, end) if order is None else order[start:end])
                yield Batch(ids, values, *bags), y

    def num_batches(self, batch_size: int) -> int:
        """The number of batches over all rows."""
        return len(batch_starts(len(self), batch_size))

    def batch(self, rows: slice | Tensor) -> tuple[Batch, Tensor | None]:
        """One batch, gathered by row numbers (a slice is only a view)."""
        ids, values, y = self._picked(rows)
        return Batch(ids, values, *self._bags(rows)), y

    def take(self, rows: np.ndarray) -> "EncodedTable":
        """The table of some rows, by number, copied into memory."""
        bags = self.bags.rows(torch.from_numpy(rows), self.bags_per_row)
        return replace(
            self,
            ids=self.ids[rows],
            values=self.values[rows],
            bag_ids=bags.ids.numpy(),
            bag_offsets=bags.offsets.numpy(),
            y=None if self.y is None else self.y[rows],
            weight=None if self.weight is None else self.weight[rows],
        )

    def _picked(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        ids, values, y = self._tensors
        if isinstance(rows, slice):
            return ids[rows], values[rows], None if y is None else y[rows]
        # index_select copies whole rows; general indexing copies single numbers.
        return ids.index_select(0, rows), values.index_select(0, rows), None if y is None else y.index_select(0, rows)

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        y = None if self.y is None else torch.from_numpy(self.y)
        return torch.from_numpy(self.ids), torch.from_numpy(self.values), y

    @property
    def bags_per_row(self) -> int:
        """G."""
        return len(self._means)

    @cached_property
    def bags(self) -> Bags:
        """The bags of all rows."""
        return Bags(torch.from_numpy(self.bag_ids), torch.from_numpy(self.bag_offsets))

    def bag(self, position: int) -> Bags:
        """One bag per row, of the field at this position among the layout's bags."""
        return self.bags.take(torch.arange(position, len(self) * self.bags_per_row, self.bags_per_row))

    @cached_property
    def _means(self) -> Tensor:
        """Which bags are pooled by mean [G]."""
        return torch.tensor([f.pooling == "mean" for f in self.layout.fields if f.kind == "bag"])

    def _bags(self, rows: slice | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.bags_per_row == 0:
            return _NO_IDS, _NO_SEGMENTS, _NO_WEIGHTS
        bags = self.bags.rows(rows, self.bags_per_row)
        return bags.ids, bags.segments, bags.shares(self._means)

    def save(self, folder: Path) -> None:
        """Save the table to a folder, replacing an older one in one step.

        Errors:
            DataError: the folder holds something else, the disk is full or the place is not writable; an older table
                is then unchanged.
        """
        save_chunks(folder, self.layout, len(self), [(slice(0, len(self)), self)], self.y, weight=self.weight)

    @classmethod
    def open(cls, folder: Path) -> "EncodedTable":
        """Map a saved table into memory; data are read when they are used.

        Errors:
            DataError: no table there, a damaged one, or one of another format.
        """
        return TABLE.load(folder, cls._opened)

    @classmethod
    def _opened(cls, saved: Artifact) -> "EncodedTable":
        more = [name for name in OPTIONAL if name in saved.parts]
        arrays = {name: map_array(saved.path(name, verify=False)) for name in (*ARRAYS, *more)}
        layout = parse(Layout, saved.about["layout"], "layout", DataError)
        table = cls(layout, **arrays)
        bags = len(layout.positions(kind="bag")) * len(table)
        if (
            saved.about.get("rows") != len(table)
            or table.values.shape[0] != len(table)
            or table.bag_offsets.shape[0] != bags + 1
            or any(arrays[name].shape[0] != len(table) for name in more)
        ):
            raise TABLE.damaged(saved.folder, "its arrays have different numbers of rows")
        return table


def save_chunks(
    folder: Path,
    layout: Layout,
    rows: int,
    chunks: Iterable[tuple[slice, EncodedTable]],
    y: np.ndarray | None,
    scratch: Scratch = IN_MEMORY,
    weight: np.ndarray | None = None,
) -> EncodedTable:
    """The table of consecutive chunks, N rows in all with targets [N, T], saved to a folder and mapped.

    Bags lie in `scratch` while the table is made; errors as of `EncodedTable.save`.
    """
    groups, values = (len(layout.positions(kind=kind)) for kind in ("bag", "value"))
    bag_ids, offsets = scratch.growing(np.int32), scratch.empty(rows * groups + 1, np.int64)
    offsets[0] = 0
    with writing(TABLE, folder) as writer:
        with writer.open("values") as numbers, writer.open("ids") as ids:  # the manifest names first what closes first
            write_header(ids, np.dtype(np.int32), (rows, len(layout.fields) - groups))
            write_header(numbers, np.dtype(np.float32), (rows, values))
            for at, table in chunks:
                write_values(ids, table.ids)
                write_values(numbers, table.values)
                offsets[at.start * groups + 1 : at.stop * groups + 1] = table.bag_offsets[1:] + bag_ids.length
                bag_ids.add(table.bag_ids)
                scratch.told(len(table))
        for name, array in (("bag_ids", bag_ids.whole()), ("bag_offsets", offsets), ("y", y), ("weight", weight)):
            if array is not None:
                with writer.open(name) as file:
                    write_array(file, array)
        writer.finish(rows=rows, layout=to_plain(layout))
    return EncodedTable.open(folder)


_NO_IDS = torch.empty(0, dtype=torch.int32)
_NO_SEGMENTS = torch.empty(0, dtype=torch.int64)
_NO_WEIGHTS = torch.empty(0, dtype=torch.float32)


def batch_starts(rows: int, batch_size: int) -> range:
    """The first row of each batch; a last batch of one row is merged into the one before.

    >>> list(batch_starts(7, 3))
    [0, 3]
    """
    starts = range(0, rows, batch_size)
    return starts[:-1] if batch_size > 1 and len(starts) > 1 and rows - starts[-1] == 1 else starts
