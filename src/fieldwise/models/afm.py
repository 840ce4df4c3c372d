"""Attentional Factorization Machine (Xiao et al., IJCAI 2017, arXiv 1708.04617)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding, FirstOrder, PairAttention
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import check_at_least, check_choice, check_positive, check_shares

__all__ = ["AFM", "AFMNetwork"]

StartOfP = Literal["ones", "xavier"]


@dataclass(frozen=True, kw_only=True)
class AFM:
    """Settings of AFM. Squared L2 on W alone, as in the paper, is the trainer's, by the name `attention.W`.

    Args:
        embedding_dim: D.
        attention_dim: A.
        pair_dropout: share of the products' entries dropped (the paper's place for dropout).
        attention_dropout: share of the attention weights dropped (the authors' code, and BARS).
        pooled_dropout: share of the pooled vector's entries dropped (the authors' code, and BARS).
        start_of_p: p starts as `ones` (the authors' code: an FM of averaged pairs) or from `xavier`'s normal (BARS).
        embedding_std: deviation of the embeddings' starting values.

    Errors:
        ConfigError: a setting out of range; `build`: fewer than two fields.

    >>> sum(p.numel() for p in AFM(embedding_dim=10, attention_dim=8).build(Layout.of_sizes([3, 4])).parameters())
    184
    """

    embedding_dim: int = 16
    attention_dim: int = 16
    pair_dropout: float = 0.0
    attention_dropout: float = 0.0
    pooled_dropout: float = 0.0
    start_of_p: StartOfP = "ones"
    embedding_std: float = 0.01

    def __post_init__(self) -> None:
        check_at_least(1, embedding_dim=self.embedding_dim, attention_dim=self.attention_dim)
        check_shares(
            pair_dropout=self.pair_dropout,
            attention_dropout=self.attention_dropout,
            pooled_dropout=self.pooled_dropout,
        )
        check_choice("start_of_p", self.start_of_p, StartOfP)
        check_positive(embedding_std=self.embedding_std)

    def build(self, layout: Layout) -> "AFMNetwork":
        """A network with fresh weights."""
        if layout.num_fields < 2:
            raise ConfigError(f"AFM attends to pairs of fields and needs at least 2 fields, found {layout.num_fields}")
        return AFMNetwork(
            embedding=FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std),
            first_order=FirstOrder(layout),
            attention=PairAttention(
                layout.num_fields,
                self.embedding_dim,
                self.attention_dim,
                pair_dropout=self.pair_dropout,
                attention_dropout=self.attention_dropout,
            ),
            pooled_dropout=self.pooled_dropout,
            start_of_p=self.start_of_p,
        )


class AFMNetwork(nn.Module):
    """`logit = first_order + p . sum_{i<j} a_ij (x_i * x_j)`, `a = softmax over pairs of h . relu(W (x_i * x_j) + b)`.

    Parameters, by which L2 and warm starts name them: `embedding.weight` [R, D], `first_order.embedding.weight` [R, 1],
    `first_order.bias`, `attention.W` [A, D], `attention.b` [A], `attention.h` [A], `p` [D].

    Shape:
        forward: Batch of B rows -> [B]. `pair_weights` -> [B, P], pairs as `fieldwise.ops.pair_indices` orders them.
    """

    def __init__(
        self,
        *,
        embedding: FieldEmbedding,
        first_order: FirstOrder,
        attention: PairAttention,
        pooled_dropout: float = 0.0,
        start_of_p: StartOfP = "ones",
    ) -> None:
        super().__init__()
        self.embedding, self.first_order, self.attention = embedding, first_order, attention
        self.pooled_dropout = pooled_dropout
        dim = attention.W.shape[1]
        self.p = nn.Parameter(torch.ones(dim))
        if start_of_p == "xavier":
            nn.init.normal_(self.p, std=(2.0 / (dim + 1)) ** 0.5)

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        pooled_BD, _ = self.attention(self.embedding(batch))
        pooled_BD = F.dropout(pooled_BD, self.pooled_dropout, self.training)
        logit_B: Tensor = self.first_order(batch) + torch.mv(pooled_BD, self.p)
        return logit_B

    def pair_weights(self, batch: Batch) -> Tensor:
        """The attention weights of every row's pairs [B, P]."""
        weights_BP: Tensor = self.attention(self.embedding(batch))[1]
        return weights_BP
