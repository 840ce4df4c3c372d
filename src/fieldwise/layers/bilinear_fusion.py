"""FinalMLP's bilinear fusion of two streams.

Letters: B batch, M and N sizes of the streams' outputs, H heads.
"""

import math

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear

__all__ = ["BilinearFusion"]


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
