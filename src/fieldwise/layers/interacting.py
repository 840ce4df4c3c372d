"""AutoInt's interacting layer, with every choice that its implementations disagree about.

Letters: B batch, F fields, D size of a field's vector, H heads, A attention size of all heads together.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear
from fieldwise.ops import field_attention

__all__ = ["InteractingLayer", "Norm", "Residual"]

Residual = Literal["projected", "where_sizes_differ", "none"]
Norm = Literal["none", "before_relu", "after_relu"]


class InteractingLayer(nn.Module):
    """Multi-head self-attention over the fields plus a residual (Song et al., CIKM 2019, Equations 5 to 8).

    The defaults are the paper's: no bias, no ReLU on projections, plain scores, a projected residual, ReLU at the end.

    Args:
        inputs: D.
        attention_dim: A, divisible by `heads`.
        relu_on_projections: ReLU on Q, K, V and the projected residual, as the authors' code has it.
        bias: a bias in Q, K, V and the projected residual, as the authors' code has it.
        scale: scores are divided by sqrt(A/H).
        residual: `projected` always, `where_sizes_differ` (the input itself where D equals A), or `none`.
        norm: LayerNorm of the sum `before_relu` or `after_relu`, or `none`. NOTE[DIFF]: it adds 1e-5 to the variance
            as PyTorch does, where the authors' code adds 1e-8, with which a nearly constant vector's gradient explodes.
        output_projection: the joined heads pass one more linear map, as in a transformer.
        output_relu: ReLU on the sum.
        dropout: share of the attention weights dropped.

    Shape:
        forward: [B, F, D] -> [B, F, A]. `attend` also gives the weights [B, H, F, F].

    >>> InteractingLayer(8, 6, 2)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 3, 6])
    """

    def __init__(
        self,
        inputs: int,
        attention_dim: int,
        heads: int,
        *,
        relu_on_projections: bool = False,
        bias: bool = False,
        scale: bool = False,
        residual: Residual = "projected",
        norm: Norm = "none",
        output_projection: bool = False,
        output_relu: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.dropout = heads, scale, dropout
        self.relu_on_projections, self.residual, self.norm_place = relu_on_projections, residual, norm
        self.output_relu = output_relu
        self.projects_residual = residual == "projected" or (
            residual == "where_sizes_differ" and inputs != attention_dim
        )
        # One weight [3A or 4A, D] holds Wq, Wk, Wv and Wres in this order: one product instead of four.
        self.parts = 4 if self.projects_residual else 3
        self.projection = nn.Linear(inputs, self.parts * attention_dim, bias=bias)
        for part in self.projection.weight.detach().chunk(self.parts):
            nn.init.xavier_normal_(part)
        if bias:
            nn.init.zeros_(self.projection.bias)
        self.output = linear(attention_dim, attention_dim, bias=bias) if output_projection else None
        self.norm = None if norm == "none" else nn.LayerNorm(attention_dim)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The fields' new vectors [B, F, A]."""
        return self.attend(x_BFD)[0]

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, Tensor]:
        """The fields' new vectors [B, F, A] and the attention weights [B, H, F, F]."""
        projected = self.projection(x_BFD)
        if self.relu_on_projections:
            projected = torch.relu(projected)
        q, k, v, *rest = projected.chunk(self.parts, 2)
        y_BFA, weights_BHFF = field_attention(
            q, k, v, heads=self.heads, scale=self.scale, dropout=self.dropout, training=self.training
        )
        if self.output is not None:
            y_BFA = self.output(y_BFA)
        if self.projects_residual:
            y_BFA = y_BFA + rest[0]
        elif self.residual != "none":
            y_BFA = y_BFA + x_BFD
        if self.norm is not None and self.norm_place == "before_relu":
            y_BFA = self.norm(y_BFA)
        if self.output_relu:
            y_BFA = torch.relu(y_BFA)
        if self.norm is not None and self.norm_place == "after_relu":
            y_BFA = self.norm(y_BFA)
        return y_BFA, weights_BHFF
