"""Encoded rows as arrays, in memory or mapped from disk, batches of them, and the order of training rows in an epoch.

On disk a table is a folder (`fieldwise.storage.artifact`): `table.json` (rows, layout) and one
`.npy` file per array: `ids` [N, S] int32, `values` [N, V] float32, `bag_ids` [M] int32,
`bag_offsets` [N * G + 1] int64, and `y` [N] float32, or [N, T] for several labels, if there are
targets, and `weight` [N] float32, if rows have weights. Row ids include their field's offset.

An epoch is a full shuffle, or goes window by window for a table larger than memory: the table is
cut into blocks of consecutive rows, and each epoch permutes the blocks. As many blocks as fill a
window are read into memory in that order, and their rows are permuted. Seed, epoch and the window's
number alone decide the order, so a run that is resumed reads only the window that it had reached.
Each row comes once an epoch, and batches run across the borders of windows.
"""

import contextlib
import hashlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fieldwise.config import parse, to_plain
from fieldwise.errors import DataError
from fieldwise.layout import Bags, Batch, Layout
from fieldwise.storage import scratch
from fieldwise.storage.arrays import (
    map_array,
    mapped_array,
    write_array,
    write_header,
    write_values,
)
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.machine import ahead, return_freed_memory

SLICE_ROWS = 1 << 21


def row_slices(rows: int) -> Iterator[slice]:
    """Slices of at most 2,097,152 rows."""
    return (slice(start, min(start + SLICE_ROWS, rows)) for start in range(0, rows, SLICE_ROWS))


def mean_target(y: np.ndarray, weight: np.ndarray | None = None, *, scale: float = 1.0) -> float:
    """The weighted mean of targets [N] over their scale, in float64."""
    sums = 0.0
    masses = 0.0
    for rows in row_slices(len(y)):
        values = np.asarray(y[rows], np.float64) / scale
        w = np.ones(len(values)) if weight is None else weight[rows].astype(np.float64)
        sums = sums + float((values * w).sum())
        masses = masses + float(w.sum())
    return sums / masses


def deviations(y: np.ndarray) -> tuple[float, ...]:
    """The standard deviation of each label's targets [N, T]."""
    if len(y) <= SLICE_ROWS:
        return tuple(np.asarray(y, np.float64).std(axis=0).tolist())
    means = [mean_target(column) for column in y.T]
    squares = sum(
        np.square(np.asarray(y[rows], np.float64) - means).sum(axis=0)
        for rows in row_slices(len(y))
    )
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
        y: float32 targets, [N] of one label and [N, T] of several, or None; [N, 1] becomes [N].
        weight: [N] float32, row weights for loss and metrics, or None.

    It is a map-style dataset of PyTorch: `table[i]` is one row and its targets, `table[2:5]` and
    `table[[4, 0]]` are batches of rows, which networks read. A table without targets gives rows
    alone.

    >>> layout = Layout.of_sizes([3, 4])
    >>> ids = np.array([[0, 3], [2, 6], [1, 5]], np.int32)
    >>> none = np.empty(0, np.int32), np.zeros(1, np.int64)
    >>> table = EncodedTable(layout, ids, np.empty((3, 0), np.float32), *none, y=np.float32([0, 1, 1]))
    >>> batch, y = table[[2, 0]]
    >>> batch.ids.tolist(), y.tolist()
    ([[1, 5], [0, 3]], [1.0, 0.0])
    """

    layout: Layout
    ids: np.ndarray
    values: np.ndarray
    bag_ids: np.ndarray
    bag_offsets: np.ndarray
    y: np.ndarray | None = None
    weight: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.y is not None and self.y.ndim == 2 and self.y.shape[1] == 1:
            object.__setattr__(self, "y", self.y.reshape(-1))

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def __getitem__(
        self, rows: int | slice | Sequence[int] | np.ndarray | Tensor
    ) -> "tuple[Batch, Tensor] | Batch":
        """Rows and their targets by number, a slice, an array of numbers or one of truth values.

        One row by its number has no dimension of rows (ids [S], values [V], targets of no dimension
        or [T]).
        """
        numbers = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
        if numbers.dtype == np.bool_:
            if numbers.shape != (len(self),):
                raise IndexError(
                    f"a mask must have a value for each of the table's {len(self)} rows"
                )
            numbers = np.flatnonzero(numbers)
        if not np.issubdtype(numbers.dtype, np.integer) and numbers.size:
            raise TypeError(f"rows must be whole numbers, a slice or a mask, found {rows!r}")
        is_out = (numbers < -len(self)) | (numbers >= len(self))
        if is_out.any():
            raise IndexError(
                f"a row must be one of the table's {len(self)}, found {numbers[is_out].flat[0]}"
            )
        numbers = numbers.astype(np.int64) % max(len(self), 1)
        batch, y = self.batch(torch.from_numpy(numbers.reshape(-1)))
        if numbers.ndim == 0:
            batch = batch._replace(ids=batch.ids[0], values=batch.values[0])
            y = None if y is None else y[0]
        return batch if y is None else (batch, y)

    def __getitems__(self, rows: list[int]) -> "list[tuple[Batch, Tensor] | Batch]":
        """Rows one by one, which a DataLoader stacks; a DataError for a table with bags, whose lengths differ."""
        if self.bags_per_row:
            raise DataError(
                "rows with bags have different lengths and cannot be stacked: let the DataLoader fetch whole batches, "
                "DataLoader(table, sampler=BatchSampler(RandomSampler(table), 256, drop_last=False), batch_size=None)"
            )
        return [self[row] for row in rows]

    @property
    def targets(self) -> np.ndarray:
        """The targets with a column per label [N, T]; the table must have some."""
        assert self.y is not None, "rows have targets"
        return self.y.reshape(len(self), -1)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = (getattr(self, name) for name in (*ARRAYS, *OPTIONAL))
        return sum(array.nbytes for array in arrays if array is not None)

    @cached_property
    def mean_weight(self) -> np.float64 | None:
        """What the rows' weights are divided by in a loss; None if all are equal."""
        weight = self.weight
        if weight is None or all(
            (weight[rows] == weight[0]).all() for rows in row_slices(len(weight))
        ):
            return None
        mean: np.float64 = weight.mean(dtype=np.float64)
        return mean

    def batches(
        self, batch_size: int, *, order: Tensor | None = None
    ) -> Iterator[tuple[Batch, Tensor | None]]:
        """Batches of rows and their targets: in the table's order, or in `order` (row numbers, int64).

        A last batch of one row is merged into the one before, since batch normalization cannot
        train on one row.
        """
        rows = len(self) if order is None else int(order.shape[0])
        starts = batch_starts(rows, batch_size)
        together = max(1, STRETCH // batch_size)
        for k in range(0, len(starts), together):
            some = [*starts[k : k + together + 1], rows][: together + 1]
            first = some[0]
            last = some[-1]
            # Rows of several batches are gathered at once, so that each batch is a view.
            picked = self._picked(slice(first, last) if order is None else order[first:last])
            for start, end in pairwise(some):
                ids, values, y = (
                    None if x is None else x[start - first : end - first] for x in picked
                )
                assert ids is not None
                assert values is not None
                bags = self._bags(slice(start, end) if order is None else order[start:end])
                yield Batch(ids, values, *bags), y

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
        arrays = (
            torch.from_numpy(array)
            for array in (self.ids, self.values, self.y)
            if array is not None
        )
        # index_select copies whole rows; general indexing copies single numbers.
        ids, values, *y = (
            a[rows] if isinstance(rows, slice) else a.index_select(0, rows) for a in arrays
        )
        return ids, values, y[0] if y else None

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
        return self.bags.take(position + self.bags_per_row * torch.arange(len(self)))

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
            DataError: the folder holds something else, the disk is full or the place is not
                writable; an older table is then unchanged.
        """
        save_chunks(
            folder,
            self.layout,
            len(self),
            [(slice(0, len(self)), self)],
            self.y,
            weight=self.weight,
        )

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


Chunks = Iterable[tuple[slice, EncodedTable]]
"""Consecutive chunks of a table: which rows, and these encoded."""


def save_chunks(
    folder: Path,
    layout: Layout,
    rows: int,
    chunks: Chunks,
    y: np.ndarray | None,
    weight: np.ndarray | None = None,
) -> EncodedTable:
    """The table of consecutive chunks, N rows in all with their targets, saved to a folder and mapped.

    Bags lie in scratch files or memory while the table is made; errors as of `EncodedTable.save`.
    """
    groups, values = (len(layout.positions(kind=kind)) for kind in ("bag", "value"))
    offsets = scratch.empty(rows * groups + 1, np.int64)
    offsets[0] = 0
    with writing(TABLE, folder) as writer:
        # the manifest names first what closes first
        with writer.open("values") as numbers, writer.open("ids") as ids:
            write_header(ids, np.dtype(np.int32), (rows, len(layout.fields) - groups))
            write_header(numbers, np.dtype(np.float32), (rows, values))

            def bags() -> Iterator[np.ndarray]:
                for at, table in chunks:
                    write_values(ids, table.ids)
                    write_values(numbers, table.values)
                    start = offsets[at.start * groups]
                    offsets[at.start * groups + 1 : at.stop * groups + 1] = (
                        table.bag_offsets[1:] + start
                    )
                    yield table.bag_ids

            bag_ids = scratch.concatenate(bags(), np.int32)
        for name, array in (
            ("bag_ids", bag_ids),
            ("bag_offsets", offsets),
            ("y", y),
            ("weight", weight),
        ):
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


BLOCK_ROWS = 4_096
# in a window, at least: rows of a user or an hour stand together in many logs; windows must be
# alike
BLOCKS = 1_024
WHOLE_BYTES = 1 << 30
WINDOW_BYTES = 1 << 28
BATCHES_KEPT = 256  # of a window, after which freed memory goes back to the system


class Rows(NamedTuple):
    """A training batch of B rows.

    Shape:
        y: targets, [B] of one label and [B, T] of several.
        weight: [B] row weights, whose mean over all rows is 1, or None.
    """

    batch: Batch
    y: Tensor
    weight: Tensor | None


class BatchShard(NamedTuple):
    """The consecutive rows of every batch that process `rank` of `size` takes; by default all.

    >>> [BatchShard(rank=rank, size=3).of(7) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """

    rank: int = 0
    size: int = 1

    def of(self, rows: int) -> tuple[int, int]:
        """The first of its rows in a batch of `rows`, and one more than the last."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size


def window_rows(table: EncodedTable, wanted: int | None = None) -> int:
    """Rows of a window: as many as wanted, or by default all rows of a table of at most 1 GiB, else 256 MiB of them."""
    rows = len(table)
    if wanted is None:
        wanted = rows if table.nbytes <= WHOLE_BYTES else WINDOW_BYTES * rows // table.nbytes
    return max(1, min(wanted, rows))


def epoch_windows(rows: int, *, window: int, seed: int, epoch: int) -> list[list[slice]]:
    """The blocks of each window of an epoch, in the order in which they are read; a window has `window` rows at most.

    A block has 4,096 rows, or a 1,024th of a window if that is less; only the table's last block
    has fewer.

    >>> windows = epoch_windows(10, window=4, seed=0, epoch=1)
    >>> sorted(row for spans in windows for span in spans for row in range(10)[span])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    block = max(1, min(BLOCK_ROWS, window // BLOCKS))
    order = _shuffled(-(-rows // block), seed, epoch, -1).tolist()
    spans = [slice(k * block, min((k + 1) * block, rows)) for k in order]
    together = max(1, window // block)
    return [spans[at : at + together] for at in range(0, len(spans), together)]


def _shuffled(count: int, seed: int, epoch: int, window: int) -> Tensor:
    """The order of a window's rows, or, if it is -1, of the blocks [count] int64."""
    key = hashlib.sha256(f"rows {seed} {epoch} {window}".encode()).digest()
    draws = torch.Generator().manual_seed(int.from_bytes(key[:4], "little"))  # which uses 32 bits
    return torch.randperm(count, generator=draws)


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffledRows:
    """The training batches of a table, in a new order each epoch.

    While a window is trained on, a thread reads the next one: at most two are in memory.

    Args:
        table: rows with targets, and weights if any.
        size: rows of a batch; a last batch of one row is merged into the one before.
        window: rows of a window (`window_rows`); if all rows are in one, the table itself is it.
        seed: the run's seed.
        shard: which rows of every batch are wanted, if several processes share them.
    """

    table: EncodedTable
    size: int
    window: int
    seed: int
    shard: BatchShard = field(default_factory=BatchShard)

    @cached_property
    def steps(self) -> int:
        """Batches of an epoch."""
        return len(batch_starts(len(self.table), self.size))

    def done(self, step: int) -> int:
        """Rows of the first batches of an epoch."""
        return len(self.table) if step == self.steps else step * self.size

    def epoch(self, number: int, step: int, draws: torch.Generator) -> Generator[Rows]:
        """The batches of an epoch that are not done yet.

        `draws` is where a full shuffle comes from; several windows do not use it.
        """
        held: list[Rows] = []
        taken = 0  # rows of the batch that is held
        if self.window >= len(self.table):
            order = torch.randperm(len(self.table), generator=draws)[self.done(step) :]
            windows = (one for one in [(self.table, order)])
        else:
            windows = ahead(self._windows(number, step))
        with contextlib.closing(windows):
            for table, order in windows:
                at = 0
                while at < len(order):
                    if (
                        not held
                        and (several := min((len(order) - at) // self.size, self.steps - 1 - step))
                        > 0
                    ):
                        whole = order[at : at + several * self.size]
                        at = at + len(whole)
                        step = step + several
                        (low, high) = self.shard.of(self.size)
                        if high - low < self.size:
                            whole = whole.view(-1, self.size)[:, low:high].reshape(-1)
                        for k, (batch, y) in enumerate(table.batches(high - low, order=whole)):
                            if k % BATCHES_KEPT == BATCHES_KEPT - 1 and table is not self.table:
                                return_freed_memory()  # gaps that batches of many sizes leave
                            first = k * (high - low)
                            yield self._rows(table, batch, y, whole[first : first + batch.size])
                        continue
                    wanted = self.done(step + 1) - self.done(step)
                    take = min(wanted - taken, len(order) - at)
                    low, high = (max(0, row - taken) for row in self.shard.of(wanted))
                    some = order[at : at + take][low:high]
                    held.append(self._rows(table, *table.batch(some), some))
                    at = at + take
                    taken = taken + take
                    if taken == wanted:
                        yield self._joined(held)
                        held = []
                        taken = 0
                        step = step + 1
                del table, order  # before the window after the next is read

    def _windows(self, epoch: int, step: int) -> Iterator[tuple[EncodedTable, Tensor]]:
        windows = epoch_windows(len(self.table), window=self.window, seed=self.seed, epoch=epoch)
        starts = np.cumsum(
            [0, *(sum(span.stop - span.start for span in spans) for spans in windows)]
        )
        done = self.done(step)
        for number in range(int(np.searchsorted(starts, done, side="right")) - 1, len(windows)):
            return_freed_memory()
            window = read_spans(self.table, windows[number])
            order = _shuffled(len(window), self.seed, epoch, number)
            yield window, order[max(0, done - int(starts[number])) :]
            del window, order  # before the window after the next is read
        return_freed_memory()

    def _rows(self, table: EncodedTable, batch: Batch, y: Tensor | None, order: Tensor) -> Rows:
        assert y is not None, "training rows have targets"
        if self.table.mean_weight is None:
            return Rows(batch, y, None)
        assert table.weight is not None, "windows have what their table has"
        weight = (table.weight[order.numpy()] / self.table.mean_weight).astype(np.float32)
        return Rows(batch, y, torch.from_numpy(weight))

    def _joined(self, parts: list[Rows]) -> Rows:
        if len(parts) == 1:
            return parts[0]
        ids, values = (torch.cat([rows.batch[k] for rows in parts]) for k in range(2))
        batch = Batch(ids, values)
        groups = self.table.bags_per_row
        if groups:
            batch = Batch.of_bags(
                ids, values, Bags.joined(rows.batch.bags(groups) for rows in parts)
            )
        weights = [rows.weight for rows in parts if rows.weight is not None]
        return Rows(
            batch, torch.cat([rows.y for rows in parts]), torch.cat(weights) if weights else None
        )


def read_spans(table: EncodedTable, spans: list[slice]) -> EncodedTable:
    """Some rows of a table, copied into memory."""
    groups = table.bags_per_row
    offsets = [table.bag_offsets[span.start * groups : span.stop * groups + 1] for span in spans]
    lengths = [np.diff(part) for part in offsets] if groups else []
    return EncodedTable(
        layout=table.layout,
        ids=_read(table.ids, spans),
        values=_read(table.values, spans),
        bag_ids=_read(
            table.bag_ids,
            [slice(int(part[0]), int(part[-1])) for part in offsets] if groups else [],
        ),
        bag_offsets=np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(),
        y=None if table.y is None else _read(table.y, spans),
        weight=None if table.weight is None else _read(table.weight, spans),
    )


def _read(array: np.ndarray, spans: list[slice]) -> np.ndarray:
    read = mapped_array(
        (sum(span.stop - span.start for span in spans), *array.shape[1:]), array.dtype
    )
    return np.concatenate([array[:0], *(array[span] for span in spans)], out=read)
