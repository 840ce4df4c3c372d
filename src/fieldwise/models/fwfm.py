"""Field-weighted Factorization Machine (Pan et al., WWW 2018, arXiv 1806.03514).

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, R rows of the shared table.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import check_choice, check_fields
from fieldwise.models.settings import EmbeddingSettings
from fieldwise.ops import pair_indices

__all__ = ["FwFM", "FwFMNetwork"]

Linear = Literal["weights", "feature_vectors", "field_vectors"]


@dataclass(frozen=True, kw_only=True)
class FwFM(EmbeddingSettings):
    """Settings of FwFM.

    Args:
        embedding_dim: D.
        linear: the linear term: `weights`, one weight per feature (the paper's FwFM_LW); `feature_vectors`, a feature's
            vector times a second vector of its own (FwFM_FeLV); `field_vectors`, a feature's vector times a vector of
            its field (FwFM_FiLV).
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range; `build`: fewer than two fields.

    >>> sum(p.numel() for p in FwFM(embedding_dim=10).build(Layout.of_sizes([3, 4])).parameters())
    92
    """

    linear: Linear = "field_vectors"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("linear", self.linear, Linear)

    def build(self, layout: Layout) -> "FwFMNetwork":
        """A network with fresh weights."""
        check_fields(layout, 2, "FwFM", "weighs pairs of fields")
        fields, dim, std = layout.num_fields, self.embedding_dim, self.embedding_std
        # Together the fields' vectors are a linear layer on all embeddings: Xavier initialisation.
        start = math.sqrt(2.0 / (fields * dim + 1))
        return FwFMNetwork(
            num_fields=fields,
            embedding=FieldEmbedding(layout, dim, std=std),
            first_order=FirstOrder(layout) if self.linear == "weights" else None,
            feature_vectors=FieldEmbedding(layout, dim, std=std) if self.linear == "feature_vectors" else None,
            field_vectors=torch.randn(fields, dim) * start if self.linear == "field_vectors" else None,
        )


class FwFMNetwork(nn.Module):
    """`logit = linear + sum_{i<j} r_ij <x_i, x_j>`, with one strength r_ij for every pair of fields.

    The linear term, for a feature i with value x_i in field F(i):

        weights          w0 + sum_i w_i x_i
        feature_vectors  w0 + sum_i <v_i, w_i> x_i
        field_vectors    w0 + sum_i <v_i, w_F(i)> x_i

    r is initially 1, so training starts from an FM.

    NOTE[DIFF]: a bag is one feature whose vectors are pooled, so that its values do not interact; with
    `feature_vectors` its linear term is the product of two pooled vectors.

    Parameters: `embedding.weight` [R, D]; `r` [P], pairs as `fieldwise.ops.pair_indices` orders them; and
    `first_order.embedding.weight` [R, 1] with `first_order.bias`, or `bias` with `feature_vectors.weight` [R, D] or
    `field_vectors` [F, D].

    Shape:
        forward: Batch of B rows -> [B].
    """

    upper: Tensor

    def __init__(
        self,
        *,
        num_fields: int,
        embedding: FieldEmbedding,
        first_order: FirstOrder | None = None,
        feature_vectors: FieldEmbedding | None = None,
        field_vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.num_fields, self.embedding = num_fields, embedding
        self.first_order, self.feature_vectors = first_order, feature_vectors
        self.field_vectors = None if field_vectors is None else nn.Parameter(field_vectors)
        self.bias = nn.Parameter(torch.zeros(())) if first_order is None else None
        left_P, right_P = pair_indices(num_fields)
        self.r = nn.Parameter(torch.ones(left_P.shape))
        self.register_buffer("upper", left_P * num_fields + right_P, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        x_BFD = self.embedding(batch)
        # r as the upper triangle of a matrix: one product with it gives every x_i the weighted sum of its partners.
        r_FF = self.r.new_zeros(self.num_fields**2).index_copy(0, self.upper, self.r).view(self.num_fields, -1)
        partners_BFD = torch.matmul(r_FF, x_BFD)
        pairs_B: Tensor = (x_BFD * partners_BFD).sum((1, 2))
        return pairs_B + self._linear(batch, x_BFD)

    def _linear(self, batch: Batch, x_BFD: Tensor) -> Tensor:
        if self.first_order is not None:
            logit_B: Tensor = self.first_order(batch)
            return logit_B
        second = self.field_vectors
        if self.feature_vectors is not None:
            # A number's value is already in x: the second vector comes without it, so that it counts once.
            second = self.feature_vectors(batch._replace(values=torch.ones_like(batch.values)))
        assert second is not None
        assert self.bias is not None
        return (x_BFD * second).sum((1, 2)) + self.bias
