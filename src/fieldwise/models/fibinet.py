"""FiBiNET (Huang et al., RecSys 2019, arXiv 1905.09433): weighted fields and bilinear products of pairs.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.layers import MLP, BilinearInteraction, FieldEmbedding, FirstOrder, SENet
from fieldwise.layers.bilinear_interaction import BilinearKind
from fieldwise.layers.senet import SENetActivation
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import (
    check_choice,
    check_fields,
    check_positive,
    check_shares,
    check_sizes,
)
from fieldwise.models.settings import EmbeddingSettings

__all__ = ["FiBiNET", "FiBiNETNetwork"]


@dataclass(frozen=True, kw_only=True)
class FiBiNET(EmbeddingSettings):
    """Settings of FiBiNET.

    Args:
        embedding_dim: D.
        bilinear: `all` pairs share one matrix, pairs of `each` first field share one, or every `interaction` has its
            own.
        shared_bilinear: the plain and the weighted fields share their matrices (FuxiCTR 1.x, hence BARS; DeepCTR);
            by default each has its own (FuxiCTR 2.x).
        reduction_ratio: r of SENET, whose squeezed size is F / r, rounded down, but at least 1.
        senet_activation: of SENET's field weights, `relu` or `sigmoid`.
        hidden: sizes of the MLP's layers; `()` is the paper's shallow form, the sum of all products' entries.
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range; `build`: fewer than two fields.

    >>> sum(p.numel() for p in FiBiNET(bilinear="all", hidden=()).build(Layout.of_sizes([3, 4])).parameters())
    282
    """

    embedding_dim: int = 10
    bilinear: BilinearKind = "interaction"
    shared_bilinear: bool = False
    reduction_ratio: float = 3.0
    senet_activation: SENetActivation = "relu"
    hidden: tuple[int, ...] = (400, 400, 400)
    mlp_dropout: float = 0.0
    batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("bilinear", self.bilinear, BilinearKind)
        check_choice("senet_activation", self.senet_activation, SENetActivation)
        if self.hidden != ():
            check_sizes("hidden", self.hidden)
        check_shares(mlp_dropout=self.mlp_dropout)
        check_positive(reduction_ratio=self.reduction_ratio)

    def build(self, layout: Layout) -> "FiBiNETNetwork":
        """A network with fresh weights."""
        check_fields(layout, 2, "FiBiNET", "multiplies pairs of fields")
        fields, dim = layout.num_fields, self.embedding_dim
        mlp = None
        if self.hidden:
            inputs = fields * (fields - 1) * dim
            mlp = MLP(inputs, self.hidden, outputs=1, dropout=self.mlp_dropout, batch_norm=self.batch_norm)
        return FiBiNETNetwork(
            embedding=self.make_embedding(layout),
            first_order=FirstOrder(layout, bias=mlp is None),
            senet=SENet(fields, reduction_ratio=self.reduction_ratio, activation=self.senet_activation),
            bilinear=BilinearInteraction(fields, dim, self.bilinear),
            weighted_bilinear=None if self.shared_bilinear else BilinearInteraction(fields, dim, self.bilinear),
            mlp=mlp,
        )


class FiBiNETNetwork(nn.Module):
    """`logit = first_order + mlp(c)`, `c` the entries of `p_ij = (x_i W) * x_j` and `q_ij = (v_i W') * v_j`, i < j.

    `x_f` is field f's vector (times its value), `v = senet(x)` the fields weighted by SENET. Without an MLP the logit
    is `first_order + the sum of c`, the paper's shallow form. The logit has one bias: the MLP's, or without an
    MLP the first-order term's.

    Shape:
        forward: Batch of B rows -> [B]. `field_weights` -> [B, F].
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        first_order: FirstOrder,
        senet: SENet,
        bilinear: BilinearInteraction,
        weighted_bilinear: BilinearInteraction | None,
        mlp: MLP | None,
    ) -> None:
        super().__init__()
        self.embedding, self.first_order, self.senet = embedding, first_order, senet
        self.bilinear, self.weighted_bilinear, self.mlp = bilinear, weighted_bilinear, mlp

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        x_BFD = self.embedding(batch)
        weighted = self.bilinear if self.weighted_bilinear is None else self.weighted_bilinear
        c = torch.cat([self.bilinear(x_BFD), weighted(self.senet(x_BFD))], 1).flatten(1)
        deep_B = c.sum(1) if self.mlp is None else self.mlp(c).squeeze(1)
        logit_B: Tensor = self.first_order(batch) + deep_B
        return logit_B

    def field_weights(self, batch: Batch) -> Tensor:
        """SENET's weight of every field of every row [B, F]."""
        return self.senet.field_weights(self.embedding(batch))
