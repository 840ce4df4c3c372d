"""Factorization Machine (Rendle, ICDM 2010)."""

from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import check_at_least, check_positive
from fieldwise.ops import fm_second_order

__all__ = ["FM", "FMNetwork"]


@dataclass(frozen=True, kw_only=True)
class FM:
    """Settings of FM.

    Args:
        embedding_dim: D.
        embedding_std: deviation of the embeddings' starting values.

    Errors:
        ConfigError: a setting out of range.

    >>> sum(p.numel() for p in FM(embedding_dim=10).build(Layout.of_sizes([3, 4])).parameters())
    78
    """

    embedding_dim: int = 16
    embedding_std: float = 0.01

    def __post_init__(self) -> None:
        check_at_least(1, embedding_dim=self.embedding_dim)
        check_positive(embedding_std=self.embedding_std)

    def build(self, layout: Layout) -> "FMNetwork":
        """A network with fresh weights."""
        return FMNetwork(FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std), FirstOrder(layout))


class FMNetwork(nn.Module):
    """`logit = first_order + sum_{i<j} <x_i, x_j>`, where x_f is field f's vector (times its value).

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, embedding: FieldEmbedding, first_order: FirstOrder) -> None:
        super().__init__()
        self.embedding, self.first_order = embedding, first_order

    def forward(self, batch: Batch) -> Tensor:
        """The logit [B]."""
        logit_B: Tensor = self.first_order(batch) + fm_second_order(self.embedding(batch))
        return logit_B
