"""Activations of hidden layers by name, and Dice, which has statistics of the batch."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.distributed.process_group import all_reduce

Activation = Literal[
    "relu", "leaky_relu", "prelu", "dice", "gelu", "silu", "tanh", "sigmoid", "identity"
]


class Dice(nn.Module):
    """`f(s) = p(s) s + (1 - p(s)) alpha s` with `p(s) = sigmoid((s - E[s]) / sqrt(Var[s] + eps))`, unit by unit.

    Source: Zhou et al., KDD 2018, arXiv 1706.06978, Section 5.2. In training E and Var are those of
    the batch, else moving averages of them, as in batch normalization (without its scale and
    shift).

    NOTE[DIFF]: the paper does not define the moving averages; here they are updated as in PyTorch's
    BatchNorm, with `momentum` and the unbiased variance. alpha is initially 0, as in the authors'
    code, which has no averages: its batch normalization runs in inference mode, so that E stays 0
    and Var 1.

    Args:
        size: number of units.
        eps: the paper's 1e-8.
        momentum: weight of the latest batch in the moving averages.

    Shape:
        forward: [N, size] -> [N, size]. `counted` [N]: the rows that E and Var are taken over; all,
            if omitted.

    >>> Dice(1).eval()(torch.tensor([[0.0], [3.0]])).flatten().tolist()  # p(3) = 0.953 at mean 0, variance 1
    [0.0, 2.857722282409668]
    """

    def __init__(self, size: int, *, eps: float = 1e-8, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.alpha = nn.Parameter(torch.zeros(size))
        self.running_mean = nn.Buffer(torch.zeros(size))
        self.running_var = nn.Buffer(torch.ones(size))

    def forward(self, s: Tensor, counted: Tensor | None = None) -> Tensor:
        mean: Tensor = self.running_mean
        var: Tensor = self.running_var
        if self.training:
            share = s.new_ones(s.shape[0]) if counted is None else counted.to(s.dtype)
            n = all_reduce(share.sum())
            share = share / n.clamp(min=1)
            mean = all_reduce(share @ s)
            var = all_reduce(share @ (s - mean).square())
            with torch.no_grad():
                step = self.momentum * (n > 1).to(s.dtype)  # one row has no variance
                self.running_mean.lerp_(mean, step)
                self.running_var.lerp_(var * (n / (n - 1).clamp(min=1)), step)
        p = torch.sigmoid((s - mean) * torch.rsqrt(var + self.eps))
        return s * (p + (1 - p) * self.alpha)


ACTIVATIONS: dict[Activation, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "leaky_relu": lambda _: nn.LeakyReLU(),
    # DIN's paper gives no initial value; 0 as in its authors' code
    "prelu": lambda size: nn.PReLU(size, init=0.0),
    "dice": Dice,
    "gelu": lambda _: nn.GELU(),
    "silu": lambda _: nn.SiLU(),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "identity": lambda _: nn.Identity(),
}


def make_activation(name: Activation, size: int) -> nn.Module:
    """The activation of a layer of `size` units: PyTorch's with its defaults; `prelu` has a slope per unit, at first 0.

    >>> make_activation("prelu", 3)
    PReLU(num_parameters=3)
    """
    return ACTIVATIONS[name](size)
