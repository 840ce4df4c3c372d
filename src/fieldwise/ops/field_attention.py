"""Multi-head self-attention over the fields of a row.

Letters: B batch, F fields, H heads, A total attention size of all heads, K = A/H of one head.
"""

import math

import torch
from torch import Tensor

from fieldwise.ops.keep import draw_seeds, keep_factors

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
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`softmax(Q K^T) V` of every head over the fields, heads concatenated (AutoInt, CIKM 2019, Equations 5 to 7).

    Args:
        q_BFA: projected queries.
        k_BFA: projected keys.
        v_BFA: projected values.
        heads: H, a divisor of A.
        scale: whether scores are divided by sqrt(A/H).
        dropout: dropout rate of the weights.
        training: whether dropout is on.
        seed: seed of the dropout, one int64; from PyTorch's global generator if omitted. Element
            `(h * F + f) * F + g` of a row's mask applies to the weight of field g for field f (`fieldwise.ops.keep`).

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
    kept_BHFF = a_BHFF
    if training and dropout > 0:
        seed = (draw_seeds(1)[0] if seed is None else seed).to(q_BFA.device)
        keep = keep_factors(seed, batch, heads * fields * fields, dropout, dtype=a_BHFF.dtype)
        kept_BHFF = a_BHFF * keep.view(a_BHFF.shape)
    out_BHFK = torch.matmul(kept_BHFF, _split(v_BFA, heads))
    return out_BHFK.transpose(1, 2).reshape(batch, fields, size), a_BHFF


def _split(x_BFA: Tensor, heads: int) -> Tensor:
    batch, fields, size = x_BFA.shape
    return x_BFA.view(batch, fields, heads, size // heads).transpose(1, 2)
