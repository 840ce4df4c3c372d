"""Dice, DIN's data-adaptive activation."""

import torch
from torch import Tensor, nn

from fieldwise.distributed.collectives import all_reduce

__all__ = ["Dice"]


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

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int, *, eps: float = 1e-8, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.alpha = nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

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
