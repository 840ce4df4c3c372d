"""The order of training rows in an epoch: a full shuffle, or window by window for a table larger than memory.

With several windows the table is cut into blocks of consecutive rows, and each epoch permutes the blocks. As many
blocks as fill a window are read into memory in that order, and their rows are permuted. Seed, epoch and the window's
number alone decide the order, so a run that is resumed reads only the window that it had reached. Each row comes once
an epoch, and batches run across the borders of windows.
"""

import contextlib
import hashlib
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.environment import BatchShard
from fieldwise.layout import Bags, Batch
from fieldwise.storage.arrays import mapped_array
from fieldwise.storage.memory import return_freed_memory

BLOCK_ROWS = 4_096
BLOCKS = (
    1_024  # in a window, at least: rows of a user or an hour stand together in many logs, and windows must be alike
)
WHOLE_BYTES = 1 << 30
WINDOW_BYTES = 1 << 28


class Rows(NamedTuple):
    """A training batch of B rows.

    Shape:
        y: [B, T] targets.
        weight: [B] row weights, whose mean over all rows is 1, or None.
    """

    batch: Batch
    y: Tensor
    weight: Tensor | None


class Span(NamedTuple):
    """Consecutive rows: the first one's number, and one more than the last one's."""

    first: int
    end: int


def window_rows(table: EncodedTable, wanted: int | None = None) -> int:
    """Rows of a window: as many as wanted, or by default all rows of a table of at most 1 GiB, else 256 MiB of them."""
    rows = len(table)
    if wanted is None:
        wanted = rows if table.nbytes <= WHOLE_BYTES else WINDOW_BYTES * rows // table.nbytes
    return max(1, min(wanted, rows))


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of N rows in one epoch, in windows.

    Args:
        rows: N.
        window: rows of a window, at most; rounded down to whole blocks.
        seed: the run's seed.
        epoch: its number.

    >>> order = Order(rows=10, window=4, seed=0, epoch=1)
    >>> sorted(row for k in range(order.windows) for span in order.spans(k) for row in range(*span))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    rows: int
    window: int
    seed: int
    epoch: int

    @property
    def block(self) -> int:
        """Rows of a block: 4,096, or a 1,024th of a window if that is less; only the table's last block has fewer."""
        return max(1, min(BLOCK_ROWS, self.window // BLOCKS))

    @property
    def windows(self) -> int:
        """Number of windows."""
        return -(-len(self._blocks) // self._together)

    @property
    def starts(self) -> np.ndarray:
        """The place of each window's first row in the order, and N at the end [windows + 1]."""
        starts = np.arange(self.windows + 1) * (self._together * self.block)
        last = int(self._blocks.argmax()) // self._together
        starts[last + 1 :] -= len(self._blocks) * self.block - self.rows  # the table's last block may be shorter
        starts[-1] = self.rows
        return starts

    def spans(self, number: int) -> list[Span]:
        """The blocks of a window in the order in which they are read."""
        wanted = self._blocks[number * self._together : (number + 1) * self._together]
        return [Span(b * self.block, min((b + 1) * self.block, self.rows)) for b in wanted.tolist()]

    def within(self, number: int, rows: int) -> Tensor:
        """The order of a window's rows [rows] int64."""
        return torch.randperm(rows, generator=self._draws(number))

    @property
    def _together(self) -> int:
        return max(1, self.window // self.block)

    @cached_property
    def _blocks(self) -> Tensor:
        return torch.randperm(-(-self.rows // self.block), generator=self._draws(-1))

    def _draws(self, window: int) -> torch.Generator:
        """Draws for the rows of a window, or for the blocks if it is -1."""
        key = hashlib.sha256(f"rows {self.seed} {self.epoch} {window}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(key[:4], "little"))  # which uses 32 bits


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
        return self.table.num_batches(self.size)

    def done(self, step: int) -> int:
        """Rows of the first batches of an epoch."""
        return len(self.table) if step == self.steps else step * self.size

    def epoch(self, number: int, step: int, draws: torch.Generator) -> Generator[Rows]:
        """The batches of an epoch that are not done yet.

        `draws` is where a full shuffle comes from; several windows do not use it.
        """
        held: list[Rows] = []
        taken = 0  # rows of the batch that is held
        whole = self.window >= len(self.table)
        with contextlib.closing(self._whole(step, draws) if whole else self._windows(number, step)) as windows:
            for table, order in windows:
                at = 0
                while at < len(order):
                    if not held and (several := min((len(order) - at) // self.size, self.steps - 1 - step)) > 0:
                        yield from self._batches(table, order[at : at + several * self.size])
                        at, step = at + several * self.size, step + several
                        continue
                    wanted = self.done(step + 1) - self.done(step)
                    take = min(wanted - taken, len(order) - at)
                    low, high = (max(0, row - taken) for row in self.shard.of(wanted))
                    held.append(self._picked(table, order[at : at + take][low:high]))
                    at, taken = at + take, taken + take
                    if taken == wanted:
                        yield self._joined(held)
                        held, taken, step = [], 0, step + 1
                del table, order  # before the window after the next is read

    def _whole(self, step: int, draws: torch.Generator) -> Generator[tuple[EncodedTable, Tensor]]:
        yield self.table, torch.randperm(len(self.table), generator=draws)[self.done(step) :]

    def _windows(self, epoch: int, step: int) -> Generator[tuple[EncodedTable, Tensor]]:
        order = Order(rows=len(self.table), window=self.window, seed=self.seed, epoch=epoch)
        starts, done = order.starts, self.done(step)
        first = int(np.searchsorted(starts, done, side="right")) - 1

        def read(number: int) -> tuple[EncodedTable, Tensor]:
            return_freed_memory()  # gaps that the last window's batches, of many sizes, have left
            window = read_spans(self.table, order.spans(number))
            return window, order.within(number, len(window))

        with ThreadPoolExecutor(1, thread_name_prefix="fieldwise-window") as thread:
            ahead: Future[tuple[EncodedTable, Tensor]] | None = None
            for number in range(first, order.windows):
                window, inner = read(number) if ahead is None else ahead.result()
                ahead = thread.submit(read, number + 1) if number + 1 < order.windows else None
                yield window, inner[max(0, done - int(starts[number])) :]
                del window, inner  # before the one after the next is read
        return_freed_memory()

    def _batches(self, table: EncodedTable, order: Tensor) -> Iterator[Rows]:
        """The shard's rows of whole batches."""
        at, (low, high) = 0, self.shard.of(self.size)
        if high - low < self.size:
            order = order.view(-1, self.size)[:, low:high].reshape(-1)
        for batch, y in table.batches(high - low, order=order):
            assert y is not None, "training rows have targets"
            yield Rows(batch, y, self._weights(table, order[at : at + batch.size]))
            at += batch.size

    def _picked(self, table: EncodedTable, order: Tensor) -> Rows:
        batch, y = table.batch(order)
        assert y is not None, "training rows have targets"
        return Rows(batch, y, self._weights(table, order))

    def _weights(self, table: EncodedTable, rows: Tensor) -> Tensor | None:
        if self.table.mean_weight is None:
            return None
        assert table.weight is not None, "windows have what their table has"
        return torch.from_numpy((table.weight[rows.numpy()] / self.table.mean_weight).astype(np.float32))

    def _joined(self, parts: list[Rows]) -> Rows:
        if len(parts) == 1:
            return parts[0]
        ids, values = (torch.cat([rows.batch[k] for rows in parts]) for k in range(2))
        batch, groups = Batch(ids, values), self.table.bags_per_row
        if groups:
            batch = Batch.of_bags(ids, values, Bags.joined(rows.batch.bags(groups) for rows in parts))
        weights = [rows.weight for rows in parts if rows.weight is not None]
        return Rows(batch, torch.cat([rows.y for rows in parts]), torch.cat(weights) if weights else None)


def read_spans(table: EncodedTable, spans: list[Span]) -> EncodedTable:
    """Some rows of a table, copied into memory."""
    groups = table.bags_per_row
    offsets = [table.bag_offsets[span.first * groups : span.end * groups + 1] for span in spans]
    lengths = [np.diff(part) for part in offsets] if groups else []
    return EncodedTable(
        layout=table.layout,
        ids=_read(table.ids, spans),
        values=_read(table.values, spans),
        bag_ids=_read(table.bag_ids, [Span(int(part[0]), int(part[-1])) for part in offsets] if groups else []),
        bag_offsets=np.concatenate([np.zeros(1, np.int64), *lengths]).cumsum(),
        y=None if table.y is None else _read(table.y, spans),
        weight=None if table.weight is None else _read(table.weight, spans),
    )


def _read(array: np.ndarray, spans: Iterable[Span]) -> np.ndarray:
    spans = list(spans)
    read = mapped_array((sum(span.end - span.first for span in spans), *array.shape[1:]), array.dtype)
    at = 0
    for span in spans:
        rows = span.end - span.first
        read[at : at + rows] = array[span.first : span.end]
        at += rows
    return read
