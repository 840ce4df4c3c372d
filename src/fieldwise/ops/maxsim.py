"""The late interaction of two sets of head vectors."""

import torch
from torch import Tensor

__all__ = ["max_sim"]


def max_sim(user_BHP: Tensor, item_BKP: Tensor) -> Tensor:
    """`sum over user heads of max over item heads of <user head, item head>` (IntTower, CIKM 2022, FE-Block).

    Shape:
        user_BHP: [B, H, P] head vectors of size P; item_BKP: [B, K, P], K may differ from H; returns [B].

    >>> user, item = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[3.0, 1.0]]])
    >>> max_sim(user, item)
    tensor([5.])
    """
    return torch.bmm(user_BHP, item_BKP.transpose(1, 2)).amax(2).sum(1)
