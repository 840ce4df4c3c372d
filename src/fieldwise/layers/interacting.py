"""AutoInt's attention layer, with options for every difference between its implementations.

Letters: B batch, F fields, D size of a field's vector, H heads, A total attention size of all heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layers.mlp import linear
from fieldwise.ops import field_attention
from fieldwise.ops.interacting import Norm, Residual, finish_interacting, interacting

__all__ = ["InteractingLayer", "InteractingOptions", "Norm"]


@dataclass(frozen=True, kw_only=True)
class InteractingOptions:
    """The differences between AutoInt's implementations in a layer; the defaults are the paper's.

    Args:
        relu_on_projections: ReLU on Q, K, V and the projected residual.
        bias: a bias in these projections.
        scale: scores are divided by sqrt(A/H).
        projects_residual: whether the residual is projected where sizes are equal too.
        norm: LayerNorm of the sum, `after_relu` or `before_relu`, with `norm_epsilon`; or `none`.
        norm_epsilon: LayerNorm's epsilon.
        output_projection: a linear map of the concatenated heads.
        output_relu: ReLU on the sum.
    """

    relu_on_projections: bool = False
    bias: bool = False
    scale: bool = False
    projects_residual: bool = True
    norm: Norm = "none"
    norm_epsilon: float = 1e-5
    output_projection: bool = False
    output_relu: bool = True


PAPER = InteractingOptions()


class InteractingLayer(nn.Module):
    """Multi-head self-attention over the fields plus a residual (Song et al., CIKM 2019, Equations 5 to 8).

    The paper's has no bias, no ReLU on projections, plain scores, a projected residual and ReLU at the end.

    Args:
        inputs: D.
        attention_dim: A, divisible by `heads`.
        heads: H.
        options: differences from the paper's layer.
        dropout: dropout rate of the attention weights.

    Shape:
        forward: [B, F, D] -> [B, F, A]. `attend` also returns the weights [B, H, F, F].

    >>> InteractingLayer(8, 6, 2)(torch.ones(5, 3, 8)).shape
    torch.Size([5, 3, 6])
    """

    def __init__(
        self, inputs: int, attention_dim: int, heads: int, options: InteractingOptions = PAPER, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.options, self.dropout = heads, options, dropout
        self.projects_residual = options.projects_residual or inputs != attention_dim
        # One weight [3A or 4A, D] holds Wq, Wk, Wv and Wres in this order: one matrix product instead of four.
        self.parts = 4 if self.projects_residual else 3
        self.projection = nn.Linear(inputs, self.parts * attention_dim, bias=options.bias)
        for part in self.projection.weight.detach().chunk(self.parts):
            nn.init.xavier_normal_(part)
        if options.bias:
            nn.init.zeros_(self.projection.bias)
        self.output = linear(attention_dim, attention_dim, bias=options.bias) if options.output_projection else None
        self.norm = None if options.norm == "none" else nn.LayerNorm(attention_dim, eps=options.norm_epsilon)

    def forward(self, x_BFD: Tensor) -> Tensor:
        """The fields' new vectors [B, F, A]."""
        if self.output is None:
            return self._interact(x_BFD, self.parts, "projected" if self.projects_residual else "identity", ends=True)
        y_BFA = self._interact(x_BFD, 3, "none", ends=False)
        if not self.projects_residual:
            return self._finish(y_BFA, x_BFD, ())
        weight_AD, bias_A = self._rows(slice(-self.output.in_features, None))
        residual_BFA = F.linear(x_BFD, weight_AD, bias_A)
        if self.options.relu_on_projections:
            residual_BFA = torch.relu(residual_BFA)
        return self._finish(y_BFA, x_BFD, [residual_BFA])

    def attend(self, x_BFD: Tensor) -> tuple[Tensor, Tensor]:
        """The fields' new vectors [B, F, A] and the attention weights [B, H, F, F]."""
        projected = self.projection(x_BFD)
        projected = torch.relu(projected) if self.options.relu_on_projections else projected
        q, k, v, *rest = projected.chunk(self.parts, -1)
        y_BFA, weights_BHFF = field_attention(
            q, k, v, heads=self.heads, scale=self.options.scale, dropout=self.dropout, training=self.training
        )
        return self._finish(y_BFA, x_BFD, rest), weights_BHFF

    def _finish(self, y: Tensor, x: Tensor, residual: Sequence[Tensor]) -> Tensor:
        """Apply to the concatenated heads y, as configured, output projection, residual, normalization and ReLU."""
        if self.output is not None:
            y = self.output(y)
        added, chosen = residual[0] if residual else x, self.options
        return finish_interacting(
            y, added, self._normed(), norm=chosen.norm, output_relu=chosen.output_relu, epsilon=chosen.norm_epsilon
        )

    def _interact(self, x_BFD: Tensor, parts: int, residual: Residual, *, ends: bool) -> Tensor:
        """The op on the first `parts` projections; `ends`: including norm and ReLU."""
        rows, chosen = self.projection.out_features // self.parts * parts, self.options
        return interacting(
            x_BFD,
            *self._rows(slice(rows)),
            *(self._normed() if ends else (None, None)),
            heads=self.heads,
            residual=residual,
            norm=chosen.norm if ends else "none",
            relu_on_projections=chosen.relu_on_projections,
            scale=chosen.scale,
            output_relu=chosen.output_relu and ends,
            epsilon=chosen.norm_epsilon,
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
