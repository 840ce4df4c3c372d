"""Logistic regression over all features.

Letters: B batch, F fields, R rows of the shared table.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.config import Settings
from fieldwise.errors import ConfigError
from fieldwise.layers import FirstOrder
from fieldwise.layers.candidates import Part, first_order_candidates
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults


@register_model("lr")
@dataclass(frozen=True, kw_only=True)
class LR(Settings):
    """Settings of LR; it has none.

    >>> LR().build(Layout.of_sizes([3, 4]))
    LRNetwork(
      (first_order): FirstOrder(
        (embedding): FieldEmbedding(
          (pooling): BagPooling()
        )
      )
    )
    """

    data_defaults = DataDefaults(
        prior=0.0,
        rate=0.01,
        small_table_rows=20_000,
        small_table_rate=0.003,
        unknown_share=0.0,
        solved_exactly=True,
        lazy_rate=0.003,
    )

    def build(self, layout: Layout) -> "LRNetwork":
        """A network with fresh weights (all zero)."""
        if layout.num_fields == 0:
            raise ConfigError(
                "LR weighs fields and needs at least 1 field, found none: add fields to the schema"
            )
        return LRNetwork(layout)


class LRNetwork(nn.Module):
    """`logit = w0 + sum_f w_f(x)` (as in Richardson et al., WWW 2007, for click-through rates).

    `w_f(x)` is the weight of field f's category, the weight times the value of a number, or the
    pooled weights of a bag.

    Parameters: `first_order.embedding.weight` [R, 1], `first_order.bias`.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.first_order = FirstOrder(layout)

    def forward(self, batch: Batch) -> Tensor:
        return self.first_order(batch)

    def score_candidates(self, context: Part, candidates: Part) -> Tensor:
        """Logits [N]; the context's sum is taken once."""
        return first_order_candidates(self.first_order, context, candidates)

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.first_order.terms(batch), {}
