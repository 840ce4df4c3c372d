"""Products of pairs of fields: FM's sum and AFM's attention pooling.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, A attention size.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fm_second_order", "pair_attention_pool", "pair_indices", "pair_products"]


def pair_indices(num_fields: int) -> tuple[Tensor, Tensor]:
    """Both sides of the pairs i < j, ordered by i, then j.

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
    """`sum_{i<j} <x_i, x_j>` in O(F D), as half of the square of the sum less the sum of squares (Rendle, 2010).

    Shape:
        x_BFD: [B, F, D]; returns [B].

    >>> fm_second_order(torch.tensor([[[1.0], [2.0], [3.0]]]))
    tensor([11.])
    """
    return 0.5 * (x_BFD.sum(1).square() - x_BFD.square().sum(1)).sum(-1)


def pair_attention_pool(
    x_BFD: Tensor,
    left_P: Tensor,
    right_P: Tensor,
    W_AD: Tensor,
    b_A: Tensor,
    h_A: Tensor,
    *,
    pair_dropout: float = 0.0,
    attention_dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """AFM's attention-based pooling of all pairs (Xiao et al., IJCAI 2017, Equations 3 to 5).

    `q_ij = x_i * x_j`, `e_ij = h . relu(W q_ij + b)`, `a = softmax of e over the pairs`, pooled `sum_ij a_ij q_ij`.

    Args:
        x_BFD: the fields' vectors.
        left_P: the first field of every pair.
        right_P: the second field of every pair.
        W_AD: the attention's weight.
        b_A: its bias.
        h_A: what turns a hidden vector into a score.
        pair_dropout: share of the products' entries dropped before anything else reads them.
        attention_dropout: share of the weights dropped before pooling.
        training: whether dropout is on.

    Shape:
        x_BFD: [B, F, D]; left_P, right_P: [P]; W_AD: [A, D]; b_A, h_A: [A].
        returns the pooled vector [B, D] and the weights [B, P] before dropout, which sum to 1 over the pairs.

    >>> x = torch.tensor([[[1.0], [2.0], [3.0]]])
    >>> pooled, weights = pair_attention_pool(x, *pair_indices(3), torch.zeros(4, 1), torch.zeros(4), torch.ones(4))
    >>> float(pooled), weights.shape
    (3.6666667461395264, torch.Size([1, 3]))
    """
    batch, size, pairs = x_BFD.shape[0], x_BFD.shape[2], left_P.shape[0]
    q_BPD = F.dropout(pair_products(x_BFD, left_P, right_P), pair_dropout, training)
    hidden_NA = torch.addmm(b_A, q_BPD.reshape(batch * pairs, size), W_AD.t()).relu()
    a_BP = torch.mv(hidden_NA, h_A).view(batch, pairs).softmax(1)
    dropped_BP = F.dropout(a_BP, attention_dropout, training)
    return torch.bmm(dropped_BP.unsqueeze(1), q_BPD).squeeze(1), a_BP
