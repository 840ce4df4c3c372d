"""Products of pairs of fields.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size.
"""

import torch
from torch import Tensor

__all__ = ["fm_second_order", "pair_indices", "pair_products"]


def pair_indices(num_fields: int) -> tuple[Tensor, Tensor]:
    """The indices of all pairs i < j, ordered by i, then j.

    Shape:
        two int64 vectors [P].

    >>> pair_indices(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    left_P, right_P = torch.triu_indices(num_fields, num_fields, 1)
    return left_P.contiguous(), right_P.contiguous()


def pair_products(x_BFD: Tensor, left_P: Tensor, right_P: Tensor) -> Tensor:
    """The elementwise products `x_i * x_j` of the given pairs (AFM's pair-wise interaction layer, Equation 2).

    Shape:
        x_BFD: [B, F, D]; left_P, right_P: [P]; returns [B, P, D].

    >>> pair_products(torch.tensor([[[1.0], [2.0], [3.0]]]), *pair_indices(3)).flatten()
    tensor([2., 3., 6.])
    """
    return x_BFD.index_select(1, left_P) * x_BFD.index_select(1, right_P)


def fm_second_order(x_BFD: Tensor) -> Tensor:
    """`sum_{i<j} <x_i, x_j>` in O(F D), as half of the square of the sum minus the sum of squares (Rendle, 2010).

    Shape:
        x_BFD: [B, F, D]; returns [B].

    >>> fm_second_order(torch.tensor([[[1.0], [2.0], [3.0]]]))
    tensor([11.])
    """
    return 0.5 * (x_BFD.sum(1).square() - x_BFD.square().sum(1)).sum(-1)
