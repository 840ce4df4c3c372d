"""Dropout of values: rare ones are trained as unknown, so that the unknown row learns what they have in common.

Letters: R rows of the shared embedding table.
"""

import numpy as np
import torch
from torch import Tensor

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import span_of_rows
from fieldwise.layout import Batch, Layout
from fieldwise.ops.dropout import hash_draws

UNKNOWN = 1
"""The local row id of a field's unknown value."""
IDS_COUNTED_AT_ONCE = 1 << 21
"""Or as many as the embedding table has rows."""


class OutOfVocabularyDropout:
    """Randomly replaces values by their field's unknown value, rare ones more often.

    A value that n training rows have (`value_counts`) is replaced with probability
    `strength / (strength + n)`: the probability of a new value after n rows in a Chinese restaurant
    process with that concentration. Without this, the unknown row of a field with `min_count` 1
    never gets a gradient, and values not seen in training are scored with its random initial
    vector.
    """

    def __init__(self, layout: Layout, counts: np.ndarray, strength: float, seed: int) -> None:
        probability = np.zeros(len(counts), np.float32)
        unknown = np.arange(len(counts), dtype=np.int32)
        for field in layout.fields:
            if field.unknown:
                known = field.all_rows()[UNKNOWN + 1 :]
                probability[known] = strength / (strength + counts[known])
                unknown[known] = field.row(UNKNOWN)
        self.probability = torch.from_numpy(probability)
        self.unknown = torch.from_numpy(unknown)
        self.draws = torch.Generator().manual_seed(seed)

    def expected(self, counts: np.ndarray) -> np.ndarray:
        """The expected number [R] of each row of the embedding table in what is left of rows with these counts [R]."""
        replaced = counts * self.probability.numpy()
        expected: np.ndarray = counts - replaced
        expected += np.bincount(self.unknown.numpy(), replaced, minlength=len(counts))
        return expected

    def __call__(self, batch: Batch) -> Batch:
        """The batch with some values replaced by unknown."""
        device = batch.ids.device
        if self.unknown.device != device:
            self.probability = self.probability.to(device)
            self.unknown = self.unknown.to(device)
        ids = self._with_unknown(batch.ids)
        return batch._replace(ids=ids, bag_ids=self._with_unknown(batch.bag_ids))

    def _with_unknown(self, ids: Tensor) -> Tensor:
        drawn = self._draw(ids)
        rows = ids.long()
        return torch.where(drawn < self.probability[rows], self.unknown[rows].to(ids.dtype), ids)

    def _draw(self, ids: Tensor) -> Tensor:
        """A number of [0, 1) for each id, of those that one process would draw for the whole batch."""
        first, total = span_of_rows(len(ids))
        last = first + len(ids)
        if ids.device.type == "cpu":
            return torch.rand((total, *ids.shape[1:]), generator=self.draws)[first:last]
        seed = torch.randint(0, 2**63 - 1, (), generator=self.draws).to(ids.device)
        drawn_on_device = hash_draws(seed, total, ids[:1].numel())[first:last]
        return drawn_on_device.view(ids.shape) / 2**24


def value_counts(train: EncodedTable) -> np.ndarray:
    """How often the training rows have each row of the embedding table [R]."""
    counts = np.zeros(train.layout.num_rows, np.int64)
    ids_at_once = max(IDS_COUNTED_AT_ONCE, len(counts))
    # which may be on disk: read once, from the first to the last
    for ids in (train.ids, train.bag_ids[:, None]):
        rows_at_once = max(1, ids_at_once // max(1, ids.shape[1]))
        for start in range(0, len(ids), rows_at_once):
            block = ids[start : start + rows_at_once].reshape(-1)
            counts += np.bincount(block.astype(np.int64), minlength=len(counts))
    return counts
