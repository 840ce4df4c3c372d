"""Replacing rare values by unknown in training, so that a field's unknown row learns what they have in common."""

import numpy as np
import torch
from torch import Tensor

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import span_of_rows
from fieldwise.layout import Batch
from fieldwise.ops.dropout import hash_draws

__all__ = ["OutOfVocabularyDropout"]

UNKNOWN = 1  # the local row id of a field's unknown value
COUNTED_IDS = 1 << 21  # counted at once, or as many as the embedding table has rows


class OutOfVocabularyDropout:
    """Randomly replaces values by their field's unknown value, rare ones more often.

    A value that n training rows have is replaced with probability `strength / (strength + n)`: the probability
    of a new value after n rows in a Chinese restaurant process with that concentration. Without this, the unknown row
    of a field with `min_count` 1 never gets a gradient, and values not seen in training are scored with its random
    initial vector.

    >>> from fieldwise.layout import Layout
    >>> table = EncodedTable(Layout.of_sizes([3]), *(np.zeros(s) for s in ((1, 1), (1, 0), 0, 1)))
    >>> OutOfVocabularyDropout(table, 1.0, 0).probability.tolist()  # no field here has an unknown value
    [0.0, 0.0, 0.0]
    """

    def __init__(self, train: EncodedTable, strength: float, seed: int) -> None:
        counts = row_counts(train)
        probability = np.zeros(len(counts), np.float32)
        unknown = np.arange(len(counts), dtype=np.int32)
        for f in train.layout.fields:
            if f.unknown:
                rows = f.all_rows()[UNKNOWN + 1 :]
                probability[rows] = strength / (strength + counts[rows])
                unknown[rows] = f.row(UNKNOWN)
        self.probability, self.unknown = torch.from_numpy(probability), torch.from_numpy(unknown)
        self.draws = torch.Generator().manual_seed(seed)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with some values replaced by unknown."""
        return batch._replace(ids=self._shown(batch.ids), bag_ids=self._shown(batch.bag_ids))

    def _shown(self, ids: Tensor) -> Tensor:
        if self.unknown.device != ids.device:
            self.probability, self.unknown = self.probability.to(ids.device), self.unknown.to(ids.device)
        rows = ids.long()
        hidden = self._drawn(ids) < self.probability[rows]
        return torch.where(hidden, self.unknown[rows].to(ids.dtype), ids)

    def _drawn(self, ids: Tensor) -> Tensor:
        """Uniform numbers for this process's part of the batch: those that one process would draw there."""
        first, rows = span_of_rows(len(ids))
        if ids.device.type == "cpu":
            return torch.rand((rows, *ids.shape[1:]), generator=self.draws)[first : first + len(ids)]
        seed = torch.randint(0, 2**63 - 1, (), generator=self.draws).to(ids.device)  # drawn on the device
        drawn = hash_draws(seed, rows, ids[:1].numel())[first : first + len(ids)] / 2**24
        return drawn.view(ids.shape)


def row_counts(table: EncodedTable) -> np.ndarray:
    """How often each row of the shared embedding table is read by a table's rows: int64 [layout.num_rows].

    The table is read once, from its first row to its last.

    >>> from fieldwise.layout import Layout
    >>> table = EncodedTable(Layout.of_sizes([3]), np.array([[2], [2], [0]]), *(np.zeros(s) for s in ((3, 0), 0, 1)))
    >>> row_counts(table).tolist()
    [1, 0, 2]
    """
    counts = np.zeros(table.layout.num_rows, np.int64)
    size = max(COUNTED_IDS, len(counts))
    for ids in (table.ids, table.bag_ids[:, None]):
        rows = max(1, size // max(1, ids.shape[1]))
        for start in range(0, len(ids), rows):
            block = ids[start : start + rows].reshape(-1)
            counts += np.bincount(block.astype(np.int64), minlength=len(counts))
    return counts
