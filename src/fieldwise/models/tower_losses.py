"""Auxiliary losses of two-tower models.

A loss whose rows depend on each other takes in the rows of all processes that share a batch, and is in each of them
the loss of the whole batch.

Letters: B batch, A rows of all processes, P positive rows of B, E size of a representation, C categories, V = E * E.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fieldwise.distributed.collectives import all_gather_rows, all_reduce, rows_before, total_rows
from fieldwise.models.twotower import unit_vectors

__all__ = ["category_alignment_loss", "contrastive_loss", "mimic_loss"]


def contrastive_loss(user_BE: Tensor, item_BE: Tensor, label_B: Tensor, *, temperature: float) -> Tensor:
    """CIR: InfoNCE over a batch's positive rows, with cosine similarity (Li et al., CIKM 2022).

    For a positive row r: `-log(exp(c_rr) / sum over all rows s of the batch of exp(c_rs))`, c_rs = cos(u_r, v_s) / tau.
    The numerator is the row's own pair; the denominator pairs its user with the item of every row, positive or not,
    its own included. Returns the mean over positive rows, 0 if there are none.

    Args:
        user_BE: the user side's vectors, such as the tower's last level.
        item_BE: the item side's.
        label_B: positive rows are those above 0.
        temperature: tau.

    Shape:
        user_BE, item_BE: [B, E]; label_B: [B]; returns a scalar.

    >>> same = torch.eye(2)
    >>> round(float(contrastive_loss(same, same, torch.tensor([1.0, 0.0]), temperature=1.0)), 4)
    0.3133
    """
    # Scores of positive rows only, P * A entries: rows without a loss cost nothing.
    positive_P = (label_B > 0).nonzero().squeeze(1)
    user_PE = unit_vectors(user_BE.index_select(0, positive_P)) / temperature
    scores_PA = user_PE @ all_gather_rows(unit_vectors(item_BE)).t()
    own_P = positive_P + rows_before(label_B.shape[0])
    return all_reduce(F.cross_entropy(scores_PA, own_P, reduction="sum")) / max(total_rows(positive_P.shape[0]), 1)


def mimic_loss(augmented_BE: Tensor, other_BE: Tensor, label_B: Tensor) -> Tensor:
    """The mean over all rows of `|y a + (1 - y) p - p|^2`, p held fixed: only positive rows change a (Eq. 2).

    Args:
        augmented_BE: a, of one side's ids.
        other_BE: p, the other side's representations; no gradient flows into them.
        label_B: positive rows are those above 0.

    Shape:
        augmented_BE, other_BE: [B, E]; label_B: [B]; returns a scalar.

    >>> p = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mimic_loss(torch.zeros(2, 2), p, torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    positive_B = (label_B > 0).to(augmented_BE.dtype)
    distance_B = (augmented_BE - other_BE.detach()).square().sum(1)
    return (positive_B * distance_B).sum() / max(distance_B.shape[0], 1)


def category_alignment_loss(item_BE: Tensor, category_B: Tensor, categories: int) -> Tensor:
    """`sum over the other categories of |C(major) - C(other)|_F^2`, C the covariance of a category's items (Eq. 3).

    The major category has the most rows in the batch. NOTE[DIFF]: the paper does not define the covariance estimate;
    here it divides by n - 1, and a category with fewer than two rows is skipped.

    Args:
        item_BE: the items' representations.
        category_B: their categories, integers below `categories`.
        categories: number of categories.

    Shape:
        item_BE: [B, E]; category_B: [B]; returns a scalar.

    >>> items = torch.tensor([[0.0], [2.0], [4.0], [5.0], [5.0]])
    >>> category_alignment_loss(items, torch.tensor([0, 0, 0, 1, 1]), 2)
    tensor(16.)
    """

    def per_category(values: Tensor) -> Tensor:
        return all_reduce(values.new_zeros(categories, values.shape[1]).index_add(0, category_B, values))

    n_C1 = per_category(item_BE.new_ones(item_BE.shape[0], 1))
    mean_CE = per_category(item_BE) / n_C1.clamp(min=1)
    x_BE = item_BE - mean_CE[category_B]
    products_BV = torch.einsum("be,bf->bef", x_BE, x_BE).flatten(1)
    covariance_CV = per_category(products_BV) / (n_C1 - 1).clamp(min=1)
    distance_C1 = (covariance_CV - covariance_CV[n_C1.argmax()]).square().sum(1, keepdim=True)
    return (distance_C1 * (n_C1 > 1)).sum()
