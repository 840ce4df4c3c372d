"""DIN's activation unit, the weight of a history's value for the candidate item, and its activation Dice.

Letters: N values of all bags in a batch, D embedding size.
"""

import functools
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.distributed.process_group import all_reduce
from fieldwise.layers.mlp import hidden_layers, linear

__all__ = ["Activation", "ActivationUnit", "Dice", "Inputs", "activated_layers"]


class Dice(nn.Module):
    """`f(s) = p(s) s + (1 - p(s)) alpha s` with `p(s) = sigmoid((s - E[s]) / sqrt(Var[s] + eps))`, unit by unit.

    Source: Zhou et al., KDD 2018, arXiv 1706.06978, Section 5.2. In training E and Var are those of the batch, else
    moving averages of them, as in batch normalization (without its scale and shift).

    NOTE[DIFF]: the paper does not define the moving averages; here they are updated as in PyTorch's BatchNorm, with
    `momentum` and the unbiased variance. alpha is initially 0, as in the authors' code, which has no averages: its
    batch normalization runs in inference mode, so that E stays 0 and Var 1.

    Args:
        size: number of units.
        eps: the paper's 1e-8.
        momentum: weight of the latest batch in the moving averages.

    Shape:
        forward: [N, size] -> [N, size]. `counted` [N]: the rows that E and Var are taken over; all, if omitted.

    >>> Dice(1).eval()(torch.tensor([[0.0], [3.0]])).flatten().tolist()  # p(3) = 0.953 at mean 0, variance 1
    [0.0, 2.857722282409668]
    """

    def __init__(self, size: int, *, eps: float = 1e-8, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.alpha = nn.Parameter(torch.zeros(size))
        self.running_mean = nn.Buffer(torch.zeros(size))
        self.running_var = nn.Buffer(torch.ones(size))

    def forward(self, s: Tensor, counted: Tensor | None = None) -> Tensor:
        """The activation of every row and unit."""
        mean, var = self._measure(s, counted) if self.training else (self.running_mean, self.running_var)
        p = torch.sigmoid((s - mean) * torch.rsqrt(var + self.eps))
        return s * (p + (1 - p) * self.alpha)

    def _measure(self, s: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and (biased) variance of the batch; updates the moving averages."""
        share = s.new_ones(s.shape[0]) if counted is None else counted.to(s.dtype)
        n = all_reduce(share.sum())
        share = share / n.clamp(min=1)
        mean = all_reduce(share @ s)
        var = all_reduce(share @ (s - mean).square())
        with torch.no_grad():
            step = self.momentum * (n > 1).to(s.dtype)  # one row has no variance
            self.running_mean.lerp_(mean, step)
            self.running_var.lerp_(var * (n / (n - 1).clamp(min=1)), step)
        return mean, var


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
