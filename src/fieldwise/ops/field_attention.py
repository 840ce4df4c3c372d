"""Multi-head attention of the fields of a row to one another.

Letters: B batch, F fields, H heads, A attention size of all heads together, K = A/H of one head.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["field_attention"]


def field_attention(
    q_BFA: Tensor,
    k_BFA: Tensor,
    v_BFA: Tensor,
    *,
    heads: int,
    scale: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> tuple[Tensor, Tensor]:
    """`softmax(Q K^T) V` of every head over the fields, heads joined (AutoInt, CIKM 2019, Equations 5 to 7).

    Args:
        q_BFA: the asking side, already projected.
        k_BFA: the answering side, already projected.
        v_BFA: what is taken, already projected.
        heads: H, a divisor of A.
        scale: whether scores are divided by sqrt(A/H).
        dropout: share of the weights dropped before they meet V.
        training: whether dropout is on.

    Shape:
        q_BFA, k_BFA, v_BFA: [B, F, A]; returns [B, F, A] and the weights [B, H, F, F] before dropout, whose last
        axis sums to 1.

    >>> x = torch.ones(1, 3, 4)
    >>> out, weights = field_attention(x, x, x, heads=2)
    >>> out.shape, weights[0, 0, 0]
    (torch.Size([1, 3, 4]), tensor([0.3333, 0.3333, 0.3333]))
    """
    batch, fields, size = q_BFA.shape
    q_BHFK = _split(q_BFA, heads)
    if scale:
        q_BHFK = q_BHFK * (1.0 / math.sqrt(size // heads))
    a_BHFF = torch.matmul(q_BHFK, _split(k_BFA, heads).transpose(2, 3)).softmax(3)
    out_BHFK = torch.matmul(F.dropout(a_BHFF, dropout, training), _split(v_BFA, heads))
    return out_BHFK.transpose(1, 2).reshape(batch, fields, size), a_BHFF


def _split(x_BFA: Tensor, heads: int) -> Tensor:
    batch, fields, size = x_BFA.shape
    return x_BFA.view(batch, fields, heads, size // heads).transpose(1, 2)
