"""Pooling of a bag's vectors into one vector per field.

Letters: B batch, G bags, N bag values, D embedding size, M = B times G.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layout import Batch

__all__ = ["BagPooling"]


class BagPooling(nn.Module):
    """One vector per bag: the maximum of its values' vectors, or their sum with the batch's weights (mean, sum).

    Args:
        by_max: for every bag of a row whether it is pooled by maximum.

    Shape:
        forward: the values' vectors [N, D] and their batch -> [B, G, D]; zeros for an empty bag.

    >>> batch = Batch.of_ids(torch.zeros(1, 0, dtype=torch.int64))
    >>> BagPooling([True, False])(torch.ones(0, 3), batch)
    tensor([[[0., 0., 0.],
             [0., 0., 0.]]])
    """

    by_max: Tensor

    def __init__(self, by_max: Sequence[bool]) -> None:
        super().__init__()
        self.bags, self.has_max, self.has_sum = len(by_max), any(by_max), not all(by_max)
        self.register_buffer("by_max", torch.tensor(by_max, dtype=torch.bool), persistent=False)

    def forward(self, v_ND: Tensor, batch: Batch) -> Tensor:
        """The bags' vectors [B, G, D]."""
        rows, dim = batch.ids.shape[0], v_ND.shape[1]
        zeros_MD = v_ND.new_zeros(rows * self.bags, dim)
        summed_MD = greatest_MD = zeros_MD
        if self.has_sum:
            weighted_ND = v_ND * batch.bag_weights.to(v_ND.dtype).unsqueeze(1)
            summed_MD = zeros_MD.index_add(0, batch.bag_segments, weighted_ND)
        if self.has_max:
            index_ND = batch.bag_segments.unsqueeze(1).expand(-1, dim)
            greatest_MD = zeros_MD.scatter_reduce(0, index_ND, v_ND, "amax", include_self=False)
        if not self.has_max:
            return summed_MD.view(rows, self.bags, dim)
        greatest_BGD = greatest_MD.view(rows, self.bags, dim)
        if not self.has_sum:
            return greatest_BGD
        return torch.where(self.by_max.view(1, -1, 1), greatest_BGD, summed_MD.view(rows, self.bags, dim))
