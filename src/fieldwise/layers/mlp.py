"""Fully connected layers, and dropout as a layer."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from fieldwise.layers.activations import Activation, make_activation
from fieldwise.ops.dropout import dropout


class Dropout(nn.Module):
    """Dropout (`fieldwise.ops.dropout`) in training mode, the identity otherwise.

    Args:
        p: dropout rate of the elements.

    Shape:
        forward: [B, ...] -> the same.

    >>> Dropout(0.5)
    Dropout(p=0.5)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def linear(inputs: int, outputs: int, *, bias: bool = True, gain: float = 1.0) -> nn.Linear:
    """A linear layer with Xavier-normal initial weights and a zero bias.

    >>> linear(3, 2).bias.tolist()
    [0.0, 0.0]
    """
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_normal_(layer.weight, gain)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def hidden_layers(
    inputs: int,
    hidden: Sequence[int],
    activation: Callable[[int], nn.Module],
    *,
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> list[nn.Sequential]:
    """Hidden layers: Linear, optional BatchNorm, activation, optional Dropout, for every size in `hidden`.

    Args:
        inputs: size of the input.
        hidden: sizes of the layers.
        activation: makes the activation of a layer of the given size.
        dropout: dropout rate of every layer's outputs.
        batch_norm: BatchNorm between the linear map and the activation.

    >>> hidden_layers(3, (2,), lambda size: nn.Tanh())
    [Sequential(
      (0): Linear(in_features=3, out_features=2, bias=True)
      (1): Tanh()
    )]
    """
    layers = []
    for before, after in itertools.pairwise((inputs, *hidden)):
        norm = [nn.BatchNorm1d(after)] if batch_norm else []
        drop = [Dropout(dropout)] if dropout else []
        layers.append(nn.Sequential(linear(before, after), *norm, activation(after), *drop))
    return layers


class MLP(nn.Module):
    """A multilayer perceptron: Linear, optional BatchNorm, activation, Dropout, for every size in `hidden`.

    Args:
        inputs: size of the input.
        hidden: sizes of the layers.
        outputs: size of a last linear layer without activation; none if omitted.

    Shape:
        forward: [B, inputs] -> [B, outputs], or [B, hidden[-1]].

    >>> import torch
    >>> MLP(6, (4, 3), outputs=1)(torch.zeros(2, 6)).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        *,
        outputs: int | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        make = partial(make_activation, activation)
        self.layers = nn.ModuleList(
            hidden_layers(inputs, hidden, make, dropout=dropout, batch_norm=batch_norm)
        )
        self.output = None if outputs is None else linear([inputs, *hidden][-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x if self.output is None else self.output(x)

    def linear_layers(self) -> list[nn.Linear]:
        """The hidden layers' linear maps."""
        return [
            module
            for layer in self.layers
            for module in layer.children()
            if isinstance(module, nn.Linear)
        ]
