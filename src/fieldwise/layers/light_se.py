"""IntTower's Light-SE: a cheap weighting of a tower's fields."""

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear

__all__ = ["LightSE"]


class LightSE(nn.Module):
    """`k = softmax(Linear(mean of x over D))` over the fields, then `x + k * x` (Li et al., CIKM 2022).

    Args:
        num_fields: F of the tower.
        bias: whether the linear map has a bias.

    Shape:
        forward: [B, F, D] -> [B, F, D].

    >>> LightSE(1)(torch.ones(2, 1, 4))[0]
    tensor([[2., 2., 2., 2.]], grad_fn=<SelectBackward0>)
    """

    def __init__(self, num_fields: int, *, bias: bool = True) -> None:
        super().__init__()
        self.excite = linear(num_fields, num_fields, bias=bias)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The fields' weighted vectors."""
        return self.weigh(x_BFD, self.weights(x_BFD))

    def weights(self, x_BFD: Tensor) -> Tensor:
        """K [B, F], which sums to 1 over the fields."""
        return torch.softmax(self.excite(x_BFD.mean(2)), 1)

    @staticmethod
    def weigh(x_BFD: Tensor, k_BF: Tensor) -> Tensor:
        """`x + k * x` [B, F, D]."""
        return x_BFD + k_BF.unsqueeze(2) * x_BFD
