"""The order of training rows: the batches of an epoch, shuffled as a whole or window by window.

An epoch is a full shuffle, or goes window by window for a table larger than memory: the table is
cut into blocks of consecutive rows, and each epoch permutes the blocks. As many blocks as fill a
window are read into memory in that order, and their rows are permuted. Seed, epoch and the window's
number alone decide the order, so a run that is resumed reads only the window that it had reached.
Each row comes once an epoch, and batches run across the borders of windows.
"""

import contextlib
import hashlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fieldwise.data.table import EncodedTable, batch_starts, read_spans
from fieldwise.layout import Batch
from fieldwise.storage.machine import ahead, return_freed_memory

BLOCK_ROWS = 4_096
BLOCKS_PER_WINDOW = 1_024
"""At least: rows of a user or an hour stand together in many logs, and windows must be alike."""
ONE_WINDOW_BYTES = 1 << 30
"""A table of at most this size is one window by default."""
WINDOW_BYTES = 1 << 28
BATCHES_PER_MEMORY_RETURN = 256
"""Batches of different sizes fragment memory, which is returned to the system at this interval."""


class Rows(NamedTuple):
    """A training batch of B rows.

    Shape:
        y: targets, [B] of one label and [B, T] of several.
        weight: [B] row weights, whose mean over all rows is 1, or None.
        group: [B] the number of each row's group in the batch, from 0, for losses that rank; or
            None.
    """

    batch: Batch
    y: Tensor
    weight: Tensor | None
    group: Tensor | None = None


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


WHOLE_BATCH = BatchShard()
"""All rows, of the only process."""


def window_rows(table: EncodedTable, wanted: int | None = None) -> int:
    """Rows of a window: as many as wanted, or by default all rows of a table of at most 1 GiB, else 256 MiB of them."""
    rows = len(table)
    if wanted is None:
        is_one_window = table.nbytes <= ONE_WINDOW_BYTES
        wanted = rows if is_one_window else WINDOW_BYTES * rows // table.nbytes
    return max(1, min(wanted, rows))


def epoch_windows(rows: int, *, window: int, seed: int, epoch: int) -> list[list[slice]]:
    """The blocks of each window of an epoch, in the order in which they are read; a window has `window` rows at most.

    A block has 4,096 rows, or a 1,024th of a window if that is less; only the table's last block
    has fewer.

    >>> windows = epoch_windows(10, window=4, seed=0, epoch=1)
    >>> sorted(row for spans in windows for span in spans for row in range(10)[span])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    block_rows = max(1, min(BLOCK_ROWS, window // BLOCKS_PER_WINDOW))
    blocks = [slice(first, min(first + block_rows, rows)) for first in range(0, rows, block_rows)]
    order = shuffled(len(blocks), seed, epoch, -1).tolist()
    shuffled_blocks = [blocks[k] for k in order]
    blocks_per_window = max(1, window // block_rows)
    return [
        shuffled_blocks[first : first + blocks_per_window]
        for first in range(0, len(shuffled_blocks), blocks_per_window)
    ]


def shuffled(count: int, seed: int, epoch: int, window: int) -> Tensor:
    """The order of a window's rows, or, if it is -1, of the blocks, or of the groups [count] int64."""
    key = hashlib.sha256(f"rows {seed} {epoch} {window}".encode()).digest()
    draws = torch.Generator().manual_seed(int.from_bytes(key[:4], "little"))  # which uses 32 bits
    return torch.randperm(count, generator=draws)


def with_weights(
    batch: Batch,
    y: Tensor | None,
    order: Tensor,
    table: EncodedTable,
    mean_weight: np.float64 | None,
) -> Rows:
    """A batch with its targets and weights; `order` has its rows' numbers in the table.

    `mean_weight` is that of all rows, of which the table may be a window.
    """
    assert y is not None, "training rows have targets"
    if mean_weight is None:
        return Rows(batch, y, None)
    assert table.weight is not None, "windows have what their table has"
    weight = (table.weight[order.numpy()] / mean_weight).astype(np.float32)
    return Rows(batch, y, torch.from_numpy(weight))


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
    shard: BatchShard = WHOLE_BATCH

    @cached_property
    def steps(self) -> int:
        """Batches of an epoch."""
        return len(batch_starts(len(self.table), self.size))

    def done(self, step: int, epoch: int = 1) -> int:
        """Rows of the first batches of an epoch: as many in each."""
        return len(self.table) if step == self.steps else step * self.size

    def epoch(self, number: int, step: int, draws: torch.Generator) -> Generator[Rows]:
        """The batches of an epoch that are not done yet.

        `draws` is where a full shuffle comes from; several windows do not use it.
        """
        if self.window >= len(self.table):
            windows = self._whole_table(step, draws)
        else:
            windows = ahead(self._windows(number, step))
        # of a batch that goes on in the next window
        pieces: list[Rows] = []
        piece_rows = 0

        with contextlib.closing(windows):
            for table, order in windows:
                start = 0
                while start < len(order):
                    full_batches = 0
                    if not pieces:
                        # the epoch's last batch may have another size
                        full_batches = min((len(order) - start) // self.size, self.steps - 1 - step)

                    if full_batches > 0:
                        end = start + full_batches * self.size
                        yield from self._full_batches(table, order[start:end])
                        step += full_batches
                    else:
                        batch_rows = self.done(step + 1) - self.done(step)
                        end = min(start + batch_rows - piece_rows, len(order))
                        piece = order[start:end]
                        pieces.append(self._piece(table, piece, piece_rows, batch_rows))
                        piece_rows += len(piece)
                        if piece_rows == batch_rows:
                            yield self._joined(pieces)
                            pieces = []
                            piece_rows = 0
                            step += 1
                    start = end
                del table, order  # before the window after the next is read

    def _whole_table(
        self, step: int, draws: torch.Generator
    ) -> Generator[tuple[EncodedTable, Tensor]]:
        """The table as the only window, and the shuffled numbers of its rows that are not done yet."""
        order = torch.randperm(len(self.table), generator=draws)
        yield self.table, order[self.done(step) :]

    def _windows(self, epoch: int, step: int) -> Iterator[tuple[EncodedTable, Tensor]]:
        """Each window that is not done yet, in memory, and the shuffled numbers of its rows that are not done yet."""
        windows = epoch_windows(len(self.table), window=self.window, seed=self.seed, epoch=epoch)
        sizes = [sum(span.stop - span.start for span in spans) for spans in windows]
        starts = list(accumulate(sizes, initial=0))
        done = self.done(step)
        first_window = int(np.searchsorted(starts, done, side="right")) - 1

        for number in range(first_window, len(windows)):
            return_freed_memory()
            window = read_spans(self.table, windows[number])
            order = shuffled(len(window), self.seed, epoch, number)
            yield window, order[max(0, done - starts[number]) :]
            del window, order  # before the window after the next is read
        return_freed_memory()

    def _full_batches(self, table: EncodedTable, order: Tensor) -> Iterator[Rows]:
        """The shard's rows of consecutive batches of `size` rows each."""
        low, high = self.shard.of(self.size)
        shard_rows = high - low
        if shard_rows < self.size:
            order = order.view(-1, self.size)[:, low:high].reshape(-1)

        for k, (batch, y) in enumerate(table.batches(shard_rows, order=order)):
            is_due = k % BATCHES_PER_MEMORY_RETURN == BATCHES_PER_MEMORY_RETURN - 1
            if is_due and table is not self.table:
                return_freed_memory()
            first = k * shard_rows
            yield self._rows(table, batch, y, order[first : first + batch.size])

    def _piece(self, table: EncodedTable, order: Tensor, first: int, batch_rows: int) -> Rows:
        """The shard's rows among some consecutive rows of a batch, which begin with its row `first`."""
        low, high = self.shard.of(batch_rows)
        in_shard = order[max(0, low - first) : max(0, high - first)]
        return self._rows(table, *table.batch(in_shard), in_shard)

    def _rows(self, table: EncodedTable, batch: Batch, y: Tensor | None, order: Tensor) -> Rows:
        return with_weights(batch, y, order, table, self.table.mean_weight)

    def _joined(self, pieces: list[Rows]) -> Rows:
        """The batch of its pieces."""
        if len(pieces) == 1:
            return pieces[0]
        batch = Batch.joined([piece.batch for piece in pieces], self.table.bags_per_row)
        y = torch.cat([piece.y for piece in pieces])
        weights = [piece.weight for piece in pieces if piece.weight is not None]
        return Rows(batch, y, torch.cat(weights) if weights else None)
