"""Squeeze and excitation: a weight for every field of a row, from and for the fields' vectors (FiBiNET, IntTower).

Letters: B batch, F fields, D embedding size, H squeezed size.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear

__all__ = ["LightSE", "SENet", "SENetActivation"]

SENetActivation = Literal["relu", "sigmoid"]


class SENet(nn.Module):
    """`z_f = mean of x_f over D`, `a = act(W2 relu(W1 z))`, then `a_f x_f` (Huang et al., RecSys 2019).

    Neither map has a bias.

    Args:
        num_fields: F.
        reduction_ratio: r; the squeezed size H is F / r, rounded down, but at least 1.
        activation: of the weights: `relu`, or `sigmoid`, which keeps them between 0 and 1.

    Shape:
        forward: [B, F, D] -> [B, F, D]. `field_weights`: [B, F, D] -> [B, F].

    >>> SENet(7, reduction_ratio=3).reduce
    Linear(in_features=7, out_features=2, bias=False)
    """

    def __init__(self, num_fields: int, *, reduction_ratio: float = 3.0, activation: SENetActivation = "relu") -> None:
        super().__init__()
        size = max(1, int(num_fields / reduction_ratio))
        self.reduce = linear(num_fields, size, bias=False)
        self.expand = linear(size, num_fields, bias=False)
        self.activation = activation

    def field_weights(self, x_BFD: Tensor) -> Tensor:
        """How much of each field is kept [B, F]."""
        a_BF: Tensor = self.expand(torch.relu(self.reduce(x_BFD.mean(2))))
        return torch.relu(a_BF) if self.activation == "relu" else torch.sigmoid(a_BF)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The fields' weighted vectors [B, F, D]."""
        return self.field_weights(x_BFD).unsqueeze(2) * x_BFD


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
