"""DCN V2, the improved Deep & Cross Network (Wang et al., WWW 2021, arXiv 2008.13535).

Letters: B batch, F fields, D embedding size, N = F * D, K experts, R rank of an expert.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers import CrossMatrix, CrossMixture, CrossVector, linear
from fieldwise.layers.activations import Activation
from fieldwise.layers.crosses import ExpertActivation, Gate
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    SMALL_MLP,
    DataDefaults,
    EmbeddingSettings,
    OptionalSizes,
    Rate,
    Size,
)

Structure = Literal["stacked", "parallel"]


@register_model("dcnv2")
@dataclass(frozen=True, kw_only=True)
class DCNv2(EmbeddingSettings):
    """Settings of DCN V2; the defaults are the paper's best for Criteo.

    Args:
        embedding_dim: D. The paper has 39 for Criteo and 30 for MovieLens-1M, by a formula of the
            vocabulary sizes.
        layers: number of cross layers.
        structure: `stacked`, the MLP reads the crossed vector; or `parallel`, it reads the fields.
        hidden: sizes of the MLP's layers; none, `()`, for the cross network alone (CrossNet V2, or
            CrossNet-Mix).
        rank: R, of each expert of a mixture of low-rank cross layers (DCN-Mix); None for full
            matrices.
        experts: K, if `rank` is given.
        gate: `softmax` over the experts, `sigmoid`, or `constant` 1, for two experts or more.
        expert_activation: g in the experts' low-rank space: `identity`, `tanh` (public code),
            `hard_tanh` or `relu`.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    >>> DCNv2(embedding_dim=4, hidden=(8,), rank=2, experts=3).build(Layout.of_sizes([3, 4])).cross[0].U.shape
    torch.Size([3, 8, 2])
    """

    data_defaults = DataDefaults(settings=SMALL_MLP)

    layers: Size = 2
    structure: Structure = "stacked"
    hidden: OptionalSizes = (768, 768)
    rank: Size | None = None
    experts: Size = 4
    gate: Gate = "softmax"
    expert_activation: ExpertActivation = "tanh"
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def build(self, layout: Layout) -> "DCNv2Network":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "crosses fields")
        cross: Callable[[int], CrossMatrix | CrossMixture] = CrossMatrix
        if self.rank is not None:
            low_rank = functools.partial(CrossMixture, rank=self.rank, experts=self.experts)
            cross = functools.partial(low_rank, gate=self.gate, activation=self.expert_activation)
        return DCNv2Network(self, layout, cross, self.structure, self.layers, self.hidden)


class DCNv2Network(nn.Module):
    """`logit = w . MLP(x_L) + b` (stacked) or `w . [x_L, MLP(x_0)] + b` (parallel).

    x_0 is all fields' vectors concatenated.

    Of L cross layers `x_{l+1} = x_0 * (W_l x_l + b_l) + x_l` (Equation 1), or mixtures of low-rank
    experts instead (Equations 2 to 4; see `CrossMixture`). Without an MLP, `logit = w . x_L + b`.

    Every layer has its own gates. The paper does not specify this: its G has no layer index, while
    U, V, C and b do. Popular public code shares one set of gates between all layers.

    NOTE[DIFF]: in the paper every field has its own size, and numbers enter x_0 directly. Here all
    fields have size D, and a number is its value times a learned vector.

    NOTE[DIFF]: the last unit has a bias, which the paper omits and every implementation has.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(
        self,
        settings: EmbeddingSettings,
        layout: Layout,
        cross: Callable[[int], CrossVector | CrossMatrix | CrossMixture],
        structure: Structure,
        layers: int,
        hidden: tuple[int, ...],
    ) -> None:
        super().__init__()
        inputs = layout.num_fields * settings.embedding_dim
        mlp = settings.make_mlp(inputs, None) if hidden else None
        crossed = 0 if hidden and structure == "stacked" else inputs
        self.embedding = settings.make_embedding(layout)
        self.cross = nn.ModuleList(cross(inputs) for _ in range(layers))
        self.mlp = mlp
        self.head = linear(crossed + sum(hidden[-1:]), 1)
        self.structure = structure

    def forward(self, batch: Batch) -> Tensor:
        x0_BN = x_BN = self.embedding(batch).flatten(1)
        for layer in self.cross:
            x_BN = layer(x0_BN, x_BN)
        if self.mlp is not None:
            x_BN = (
                self.mlp(x_BN)
                if self.structure == "stacked"
                else torch.cat([x_BN, self.mlp(x0_BN)], 1)
            )
        return self.head(x_BN).squeeze(1)
