"""Scores of many batches against those of each batch alone."""

import numpy as np
import pytest
import torch
from torch import nn

from fieldwise import Batch
from fieldwise.scoring import batches as module
from fieldwise.scoring.batches import score_batches


class Doubled(nn.Module):
    """Twice a row's id, and for two labels its square as well."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, batch: Batch) -> torch.Tensor:
        x = batch.ids[:, 0] * self.scale
        return 2 * x if self.labels == 1 else torch.stack([2 * x, x * x], dim=1)


@pytest.mark.parametrize(
    ("sizes", "labels"), [([], 1), ([4, 4, 4, 1], 1), ([1, 9, 2, 30, 0, 5], 2)]
)
def test_scores_of_batches_come_in_their_order(sizes, labels, monkeypatch):
    monkeypatch.setattr(module, "KEPT_ROWS", 8)
    ids = torch.split(torch.arange(sum(sizes), dtype=torch.int32)[:, None], sizes)
    result = score_batches(Doubled(labels), ((Batch.of_ids(one), None) for one in ids))
    x = np.arange(sum(sizes), dtype=float)
    if not sizes:
        assert result.shape == (0,)
    else:
        np.testing.assert_array_equal(result, 2 * x if labels == 1 else np.stack([2 * x, x * x], 1))
