"""Factorization Machine (Rendle, ICDM 2010).

Letters: B batch, F fields, D embedding size, R rows of the shared table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.layers import FirstOrder
from fieldwise.layers.candidates import Part, first_order_candidates
from fieldwise.layers.embedding import Assembled
from fieldwise.layout import Batch, Layout, check_batch
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings
from fieldwise.ops import fm_second_order
from fieldwise.ops.fm import fm_logit, fm_second_order_candidates


@register_model("fm")
@dataclass(frozen=True, kw_only=True)
class FM(EmbeddingSettings):
    """Settings of FM.

    >>> sum(p.numel() for p in FM(embedding_dim=10).build(Layout.of_sizes([3, 4])).parameters())
    78
    """

    data_defaults = DataDefaults(
        std=0.05,
        prior=30.0,
        small_table_rows=0,
        starts_from_lr=True,
        lazy_std=0.01,
        lazy_prior=90.0,
    )

    def build(self, layout: Layout) -> "FMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "multiplies fields")
        return FMNetwork(self, layout)


class FMNetwork(nn.Module):
    """`logit = first_order + sum_{i<j} <x_i, x_j>` (Equation 1), in O(F D) (Lemma 3.1).

    x_f is field f's vector: of its category, of its number times the number, or of its bag, pooled.

    NOTE[DIFF]: the paper sums over all pairs of features. A bag is pooled to one vector here, as in
    every model, so that its values do not interact.

    Parameters: `embedding.weight` [R, D], `first_order.embedding.weight` [R, 1],
    `first_order.bias`.

    Shape:
        forward: Batch of B rows -> [B].
    """

    pair_terms = True  # `logit_terms` has pairs: serving asks
    reads_rows = True  # in one op, without the fields' vectors: integrated gradients ask

    def __init__(self, settings: FM, layout: Layout) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout)
        # Categorical fields only, in the layout's order: the logit is computed directly from the
        # tables.
        self.ids_alone = all(f.kind == "id" for f in layout.fields)

    def forward(self, batch: Batch) -> Tensor:
        first = self.first_order
        lazy = torch.is_grad_enabled() and (self.embedding.sparse or first.embedding.sparse)
        if self.ids_alone and not lazy:
            if not isinstance(batch, Assembled):
                check_batch(batch, self.embedding.layout)
            logit_B = fm_logit(self.embedding.weight, first.embedding.weight, batch.ids)
            return logit_B if first.bias is None else logit_B + first.bias
        return torch.add(first(batch), fm_second_order(self.embedding(batch)))

    def score_candidates(self, context: Part, candidates: Part) -> Tensor:
        """Logits [N]; the context's sums are taken once."""
        x_CD = context.vectors(self.embedding)[0]
        x_NID = candidates.vectors(self.embedding)
        first_N = first_order_candidates(self.first_order, context, candidates)
        return first_N + fm_second_order_candidates(x_CD, x_NID)

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x_BFD = self.embedding(batch)
        left, right = torch.triu_indices(x_BFD.shape[1], x_BFD.shape[1], 1, device=x_BFD.device)
        return {
            **self.first_order.terms(batch),
            "pairs": (x_BFD[:, left] * x_BFD[:, right]).sum(2),
        }, {}
