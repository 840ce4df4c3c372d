"""AFM's attention over pairs of fields."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.ops import pair_attention_pool, pair_attention_pool_plain, pair_indices

__all__ = ["PairAttention", "StartOfB", "StartOfH"]

StartOfH = Literal["xavier", "standard_normal"]
StartOfB = Literal["zeros", "xavier"]


class PairAttention(nn.Module):
    """Attention-based pooling of the products of all pairs of fields (Xiao et al., IJCAI 2017, Equations 3 to 5).

    Parameters are named as in the paper: `W` [A, D], `b` [A], `h` [A].

    Args:
        num_fields: F, at least 2.
        dim: D.
        attention_dim: A.
        pair_dropout: dropout rate of the products' entries.
        attention_dropout: dropout rate of the weights.
        start_of_h: initial distribution of h: `xavier`, a normal of variance 2 / (A + 1), or `standard_normal`.
        start_of_b: initial value of b: `zeros`, or like W `xavier`, a normal of variance 2 / (D + A).

    Shape:
        forward: [B, F, D] -> [B, D]. `weights` -> [B, P], which sum to 1 over the P = F(F-1)/2 pairs.

    >>> attention, x = PairAttention(3, 4, 8), torch.ones(2, 3, 4)
    >>> attention(x).shape, attention.weights(x).shape
    (torch.Size([2, 4]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        num_fields: int,
        dim: int,
        attention_dim: int,
        *,
        pair_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        start_of_h: StartOfH = "xavier",
        start_of_b: StartOfB = "zeros",
    ) -> None:
        super().__init__()
        self.pair_dropout, self.attention_dropout = pair_dropout, attention_dropout
        self.W = nn.Parameter(torch.empty(attention_dim, dim))
        self.b = nn.Parameter(torch.zeros(attention_dim))
        self.h = nn.Parameter(torch.empty(attention_dim))
        nn.init.xavier_normal_(self.W)
        nn.init.normal_(self.h, std=math.sqrt(2.0 / (attention_dim + 1)) if start_of_h == "xavier" else 1.0)
        if start_of_b == "xavier":
            nn.init.normal_(self.b, std=math.sqrt(2.0 / (dim + attention_dim)))
        left_P, right_P = pair_indices(num_fields)
        self.left = nn.Buffer(left_P, persistent=False)
        self.right = nn.Buffer(right_P, persistent=False)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The pooled vectors [B, D]."""
        return pair_attention_pool(
            x_BFD,
            self.left,
            self.right,
            self.W,
            self.b,
            self.h,
            pair_dropout=self.pair_dropout,
            attention_dropout=self.attention_dropout,
            training=self.training,
        )

    def weights(self, x_BFD: Tensor) -> Tensor:
        """The attention weights [B, P], pairs as `fieldwise.ops.pair_indices` orders them; never with dropout."""
        return pair_attention_pool_plain(x_BFD, self.left, self.right, self.W, self.b, self.h)[1]
