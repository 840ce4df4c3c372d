"""Averaged weights: a run may evaluate and keep an exponential moving average of its weights."""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["averaged"]

Tensors = tuple[Tensor, ...] | list[Tensor]


def averaged(network: nn.Module, decay: float) -> AveragedModel:
    """A copy of the network with an exponential moving average of its weights, updated by `update_parameters`.

    After step t the mean is `d mean + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`: the small `d` of the
    first steps forgets the starting values. Buffers (BatchNorm's statistics) are averaged too, counters copied.
    Source: Polyak & Juditsky, 1992; the warm-up of `d` is that of TensorFlow's ExponentialMovingAverage.

    Args:
        network: the network to average; the copy shares no weights with it.
        decay: in (0, 1); the mean covers about the last 1 / (1 - decay) steps.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(network.weight)
    >>> mean = averaged(network, 0.9)
    >>> _ = nn.init.ones_(network.weight)
    >>> mean.update_parameters(network)  # t = 1: d = 2 / 11
    >>> round(mean.module.weight.item() * 11)
    9
    """

    def step(means: Tensors, values: Tensors, _: Tensor | int) -> None:
        if not means[0].is_floating_point():
            torch._foreach_copy_(means, values)
            return
        t = float(found.n_averaged)  # on the CPU: the number given is a copy on the device, to be waited for
        torch._foreach_lerp_(means, values, 1.0 - min(decay, (1.0 + t) / (10.0 + t)))

    found = AveragedModel(network, multi_avg_fn=step, use_buffers=True)
    found.n_averaged.fill_(1)  # else the first update only copies, and the mean starts a step late
    return found
