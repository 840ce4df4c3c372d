"""Neural Factorization Machine (He & Chua, SIGIR 2017, arXiv 1708.05027).

Letters: B batch, F fields, D embedding size, E size of the last hidden layer (D if there is none).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers import FirstOrder
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, OptionalSizes, Rate, Size


@register_model("nfm")
@dataclass(frozen=True, kw_only=True)
class NFM(EmbeddingSettings):
    """Settings of NFM; the defaults are the paper's, with the hidden dropout that the authors used for Frappe.

    Args:
        hidden: sizes of the hidden layers; with none, `()`, the model is NFM-0, which is initially
            an FM (h is all ones).
        pooled_dropout: dropout rate of the pooled vector's entries.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the hidden units.
        batch_norm: BatchNorm of the pooled vector, and after each hidden layer's linear map.

    >>> sum(p.numel() for p in NFM(embedding_dim=10, hidden=(8,)).build(Layout.of_sizes([3, 4])).parameters())
    210
    """

    data_defaults = DataDefaults(
        settings={"embedding_dim": 16, "hidden": (128,), "pooled_dropout": 0.2, "batch_norm": False}
    )

    embedding_dim: Size = 64
    hidden: OptionalSizes = (64,)
    pooled_dropout: Rate = 0.5
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.2
    batch_norm: bool = True

    def build(self, layout: Layout) -> "NFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 2, "pools products of two fields")
        return NFMNetwork(self, layout)


class NFMNetwork(nn.Module):
    """`logit = first_order + h . MLP(sum_{i<j} x_i * x_j)`, where x_f is field f's vector (times its value).

    Equations 2 to 7 of the paper. The pooled vector passes BatchNorm (if any), then dropout, and
    every hidden layer is Linear, BatchNorm, ReLU, Dropout. The one bias of the output is the
    first-order term's w0.

    Parameters, by which L2 and warm starts name them: `embedding.weight` [R, D],
    `first_order.embedding.weight` [R, 1], `first_order.bias`, `pooled_norm.*`, `mlp.layers.*`, `h`
    [E].

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: NFM, layout: Layout) -> None:
        super().__init__()
        dim = settings.embedding_dim
        hidden = settings.hidden
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout)
        self.mlp = settings.make_mlp(dim, None)
        # With hidden layers h starts from Xavier's normal distribution, for one output.
        start_E = (
            torch.randn(hidden[-1]) * (2.0 / (hidden[-1] + 1)) ** 0.5 if hidden else torch.ones(dim)
        )
        self.h = nn.Parameter(start_E)
        self.pooled_norm = nn.BatchNorm1d(dim) if settings.batch_norm else None
        self.pooled_dropout = settings.pooled_dropout

    def forward(self, batch: Batch) -> Tensor:
        pooled_BD = bi_interaction(self.embedding(batch))
        if self.pooled_norm is not None:
            pooled_BD = self.pooled_norm(pooled_BD)
        pooled_BD = F.dropout(pooled_BD, self.pooled_dropout, self.training)
        return self.first_order(batch) + torch.mv(self.mlp(pooled_BD), self.h)


def bi_interaction(x_BFD: Tensor) -> Tensor:
    """Bi-Interaction pooling `sum_{i<j} x_i * x_j` in O(F D), as half of the squared sum minus the sum of squares.

    Equations 3 and 4 of the paper; the sum of its D entries is FM's second-order term.

    Shape:
        x_BFD: [B, F, D]; returns [B, D].

    >>> bi_interaction(torch.tensor([[[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]]]))
    tensor([[11.,  1.]])
    """
    return 0.5 * (x_BFD.sum(1).square() - x_BFD.square().sum(1))
