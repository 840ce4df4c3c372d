"""Field-weighted Factorization Machine (Pan et al., WWW 2018, arXiv 1806.03514).

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, R rows of the shared table.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers import FirstOrder
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings
from fieldwise.ops import pair_indices

Linear = Literal["weights", "feature_vectors", "field_vectors"]


@register_model("fwfm")
@dataclass(frozen=True, kw_only=True)
class FwFM(EmbeddingSettings):
    """Settings of FwFM.

    Args:
        linear: the linear term: `weights`, one weight per feature (the paper's FwFM_LW);
            `feature_vectors`, a feature's vector times a second vector of its own (FwFM_FeLV);
            `field_vectors`, a feature's vector times a vector of its field (FwFM_FiLV).

    >>> sum(p.numel() for p in FwFM(embedding_dim=10).build(Layout.of_sizes([3, 4])).parameters())
    92
    """

    data_defaults = DataDefaults(std=0.05, prior=30.0, small_table_rows=0)

    linear: Linear = "field_vectors"

    def build(self, layout: Layout) -> "FwFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 2, "weighs pairs of fields")
        return FwFMNetwork(self, layout)


class FwFMNetwork(nn.Module):
    """`logit = linear + sum_{i<j} r_ij <x_i, x_j>`, with one strength r_ij for every pair of fields.

    The linear term, for a feature i with value x_i in field F(i):

        weights          w0 + sum_i w_i x_i
        feature_vectors  w0 + sum_i <v_i, w_i> x_i
        field_vectors    w0 + sum_i <v_i, w_F(i)> x_i

    r is initially 1, so training starts from an FM.

    NOTE[DIFF]: a bag is one feature whose vectors are pooled, so that its values do not interact;
    with `feature_vectors` its linear term is the product of two pooled vectors.

    Parameters: `embedding.weight` [R, D]; `r` [P], pairs as `fieldwise.ops.pair_indices` orders
    them; and `first_order.embedding.weight` [R, 1] with `first_order.bias`, or `bias` with
    `feature_vectors.weight` [R, D] or `field_vectors` [F, D].

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: FwFM, layout: Layout) -> None:
        super().__init__()
        self.num_fields = fields = layout.num_fields
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout) if settings.linear == "weights" else None
        self.feature_vectors = (
            settings.make_embedding(layout) if settings.linear == "feature_vectors" else None
        )
        self.field_vectors = None
        if settings.linear == "field_vectors":
            # Together the fields' vectors are a linear layer on all embeddings: Xavier
            # initialisation.
            start = math.sqrt(2.0 / (fields * settings.embedding_dim + 1))
            self.field_vectors = nn.Parameter(torch.randn(fields, settings.embedding_dim) * start)
        self.bias = nn.Parameter(torch.zeros(())) if self.first_order is None else None
        without_numbers = [
            float(f.kind == "value" and not f.piecewise)
            for f in layout.fields
            for _ in range(f.numbers)
        ]
        self.without_numbers = nn.Buffer(torch.tensor(without_numbers), persistent=False)
        left_P, right_P = pair_indices(fields)
        self.r = nn.Parameter(torch.ones(left_P.shape))
        self.upper = nn.Buffer(left_P * fields + right_P, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self.embedding(batch)
        # r as the upper triangle of a matrix: one product with it gives every x_i the weighted sum
        # of its partners.
        r_FF = (
            self.r.new_zeros(self.num_fields**2)
            .index_copy(0, self.upper, self.r)
            .view(self.num_fields, -1)
        )
        partners_BFD = torch.matmul(r_FF, x_BFD)
        pairs_B: Tensor = (x_BFD * partners_BFD).sum((1, 2))
        if self.first_order is not None:
            return pairs_B + self.first_order(batch)
        second = self.field_vectors
        if self.feature_vectors is not None:
            # A number's value, its pieces or a vector is already in x: the second vector comes
            # without it, so that it counts once.
            ones_BV = self.without_numbers.expand(batch.values.shape)
            second = self.feature_vectors(batch._replace(values=ones_BV))
        assert second is not None
        assert self.bias is not None
        return pairs_B + ((x_BFD * second).sum((1, 2)) + self.bias)
