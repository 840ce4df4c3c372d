"""DIN's activation unit: the weight of a history's value for the candidate item.

Letters: N values of all bags in a batch, D embedding size.
"""

import functools
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.layers.dice import Dice
from fieldwise.layers.mlp import hidden_layers, linear

__all__ = ["Activation", "ActivationUnit", "Inputs", "activated_layers"]

Activation = Literal["prelu", "dice", "relu", "sigmoid"]
Inputs = Literal["outer", "product", "difference", "difference_product"]


class ActivationUnit(nn.Module):
    """`a(h, c)`: an MLP over a history's value h, the candidate c and features of both (Section 4.3).

    Args:
        dim: D.
        hidden: sizes of the hidden layers; one linear unit without activation follows.
        inputs: as DIN's `attention_inputs`.
        activation: as DIN's `attention_activation`.
        softmax: as DIN's.
        scale: as DIN's.
        dropout: dropout rate of the hidden units.

    Shape:
        forward: h and c [N, D], own [N] (which values are this history's: Dice measures only these), segments [N]
            (which history of which row a value is of, in [0, count)) -> [N].
    """

    def __init__(
        self,
        dim: int,
        hidden: tuple[int, ...],
        *,
        inputs: Inputs = "outer",
        activation: Activation = "prelu",
        softmax: bool = False,
        scale: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inputs, self.softmax, self.factor = inputs, softmax, dim**-0.5 if scale else 1.0
        width = {"outer": 2 * dim + dim * dim, "product": 3 * dim, "difference": 3 * dim}.get(inputs, 4 * dim)
        self.layers = nn.ModuleList(activated_layers(width, hidden, activation, dropout))
        self.output = linear(hidden[-1], 1, bias=not softmax)  # a constant has no effect on a softmax

    def forward(self, h_ND: Tensor, c_ND: Tensor, own_N: Tensor, segments_N: Tensor, count: int) -> Tensor:
        """The weight of every value."""
        x = self._joined(h_ND, c_ND)
        for layer in self.layers:
            assert isinstance(layer, nn.Sequential)
            for module in layer:
                x = module(x, own_N) if isinstance(module, Dice) else module(x)
        a_N: Tensor = self.output(x).squeeze(1) * self.factor
        return _segment_softmax(a_N, segments_N, count) if self.softmax else a_N

    def _joined(self, h_ND: Tensor, c_ND: Tensor) -> Tensor:
        if self.inputs == "outer":
            # NOTE[DIFF]: the paper names "the out product" and gives no sizes; here all D * D products.
            return torch.cat([h_ND, (h_ND.unsqueeze(2) * c_ND.unsqueeze(1)).flatten(1), c_ND], 1)
        if self.inputs == "difference_product":
            return torch.cat([c_ND, h_ND, c_ND - h_ND, c_ND * h_ND], 1)
        return torch.cat([h_ND, h_ND * c_ND if self.inputs == "product" else h_ND - c_ND, c_ND], 1)


def activated_layers(
    inputs: int, hidden: tuple[int, ...], activation: Activation, dropout: float, batch_norm: bool = False
) -> list[nn.Sequential]:
    """`hidden_layers` with one of DIN's activations."""
    make = functools.partial(_activation, activation)
    return hidden_layers(inputs, hidden, make, dropout=dropout, batch_norm=batch_norm)


def _activation(name: Activation, size: int) -> nn.Module:
    if name == "dice":
        return Dice(size)
    if name == "prelu":
        return nn.PReLU(size, init=0.0)  # the paper gives no initial value; 0 as in the authors' code
    return nn.ReLU() if name == "relu" else nn.Sigmoid()


def _segment_softmax(a_N: Tensor, segments_N: Tensor, count: int) -> Tensor:
    """The softmax within each segment."""
    with torch.no_grad():  # the result does not depend on what is subtracted
        top_M = a_N.new_zeros(count).scatter_reduce(0, segments_N, a_N, "amax", include_self=False)
    e_N = torch.exp(a_N - top_M.index_select(0, segments_N))
    return e_N / a_N.new_zeros(count).index_add(0, segments_N, e_N).index_select(0, segments_N)
