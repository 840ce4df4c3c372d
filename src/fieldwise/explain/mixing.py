"""Mixed rows, which take some of their fields from other rows.

Letters: N rows, M mixed rows, F fields, S single-valued fields, G bags, K background rows.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from fieldwise.data.table import EncodedTable
from fieldwise.layout import Bags
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["Mixer"]

BLOCK = 16 * SCORING_BATCH  # mixed rows in memory at once


class Mixer:
    """Computes logits of rows with some fields from background rows.

    Args:
        network: a network of one label.
        table: N rows.
        background: K rows of the same layout.
    """

    def __init__(self, network: nn.Module, table: EncodedTable, background: EncodedTable) -> None:
        self.network, self.rows, self.layout = network, len(table), table.layout
        self.ids = np.concatenate([table.ids, background.ids])
        self.values = np.concatenate([table.values, background.values])
        self.bags = Bags.joined([table.bags, background.bags])
        fields = table.layout.fields
        self.singles = [i for i, f in enumerate(fields) if f.kind != "bag"]
        self.numbers = [i for i, f in enumerate(fields) if f.kind == "value"]
        self.several = [i for i, f in enumerate(fields) if f.kind == "bag"]

    @property
    def num_fields(self) -> int:
        """F."""
        return self.layout.num_fields

    def score(self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray) -> np.ndarray:
        """Logits [M] float64.

        Args:
            rows: row numbers in the table, [M].
            others: row numbers in the background, [M].
            taken_MF: which fields come from the background, bool [M, F].
        """
        return score_batches(self.network, self._batches(rows, others, taken_MF))

    def _batches(self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray) -> Iterator[tuple]:  # type: ignore[type-arg]
        for start in range(0, len(rows), BLOCK):
            part = slice(start, start + BLOCK)
            yield from self.mixed(rows[part], others[part], taken_MF[part]).batches(SCORING_BATCH)

    def mixed(self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray) -> EncodedTable:
        """The mixed rows, encoded."""
        # The row from which each field of each mixed row is read.
        source_MF = np.where(taken_MF, (self.rows + others)[:, None], rows[:, None])
        ids = np.take_along_axis(self.ids, source_MF[:, self.singles], 0)
        values = np.take_along_axis(self.values, source_MF[:, self.numbers], 0)
        numbers = source_MF[:, self.several] * len(self.several) + np.arange(len(self.several))
        bags = self.bags.take(torch.from_numpy(numbers))
        return EncodedTable(self.layout, ids, values, bags.ids.numpy(), bags.offsets.numpy(), None)
