"""Deep & Cross Network (Wang et al., ADKDD 2017, arXiv 1708.05123).

Letters: B batch, F fields, D embedding size, N = F * D.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.layers import MLP, CrossVector, FieldEmbedding, linear
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import (
    check_at_least,
    check_fields,
    check_shares,
    check_sizes,
)
from fieldwise.models.settings import EmbeddingSettings

__all__ = ["DCN", "DCNNetwork"]


@dataclass(frozen=True, kw_only=True)
class DCN(EmbeddingSettings):
    """Settings of DCN; the defaults are the paper's best for Criteo.

    Args:
        embedding_dim: D. In the paper it depends on the field; see the network.
        layers: number of cross layers.
        hidden: sizes of the MLP's layers; none, `()`, for the cross network alone (CrossNet).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers.
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range; `build`: no field.

    >>> layout = Layout.of_sizes([3, 4])
    >>> sum(p.numel() for p in DCN(embedding_dim=10, layers=2, hidden=()).build(layout).parameters())
    171
    """

    layers: int = 6
    hidden: tuple[int, ...] = (1024, 1024)
    mlp_dropout: float = 0.0
    batch_norm: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, layers=self.layers)
        if self.hidden != ():
            check_sizes("hidden", self.hidden)
        check_shares(mlp_dropout=self.mlp_dropout)

    def build(self, layout: Layout) -> "DCNNetwork":
        """A network with fresh weights."""
        check_fields(layout, 1, "DCN", "crosses fields")
        inputs = layout.num_fields * self.embedding_dim
        mlp = MLP(inputs, self.hidden, dropout=self.mlp_dropout, batch_norm=self.batch_norm) if self.hidden else None
        return DCNNetwork(
            embedding=self.make_embedding(layout),
            cross=[CrossVector(inputs) for _ in range(self.layers)],
            mlp=mlp,
            head=linear(inputs + sum(self.hidden[-1:]), 1),
        )


class DCNNetwork(nn.Module):
    """`logit = w . [x_L, MLP(x_0)] + b`, where x_L is the cross of x_0 (Equations 2 to 5).

    x_0 is all fields' vectors concatenated.

    Of L cross layers `x_{l+1} = x_0 (x_l . w_l) + b_l + x_l`. So x_L minus the sum of all b_l is x_0 times one number
    per row, a polynomial of degree L in x_0; DCN V2 lifts this limit.

    NOTE[DIFF]: in the paper every field has its own size, 6 times the fourth root of its number of categories, and
    numbers enter x_0 directly. Here all fields have size D, and a number is its value times a learned vector.

    NOTE[DIFF]: the last unit has a bias, which the paper's Equation 5 omits and every implementation has.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(
        self, *, embedding: FieldEmbedding, cross: list[CrossVector], mlp: MLP | None, head: nn.Linear
    ) -> None:
        super().__init__()
        self.embedding, self.cross, self.mlp, self.head = embedding, nn.ModuleList(cross), mlp, head

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        x0_BN = x_BN = self.embedding(batch).flatten(1)
        for layer in self.cross:
            x_BN = layer(x0_BN, x_BN)
        if self.mlp is not None:
            x_BN = torch.cat([x_BN, self.mlp(x0_BN)], 1)
        logit_B: Tensor = self.head(x_BN).squeeze(1)
        return logit_B
