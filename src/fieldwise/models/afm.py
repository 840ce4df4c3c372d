"""Attentional Factorization Machine (Xiao et al., IJCAI 2017, arXiv 1708.04617), by paper and public code.

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, A attention size, R rows of the
shared table.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers import FirstOrder, PairAttention
from fieldwise.layers.attention import StartOfB, StartOfH
from fieldwise.layers.candidates import Part, first_order_candidates
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, Rate, Size, choices
from fieldwise.ops.pair_attention import pair_attention_candidates

Variant = Literal["paper", "authors", "fuxictr", "attention", "pooled"]
InitialP = Literal["ones", "xavier", "standard_normal"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the variants: where `dropout` is applied, and initial values."""

    on_pairs: bool = False
    on_attention: bool = False
    initial_p: InitialP = "ones"
    start_of_h: StartOfH = "xavier"
    start_of_b: StartOfB = "zeros"


VARIANTS: dict[Variant, _Choices] = {
    # NOTE[DIFF]: the paper gives no initial values; with p of ones the model starts as an FM of
    # averaged pairs.
    "paper": _Choices(on_pairs=True),
    # NOTE[DIFF]: the authors' code of 2017 with the rates of their commands, which drop no
    # attention weights. Since February 2018 theirs takes the softmax over an axis of one, so that
    # every weight is 1; here it runs over the pairs in every variant.
    "authors": _Choices(start_of_h="standard_normal", start_of_b="xavier"),
    "fuxictr": _Choices(on_attention=True, initial_p="xavier"),
    "attention": _Choices(on_attention=True),
    "pooled": _Choices(),
}


@register_model("afm")
@dataclass(frozen=True, kw_only=True)
class AFM(EmbeddingSettings):
    """Settings of AFM. Squared L2 on W alone, as in the paper, is applied by the trainer, under the name `attention.W`.

    A setting whose default is None takes the variant's value.

    Args:
        variant: `paper`, `authors` (their code), `fuxictr` (the code of the BARS runs), or ours:
            `attention` and `pooled`, with the initial values of `paper`. It chooses the places of
            dropout and the initial p, h and b.
        attention_dim: A.
        dropout: share dropped of the pooled vector's entries, and also of the products' entries
            (`paper`) or of the attention weights (`fuxictr`, `attention`).
        pair_dropout: share dropped of the products' entries; `dropout` or 0 by the variant if
            omitted.
        attention_dropout: share dropped of the attention weights; `dropout` or 0 by the variant if
            omitted.
        pooled_dropout: share dropped of the pooled vector's entries; `dropout` if omitted.
        initial_p: initial values of p: `ones`, `xavier`, a normal of variance 2 / (D + 1)
            (`fuxictr`), or `standard_normal`, N(0, 1).

    >>> sum(p.numel() for p in AFM(embedding_dim=10, attention_dim=8).build(Layout.of_sizes([3, 4])).parameters())
    184
    >>> AFM(variant="fuxictr", dropout=0.5).build(Layout.of_sizes([3, 4])).attention.attention_dropout
    0.5
    >>> network = AFM(pair_dropout=0.5).build(Layout.of_sizes([3, 4]))  # of the products alone
    >>> network.attention.pair_dropout, network.pooled_dropout
    (0.5, 0.0)
    """

    data_defaults = DataDefaults(
        prior=120.0,
        of_pairs=True,
        rate=0.015,
        small_table_rows=20_000,
        small_table_rate=0.006,
        starts_from_lr=True,
        lazy_prior=360.0,
        lazy_rate=0.006,
        settings={"variant": "pooled", "dropout": 0.2},
    )

    variant: Variant = "paper"
    attention_dim: Size = 16
    dropout: Rate = 0.0
    pair_dropout: Rate | None = None
    attention_dropout: Rate | None = None
    pooled_dropout: Rate | None = None
    initial_p: InitialP | None = None

    def build(self, layout: Layout) -> "AFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 2, "attends to pairs of fields")
        return AFMNetwork(self, layout)


class AFMNetwork(nn.Module):
    """`logit = first_order + p . sum_{i<j} a_ij (x_i * x_j)`, `a = softmax over pairs of h . relu(W (x_i * x_j) + b)`.

    Equations 2 to 6 of the paper; x_f is field f's vector, for a numeric field times its value.
    Parameters, by which L2 and warm starts name them: `embedding.weight` [R, D],
    `first_order.embedding.weight` [R, 1], `first_order.bias`, `attention.W` [A, D], `attention.b`
    [A], `attention.h` [A], `p` [D].

    Shape:
        forward: Batch of B rows -> [B]. `logit_terms` -> its `attention` [B, P], pairs as
            `fieldwise.ops.pair_indices` orders them.
    """

    pair_terms = True  # `logit_terms` has pairs: serving asks

    def __init__(self, settings: AFM, layout: Layout) -> None:
        super().__init__()
        chosen = choices(settings, VARIANTS[settings.variant])
        dim = settings.embedding_dim
        pair_dropout = settings.dropout if chosen.on_pairs else 0.0
        if settings.pair_dropout is not None:
            pair_dropout = settings.pair_dropout
        attention_dropout = settings.dropout if chosen.on_attention else 0.0
        if settings.attention_dropout is not None:
            attention_dropout = settings.attention_dropout
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout)
        self.attention = PairAttention(
            layout.num_fields,
            dim,
            settings.attention_dim,
            pair_dropout=pair_dropout,
            attention_dropout=attention_dropout,
            start_of_h=chosen.start_of_h,
            start_of_b=chosen.start_of_b,
        )
        self.pooled_dropout = (
            settings.dropout if settings.pooled_dropout is None else settings.pooled_dropout
        )
        self.p = nn.Parameter(torch.ones(dim))
        if chosen.initial_p == "xavier":
            nn.init.normal_(self.p, std=math.sqrt(2.0 / (dim + 1)))
        if chosen.initial_p == "standard_normal":
            nn.init.normal_(self.p)

    def forward(self, batch: Batch) -> Tensor:
        pooled_BD = self.attention(self.embedding(batch))
        pooled_BD = F.dropout(pooled_BD, self.pooled_dropout, self.training)
        return self.first_order(batch) + torch.mv(pooled_BD, self.p)

    def score_candidates(self, context: Part, candidates: Part) -> Tensor:
        """Logits [N]; the attention over pairs inside the context is computed once."""
        x_CD = context.vectors(self.embedding)[0]
        x_NID = candidates.vectors(self.embedding)
        pooled_ND = pair_attention_candidates(
            x_CD, x_NID, self.attention.W, self.attention.b, self.attention.h
        )
        return first_order_candidates(self.first_order, context, candidates) + torch.mv(
            pooled_ND, self.p
        )

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x_BFD = self.embedding(batch)
        interactions = (x_BFD[:, self.attention.left] * x_BFD[:, self.attention.right]) @ self.p
        attention = self.attention.weights(x_BFD)
        added = {**self.first_order.terms(batch), "pairs": attention * interactions}
        return added, {"attention": attention, "interactions": interactions}
