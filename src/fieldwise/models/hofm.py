"""Higher-Order Factorization Machine (Blondel et al., NIPS 2016, arXiv 1607.07195).

Letters: B batch, F fields, D embedding size, M the order, R rows of the shared table.
"""

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from fieldwise.layers import FirstOrder
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, check_size
from fieldwise.ops import fm_second_order

Sharing = Literal["none", "plain", "weighted"]


@register_model("hofm")
@dataclass(frozen=True, kw_only=True)
class HOFM(EmbeddingSettings):
    """Settings of HOFM.

    Args:
        embedding_dim: D of every order.
        order: M, at least 2; 2 is FM.
        sharing: `none`, a table of vectors for each order (the paper's plain form); `plain`, one
            table for all orders; `weighted`, one table, and a learned weight for each order and
            dimension.

    Errors:
        ConfigError: a setting out of range; `build`: fewer fields than the order.

    >>> sorted(dict(HOFM().build(Layout.of_sizes([3, 4, 5])).named_parameters()))
    ['embedding.weight', 'first_order.bias', 'first_order.embedding.weight', 'order_embeddings.3.weight']
    """

    data_defaults = DataDefaults(std=0.05, prior=30.0, small_table_rows=0)

    order: Annotated[int, functools.partial(check_size, minimum=2)] = 3
    sharing: Sharing = "none"

    def build(self, layout: Layout) -> "HOFMNetwork":
        """A network with fresh weights."""
        self.check_fields(
            layout, self.order, f"of order {self.order} multiplies {self.order} fields"
        )
        return HOFMNetwork(self, layout)


class HOFMNetwork(nn.Module):
    """`logit = first_order + sum_{t=2..M} sum_d theta_td A^t(x^t_1d, ..., x^t_Fd)`, A^t being the ANOVA kernel.

    A^t of F numbers is the sum, over all subsets of t of them, of their product. x^t_f is field f's
    vector in the table of order t, or in the one table that all orders share: the paper's
    inhomogeneous ANOVA kernel. theta is 1 unless `sharing` is `weighted`.

    NOTE[DIFF]: the paper's shared kernel has the first order in it. Here the first order has its
    own weights for every `sharing`, and a bias, as in FM.
    NOTE[DIFF]: a bag is pooled to one vector before any product, so that its values do not
    interact.

    Parameters: `embedding.weight` [R, D] of order 2 (of all orders, where shared), so that an FM's
    weights fit; `order_embeddings.3.weight` [R, D], and so on, of the further orders;
    `order_weights` [M - 1, D], theta of order 2 and up; `first_order.embedding.weight` [R, 1],
    `first_order.bias`.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: HOFM, layout: Layout) -> None:
        super().__init__()
        self.order = settings.order
        self.sharing = settings.sharing
        self.embedding = settings.make_embedding(layout)
        further = range(3, self.order + 1) if self.sharing == "none" else ()
        tables = {str(t): settings.make_embedding(layout) for t in further}
        self.first_order = FirstOrder(layout)
        self.order_embeddings = nn.ModuleDict(tables)
        weights_shape = (self.order - 1, settings.embedding_dim)
        self.order_weights = (
            nn.Parameter(torch.ones(weights_shape)) if self.sharing == "weighted" else None
        )

    def forward(self, batch: Batch) -> Tensor:
        logit_B: Tensor = self.first_order(batch)
        x_BFD = self.embedding(batch)
        if self.sharing == "none":
            logit_B = logit_B + fm_second_order(x_BFD)
            for t, table in self.order_embeddings.items():
                logit_B = logit_B + anova_kernels(table(batch), int(t))[-1].sum(1)
            return logit_B
        kernels_BTD = torch.stack(anova_kernels(x_BFD, self.order)[1:], 1)
        if self.order_weights is not None:
            kernels_BTD = kernels_BTD * self.order_weights
        return logit_B + kernels_BTD.sum((1, 2))


def anova_kernels(x_BFD: Tensor, order: int) -> list[Tensor]:
    """`A^t(x_1, ..., x_F) = sum_{i_1 < ... < i_t} x_i1 * ... * x_it` for t = 1 to `order`, in O(F M D).

    The paper's dynamic programme: with field f, the `A^t` of the fields before it gains
    `x_f * A^(t-1)`. It only uses sums and products; sums of powers would cancel.

    Args:
        x_BFD: the fields' vectors; at least `order` fields.
        order: M.

    Shape:
        x_BFD: [B, F, D]; returns M tensors [B, D].

    >>> anova_kernels(torch.tensor([[[1.0], [2.0], [3.0]]]), 3)
    [tensor([[6.]]), tensor([[11.]]), tensor([[6.]])]
    """
    first_BD, *others = x_BFD.unbind(1)
    kernels = [first_BD]
    for x_BD in others:
        gains = [x_BD, *(x_BD * a_BD for a_BD in kernels[: order - 1])]
        kernels = [a_BD + gain_BD for a_BD, gain_BD in zip(kernels, gains, strict=False)] + gains[
            len(kernels) :
        ]
    return kernels
