"""AutoInt's attention layer, with options for every difference between its implementations.

Letters: B batch, F fields, D size of a field's vector, H heads, A total attention size of all heads.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers.mlp import linear
from fieldwise.ops import field_attention
from fieldwise.ops.interacting import Norm, finish_interacting, interacting
from fieldwise.ops.interacting import Residual as OpResidual

__all__ = ["InteractingLayer", "Norm", "Residual"]

Residual = Literal["projected", "where_sizes_differ", "none"]


class InteractingLayer(nn.Module):
    """Multi-head self-attention over the fields plus a residual (Song et al., CIKM 2019, Equations 5 to 8).

    The defaults are the paper's: no bias, no ReLU on projections, plain scores, a projected residual, ReLU at the end.

    Args:
        inputs: D.
        attention_dim: A, divisible by `heads`.
        relu_on_projections: ReLU on Q, K, V and the projected residual, as in the authors' code.
        bias: a bias in Q, K, V and the projected residual, as in the authors' code.
        scale: scores are divided by sqrt(A/H).
        residual: always `projected`, `where_sizes_differ` (the input itself if D equals A), or `none`.
        norm: LayerNorm of the sum `before_relu` or `after_relu`, or `none`.
        norm_epsilon: LayerNorm's epsilon; the default is PyTorch's.
        output_projection: a linear map of the concatenated heads, as in a transformer.
        output_relu: ReLU on the sum.
        dropout: dropout rate of the attention weights.

    Shape:
        forward: [B, F, D] -> [B, F, A]. `attend` also returns the weights [B, H, F, F].

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
        norm_epsilon: float = 1e-5,
        output_projection: bool = False,
        output_relu: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.scale, self.dropout = heads, scale, dropout
        self.relu_on_projections, self.residual, self.norm_place = relu_on_projections, residual, norm
        self.output_relu, self.norm_epsilon = output_relu, norm_epsilon
        self.projects_residual = residual == "projected" or (
            residual == "where_sizes_differ" and inputs != attention_dim
        )
        # One weight [3A or 4A, D] holds Wq, Wk, Wv and Wres in this order: one matrix product instead of four.
        self.parts = 4 if self.projects_residual else 3
        self.projection = nn.Linear(inputs, self.parts * attention_dim, bias=bias)
        for part in self.projection.weight.detach().chunk(self.parts):
            nn.init.xavier_normal_(part)
        if bias:
            nn.init.zeros_(self.projection.bias)
        self.output = linear(attention_dim, attention_dim, bias=bias) if output_projection else None
        self.norm = None if norm == "none" else nn.LayerNorm(attention_dim, eps=norm_epsilon)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The fields' new vectors [B, F, A]."""
        if self.output is None:
            identity: OpResidual = "none" if self.residual == "none" else "identity"
            return self._interact(x_BFD, self.parts, "projected" if self.projects_residual else identity, ends=True)
        y_BFA = self._interact(x_BFD, 3, "none", ends=False)
        if not self.projects_residual:
            return self._finish(y_BFA, x_BFD, ())
        weight_AD, bias_A = self._rows(slice(-self.output.in_features, None))
        residual_BFA = F.linear(x_BFD, weight_AD, bias_A)
        return self._finish(y_BFA, x_BFD, [torch.relu(residual_BFA) if self.relu_on_projections else residual_BFA])

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, Tensor]:
        """The fields' new vectors [B, F, A] and the attention weights [B, H, F, F]."""
        q, k, v, *rest = self._project(x_BFD)
        y_BFA, weights_BHFF = field_attention(
            q, k, v, heads=self.heads, scale=self.scale, dropout=self.dropout, training=self.training
        )
        return self._finish(y_BFA, x_BFD, rest), weights_BHFF

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Q, K, V and, if projected, the residual."""
        projected = self.projection(x)
        return (torch.relu(projected) if self.relu_on_projections else projected).chunk(self.parts, -1)

    def _finish(self, y: Tensor, x: Tensor, residual: Sequence[Tensor]) -> Tensor:
        """Apply to the concatenated heads y, as configured, output projection, residual, normalization and ReLU."""
        if self.output is not None:
            y = self.output(y)
        added = residual[0] if residual else None if self.residual == "none" else x
        return finish_interacting(
            y, added, self._normed(), norm=self.norm_place, output_relu=self.output_relu, epsilon=self.norm_epsilon
        )

    def _interact(self, x_BFD: Tensor, parts: int, residual: OpResidual, *, ends: bool) -> Tensor:
        """The op on the first `parts` projections; `ends`: including norm and ReLU."""
        rows = self.projection.out_features // self.parts * parts
        return interacting(
            x_BFD,
            *self._rows(slice(rows)),
            *(self._normed() if ends else (None, None)),
            heads=self.heads,
            residual=residual,
            norm=self.norm_place if ends else "none",
            relu_on_projections=self.relu_on_projections,
            scale=self.scale,
            output_relu=self.output_relu and ends,
            epsilon=self.norm_epsilon,
            dropout=self.dropout,
            training=self.training,
        )

    def _rows(self, rows: slice) -> tuple[Tensor, Tensor | None]:
        """Some rows of the projections' weight and bias."""
        bias = self.projection.bias
        return self.projection.weight[rows], None if bias is None else bias[rows]

    def _normed(self) -> tuple[Tensor | None, Tensor | None]:
        """LayerNorm's weight and bias."""
        return (None, None) if self.norm is None else (self.norm.weight, self.norm.bias)
