"""The training batches of losses that rank: each holds whole groups, in a new order of groups each epoch.

Seed and epoch alone decide the order, so that a run that is resumed goes on with the same batches.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from fieldwise.data.shuffled_rows import WHOLE_BATCH, BatchShard, Rows, shuffled, with_weights
from fieldwise.data.table import EncodedTable


class _Batches(NamedTuple):
    """The batches of an epoch.

    Args:
        groups: numbers of the groups, in their order [G].
        first_group: the first group of each batch, and the end [steps + 1].
        first_row: the first row of each batch, and the end [steps + 1].
    """

    groups: np.ndarray
    first_group: np.ndarray
    first_row: np.ndarray


@dataclass(kw_only=True, eq=False)
class GroupedRows:
    """The training batches of a table, each of whole groups, in a new order each epoch.

    Batches have about `size` rows, half to one and a half as many. A group of more than half a
    batch counts as half a batch where groups are packed, so that a batch with it may be larger.

    Args:
        table: rows with targets, and weights if any.
        group: the group of each row, [N].
        size: wanted rows of a batch.
        seed: the run's seed.
        shard: which of several processes this one is: each takes whole groups of every batch.

    >>> from fieldwise.layout import Layout
    >>> ids = np.arange(8, dtype=np.int32).reshape(8, 1)
    >>> none = np.empty(0, np.int32), np.zeros(1, np.int64)
    >>> table = EncodedTable(Layout.of_sizes([8]), ids, np.empty((8, 0), np.float32), *none, y=np.ones(8, np.float32))
    >>> rows = GroupedRows(table=table, group=np.array([7, 9, 7, 9, 3, 3, 5, 5]), size=4, seed=0)
    >>> [(batch.batch.ids[:, 0].tolist(), batch.group.tolist()) for batch in rows.epoch(1, 0)]
    [([0, 2, 4, 5], [0, 0, 1, 1]), ([6, 7, 1, 3], [0, 0, 1, 1])]
    """

    table: EncodedTable
    group: np.ndarray
    size: int
    seed: int
    shard: BatchShard = WHOLE_BATCH
    _last: tuple[int, _Batches] | None = field(default=None, init=False)

    @cached_property
    def _rows(self) -> np.ndarray:
        """The numbers of all rows, group by group [N]."""
        return np.argsort(self.group, kind="stable")

    @cached_property
    def _lengths(self) -> np.ndarray:
        """The rows of each group [G]."""
        return np.unique(self.group, return_counts=True)[1]

    @cached_property
    def _counted(self) -> np.ndarray:
        """The rows that each group counts as where batches are packed [G]."""
        return self._lengths.clip(max=max(1, self.size // 2))

    @cached_property
    def steps(self) -> int:
        """Batches of an epoch."""
        return max(1, int(self._counted.sum()) // self.size)

    def done(self, step: int, epoch: int) -> int:
        """Rows of the first batches of an epoch."""
        return int(self._batches(epoch).first_row[step])

    def epoch(
        self, number: int, step: int, draws: torch.Generator | None = None
    ) -> Generator[Rows]:
        """The batches of an epoch that are not done yet; `draws` is not used."""
        batches = self._batches(number)
        starts = self._lengths.cumsum() - self._lengths
        for k in range(step, self.steps):
            groups = batches.groups[batches.first_group[k] : batches.first_group[k + 1]]
            groups = groups[self._of_shard(self._lengths[groups])]
            lengths = self._lengths[groups]
            local_group = np.repeat(np.arange(len(groups)), lengths)
            number_in_group = (
                np.arange(len(local_group)) - (lengths.cumsum() - lengths)[local_group]
            )
            rows = self._rows[starts[groups][local_group] + number_in_group]
            order = torch.from_numpy(rows)
            batch, y = self.table.batch(order)
            batch_rows = with_weights(batch, y, order, self.table, self.table.mean_weight)
            yield batch_rows._replace(group=torch.from_numpy(local_group))

    def _batches(self, epoch: int) -> _Batches:
        """The batches of an epoch, which are kept until those of another are wanted."""
        if self._last is None or self._last[0] != epoch:
            groups = shuffled(len(self._lengths), self.seed, epoch, -1).numpy()
            counted = self._counted[groups]
            starts = counted.cumsum() - counted
            batch_of_group = starts * self.steps // int(counted.sum())
            first_group = np.searchsorted(batch_of_group, np.arange(self.steps + 1))
            row_starts = np.append(0, self._lengths[groups].cumsum())
            self._last = (epoch, _Batches(groups, first_group, row_starts[first_group]))
        return self._last[1]

    def _of_shard(self, lengths: np.ndarray) -> slice:
        """The groups of a batch, with these rows each, that this process takes: about equally many rows."""
        ends = lengths.cumsum()
        bounds = self.shard.of(int(ends[-1]))
        low, high = np.searchsorted(ends - lengths, bounds)
        return slice(int(low), int(high))
