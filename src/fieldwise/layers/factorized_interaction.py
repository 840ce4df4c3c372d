"""FinalNet's factorized interaction layer: a linear layer whose parts are multiplied with one another.

Letters: B batch, N factors.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers.mlp import linear

__all__ = ["FactorActivation", "FactorResidual", "FactorizedInteraction"]

FactorResidual = Literal["concat", "sum"]
FactorActivation = Literal["none", "relu", "sigmoid"]


class FactorizedInteraction(nn.Module):
    """`h_1 = z_1`, `h_n = h_{n-1} * act(z_n)`, `z_n = W_n x + b_n` for n = 1 to N (Zhu et al., SIGIR 2023).

    With one factor it is a linear layer. `concat` concatenates `h_1 ... h_N`, each of size outputs / N, and has as many
    weights as a linear layer; `sum` adds them, each of size outputs, and has N times as many.

    Args:
        inputs: size of the input.
        outputs: size of the output; divisible by `factors` for `concat`.
        factors: N.
        residual: `concat` or `sum`.
        activation: activation of the factors z_2 to z_N.

    Shape:
        forward: [B, inputs] -> [B, outputs].

    >>> FactorizedInteraction(3, 4)(torch.ones(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        factors: int = 2,
        residual: FactorResidual = "concat",
        activation: FactorActivation = "none",
    ) -> None:
        super().__init__()
        self.factors, self.residual = factors, residual
        # One weight holds W_1 to W_N in this order: one matrix product instead of N.
        self.linear = linear(inputs, outputs if residual == "concat" else factors * outputs)
        known = {"none": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid}
        self.activation: nn.Module = known[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """The concatenated or summed products."""
        h, *others = self.linear(x).chunk(self.factors, 1)
        found = [h]
        for z in others:
            h = h * self.activation(z)
            found.append(h)
        return torch.cat(found, 1) if self.residual == "concat" else torch.stack(found).sum(0)
