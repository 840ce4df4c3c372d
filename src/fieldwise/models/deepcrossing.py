"""Deep Crossing (Shan et al., KDD 2016): residual units on the stacked embeddings.

Letters: B batch, F fields, D embedding size, S = F * D size of the stacked vector, H inner size of
a unit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.layers import linear
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, Rate, Size, Sizes


@register_model("deepcrossing")
@dataclass(frozen=True, kw_only=True)
class DeepCrossing(EmbeddingSettings):
    """Settings of Deep Crossing; the defaults are those of the authors' published CNTK script.

    Args:
        hidden: inner sizes of the residual units, one unit each.
        embedding_relu: `relu(x_f + b_f)` of every field's vector, with a learned b_f (the paper),
            or x_f itself (BARS).
        unit_dropout: dropout rate of every unit's outputs (BARS).
        batch_norm: BatchNorm of every unit's sum, before its ReLU (BARS).

    >>> sum(p.numel() for p in DeepCrossing(embedding_dim=5, hidden=(8,)).build(Layout.of_sizes([3, 4])).parameters())
    234
    """

    data_defaults = DataDefaults(
        settings={"embedding_dim": 16, "hidden": (128,), "unit_dropout": 0.2}
    )

    embedding_dim: Size = 128
    hidden: Sizes = (512, 512, 256, 128, 64)
    embedding_relu: bool = True
    unit_dropout: Rate = 0.0
    batch_norm: bool = False

    def build(self, layout: Layout) -> "DeepCrossingNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "reads fields")
        return DeepCrossingNetwork(self, layout)


class ResidualUnit(nn.Module):
    """`relu(x + W1 relu(W0 x + b0) + b1)`: the input is added before the last ReLU.

    Args:
        inputs: S, also the size of the output.
        hidden: H.
        dropout: dropout rate of the outputs.
        batch_norm: BatchNorm of the sum, before its ReLU.

    Shape:
        forward: [B, S] -> [B, S].

    >>> ResidualUnit(6, 4)(torch.ones(2, 6)).shape
    torch.Size([2, 6])
    """

    def __init__(
        self, inputs: int, hidden: int, *, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        super().__init__()
        self.inner = linear(inputs, hidden)
        self.outer = linear(hidden, inputs)
        self.norm = nn.BatchNorm1d(inputs) if batch_norm else None
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BS: Tensor) -> Tensor:
        y_BS = x_BS + self.outer(torch.relu(self.inner(x_BS)))
        if self.norm is not None:
            y_BS = self.norm(y_BS)
        return self.drop(torch.relu(y_BS))


class DeepCrossingNetwork(nn.Module):
    """`logit = w . units(flatten(relu(x + b))) + c`: the paper's embedding, stacking, residual units and scoring layer.

    NOTE[DIFF]: in the paper, numbers and features of few dimensions are stacked directly, and only
    the others are embedded; here every field has a vector of size D, and a numeric field's is its
    value times a learned one.

    Parameters, by which L2 and warm starts name them: `embedding.weight` [R, D], `embedding_bias`
    [F, D], `units.i.inner.*`, `units.i.outer.*`, `head.*`.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: DeepCrossing, layout: Layout) -> None:
        super().__init__()
        shape = (layout.num_fields, settings.embedding_dim)
        inputs = layout.num_fields * settings.embedding_dim
        dropout = settings.unit_dropout
        batch_norm = settings.batch_norm
        self.embedding = settings.make_embedding(layout)
        self.units = nn.Sequential(
            *(
                ResidualUnit(inputs, n, dropout=dropout, batch_norm=batch_norm)
                for n in settings.hidden
            )
        )
        self.head = linear(inputs, 1)
        self.embedding_bias = nn.Parameter(torch.zeros(shape)) if settings.embedding_relu else None

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self.embedding(batch)
        if self.embedding_bias is not None:
            x_BFD = torch.relu(x_BFD + self.embedding_bias)
        return self.head(self.units(x_BFD.flatten(1))).squeeze(1)
