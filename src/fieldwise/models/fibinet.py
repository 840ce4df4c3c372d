"""FiBiNET (Huang et al., RecSys 2019, arXiv 1905.09433): weighted fields and bilinear products of pairs.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.layers import BilinearInteraction, FirstOrder, SENet
from fieldwise.layers.activations import Activation
from fieldwise.layers.attention import SENetActivation
from fieldwise.layers.crosses import BilinearKind
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    SMALL_MLP,
    DataDefaults,
    EmbeddingSettings,
    OptionalSizes,
    Positive,
    Rate,
    Size,
)


@register_model("fibinet")
@dataclass(frozen=True, kw_only=True)
class FiBiNET(EmbeddingSettings):
    """Settings of FiBiNET.

    Args:
        bilinear: `all` pairs share one matrix, pairs of `each` first field share one, or every
            `interaction` has its own.
        shared_bilinear: the plain and the weighted fields share their matrices (FuxiCTR 1.x, hence
            BARS; DeepCTR); by default each has its own (FuxiCTR 2.x).
        reduction_ratio: r of SENET, whose squeezed size is F / r, rounded down, but at least 1.
        senet_activation: of SENET's field weights, `relu` or `sigmoid`.
        hidden: sizes of the MLP's layers; `()` is the paper's shallow form, the sum of all
            products' entries.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    >>> sum(p.numel() for p in FiBiNET(bilinear="all", hidden=()).build(Layout.of_sizes([3, 4])).parameters())
    282
    """

    data_defaults = DataDefaults(settings=SMALL_MLP)

    embedding_dim: Size = 10
    bilinear: BilinearKind = "interaction"
    shared_bilinear: bool = False
    reduction_ratio: Positive = 3.0
    senet_activation: SENetActivation = "relu"
    hidden: OptionalSizes = (400, 400, 400)
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def build(self, layout: Layout) -> "FiBiNETNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 2, "multiplies pairs of fields")
        return FiBiNETNetwork(self, layout)


class FiBiNETNetwork(nn.Module):
    """`logit = first_order + mlp(c)`, `c` the entries of `p_ij = (x_i W) * x_j` and `q_ij = (v_i W') * v_j`, i < j.

    `x_f` is field f's vector (times its value), `v = senet(x)` the fields weighted by SENET.
    Without an MLP the logit is `first_order + the sum of c`, the paper's shallow form. The logit
    has one bias: the MLP's, or without an MLP the first-order term's.

    Shape:
        forward: Batch of B rows -> [B]. `field_weights` -> [B, F].
    """

    def __init__(self, settings: FiBiNET, layout: Layout) -> None:
        super().__init__()
        fields = layout.num_fields
        dim = settings.embedding_dim
        kind = settings.bilinear
        mlp = settings.make_mlp(fields * (fields - 1) * dim) if settings.hidden else None
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout, bias=mlp is None)
        self.senet = SENet(
            fields, reduction_ratio=settings.reduction_ratio, activation=settings.senet_activation
        )
        self.bilinear = BilinearInteraction(fields, dim, kind)
        self.weighted_bilinear = (
            None if settings.shared_bilinear else BilinearInteraction(fields, dim, kind)
        )
        self.mlp = mlp

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self.embedding(batch)
        weighted = self.bilinear if self.weighted_bilinear is None else self.weighted_bilinear
        c = torch.cat([self.bilinear(x_BFD), weighted(self.senet(x_BFD))], 1).flatten(1)
        deep_B = c.sum(1) if self.mlp is None else self.mlp(c).squeeze(1)
        return self.first_order(batch) + deep_B

    def field_weights(self, batch: Batch) -> Tensor:
        """SENET's weight of every field of every row [B, F]."""
        return self.senet.field_weights(self.embedding(batch))
