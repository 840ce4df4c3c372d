"""FiBiNET's bilinear interaction of pairs of fields.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.ops import pair_indices

__all__ = ["BilinearInteraction", "BilinearKind"]

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

    left: Tensor
    right: Tensor

    def __init__(self, num_fields: int, dim: int, kind: BilinearKind = "interaction") -> None:
        super().__init__()
        self.kind, self.firsts = kind, num_fields - 1
        left_P, right_P = pair_indices(num_fields)
        sizes = {"all": (), "each": (self.firsts,), "interaction": (len(left_P),)}
        self.W = nn.Parameter(torch.empty(*sizes[kind], dim, dim))
        nn.init.normal_(self.W, std=dim**-0.5)  # Xavier's normal of every D x D matrix
        self.register_buffer("left", left_P, persistent=False)
        self.register_buffer("right", right_P, persistent=False)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The pairs' vectors [B, P, D]."""
        if self.kind == "interaction":
            mapped_BPD = torch.einsum("bpd,pde->bpe", x_BFD.index_select(1, self.left), self.W)
        else:
            first_BGD = x_BFD[:, : self.firsts]
            mapped = first_BGD @ self.W if self.kind == "all" else torch.einsum("bgd,gde->bge", first_BGD, self.W)
            mapped_BPD = mapped.index_select(1, self.left)
        return mapped_BPD * x_BFD.index_select(1, self.right)
