"""Bilinear products: of pairs of fields (FiBiNET), and of two streams (FinalMLP).

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, M and N sizes of the streams' outputs, H heads.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear
from fieldwise.ops import pair_indices

__all__ = ["BilinearFusion", "BilinearInteraction", "BilinearKind"]

BilinearKind = Literal["all", "each", "interaction"]


class BilinearInteraction(nn.Module):
    """`p_ij = (x_i W) * x_j` for every pair i < j (Huang et al., RecSys 2019).

    Only the first field of a pair is mapped, so the result depends on the order of fields: no change of W compensates
    for another order, unless W is diagonal.

    Parameter `W`: [D, D] of `all`, [F - 1, D, D] of `each`, [P, D, D] of `interaction`.

    NOTE[DIFF]: the paper counts F matrices of `each`. The last field is never the first of a pair, so its matrix
    would never be used; it is omitted here.

    Args:
        num_fields: F, at least 2.
        dim: D.
        kind: `all` pairs share one W, pairs of `each` first field share one, or every `interaction` has its own.

    Shape:
        forward: [B, F, D] -> [B, P, D], pairs as `fieldwise.ops.pair_indices` orders them.

    >>> BilinearInteraction(3, 4, "each")(torch.ones(2, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, num_fields: int, dim: int, kind: BilinearKind = "interaction") -> None:
        super().__init__()
        self.kind, self.firsts = kind, num_fields - 1
        left_P, right_P = pair_indices(num_fields)
        sizes = {"all": (), "each": (self.firsts,), "interaction": (len(left_P),)}
        self.W = nn.Parameter(torch.empty(*sizes[kind], dim, dim))
        nn.init.normal_(self.W, std=dim**-0.5)  # Xavier's normal of every D x D matrix
        self.left = nn.Buffer(left_P, persistent=False)
        self.right = nn.Buffer(right_P, persistent=False)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The pairs' vectors [B, P, D]."""
        if self.kind == "interaction":
            mapped_BPD = torch.einsum("bpd,pde->bpe", x_BFD.index_select(1, self.left), self.W)
        else:
            first_BGD = x_BFD[:, : self.firsts]
            mapped = first_BGD @ self.W if self.kind == "all" else torch.einsum("bgd,gde->bge", first_BGD, self.W)
            mapped_BPD = mapped.index_select(1, self.left)
        return mapped_BPD * x_BFD.index_select(1, self.right)


class BilinearFusion(nn.Module):
    """`b + w1 . o1 + w2 . o2 + sum over heads h of o1_h^T W_h o2_h` (Mao et al., AAAI 2023).

    Head h reads the h-th of H equal parts of either stream.

    NOTE[DIFF]: the authors' code has two biases, one with w1 and one with w2, of which only the sum matters; here there
    is one, of `w1`.

    Args:
        sizes: M and N.
        heads: H, a divisor of both; 0 omits the products.

    Shape:
        forward: [B, M] and [B, N] -> [B]. `W`: [H, M / H, N / H].

    >>> BilinearFusion((6, 4), heads=2)(torch.ones(3, 6), torch.ones(3, 4)).shape
    torch.Size([3])
    """

    def __init__(self, sizes: tuple[int, int], *, heads: int = 1) -> None:
        super().__init__()
        one, two = sizes
        self.w1, self.w2 = linear(one, 1), linear(two, 1, bias=False)
        self.W = nn.Parameter(torch.empty(heads, one // heads, two // heads)) if heads else None
        if self.W is not None:
            # Initialised like a linear unit on all products: Xavier's normal distribution.
            nn.init.normal_(self.W, std=math.sqrt(2.0 / (self.W.numel() + 1)))

    def forward(self, one_BM: Tensor, two_BN: Tensor) -> Tensor:
        """The logit [B]."""
        logit_B: Tensor = (self.w1(one_BM) + self.w2(two_BN)).squeeze(1)
        if self.W is None:
            return logit_B
        one_BHM = one_BM.view(-1, *self.W.shape[:2])
        mapped = torch.einsum("bhm,hmn->bhn", one_BHM, self.W)
        return logit_B + (mapped.flatten(1) * two_BN).sum(1)
