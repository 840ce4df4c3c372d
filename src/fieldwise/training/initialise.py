"""Before the first step: the network on its device, and its output bias at the training rows' base rate or mean."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable, mean_target
from fieldwise.layout import Batch
from fieldwise.ops.devices import device_of, open_device
from fieldwise.ops.native import missing_on
from fieldwise.training.objective import Objective

__all__ = ["move_to_device", "output_biases", "start_at_base_rate"]

PROBE_ROWS = 8
TOLERANCE = 1e-3


def move_to_device(device: str, network: nn.Module) -> torch.device:
    """Move a network to the device of a name; a warning says which operations have no fast version there.

    Errors:
        ConfigError: there is no such device.
    """
    found = open_device(device)
    if (sentence := missing_on(found)) is not None:
        warnings.warn(sentence, stacklevel=4)
    network.to(found)
    return found


def start_at_base_rate(network: nn.Module, train: EncodedTable, objective: Objective) -> list[str]:
    """Set the network's output biases so that its initial mean score is the best constant prediction.

    That is the logit of the training rows' positive rate (with half a row added to each class, so that it is finite),
    or the mean of a regression label over its scale. The scores of other parameters are initially near 0.

    Args:
        network: changed in place; a bias that is not 0, such as from a warm start, is not changed.
        train: rows with targets, and weights if any.
        objective: the objective of all labels.

    Returns:
        The names of the parameters that were set; empty if the network has no output bias.
    """
    assert train.y is not None, "training rows have targets"
    batch = train.batch(slice(0, PROBE_ROWS))[0].to(device_of(network))
    heads = getattr(network, "heads", None) if objective.more else None
    networks = [network] if heads is None else list(heads)
    changed = []
    for number, (one, y, task) in enumerate(zip(networks, train.y.T, objective.each(), strict=True)):
        start = base_score(y, train.weight, binary=task.task == "binary", scale=task.scale)
        for name, parameter in output_biases(one, batch):
            if bool(parameter.count_nonzero()):
                continue  # from a warm start
            with torch.no_grad():
                parameter.fill_(start)
            changed.append(name if heads is None else f"heads.{number}.{name}")
    return changed


def base_score(y: np.ndarray, weight: np.ndarray | None = None, *, binary: bool, scale: float = 1.0) -> float:
    """The best constant score for rows with these targets [N] and weights [N]; `scale` as of `Objective`.

    >>> round(base_score(np.array([1.0, 0.0, 0.0, 0.0]), binary=True), 6) == round(math.log(1.5 / 3.5), 6)
    True
    >>> base_score(np.array([2.0, 4.0]), binary=False)
    3.0
    """
    mean = mean_target(y, weight, scale=scale)
    if not binary:
        return mean
    return math.log((mean * len(y) + 0.5) / ((1.0 - mean) * len(y) + 0.5))


@torch.no_grad()
def output_biases(network: nn.Module, batch: Batch) -> list[tuple[str, nn.Parameter]]:
    """The output biases: single-number parameters whose changes shift all scores of a batch equally.

    They are found by trial, so this works for your own networks too: one bias that is added to every score, or several
    whose values are averaged (FinalNet's two branches).

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import AutoInt
    >>> batch = Batch.of_ids(torch.tensor([[0, 3], [2, 6]]))
    >>> [name for name, _ in output_biases(AutoInt().build(Layout.of_sizes([3, 4])), batch)]
    ['head.bias']
    """
    training = network.training
    network.eval()
    found, total = [], 0.0
    before: Tensor = network(batch)
    for name, parameter in network.named_parameters():
        if parameter.numel() != 1:
            continue
        old = parameter.clone()
        parameter.add_(1.0)
        change = network(batch) - before
        parameter.copy_(old)
        share = float(change.mean())
        alike = share > TOLERANCE and float((change - share).abs().max()) < TOLERANCE
        if alike and total + share < 1.0 + TOLERANCE:  # if two each add their whole value, use the first
            found.append((name, parameter))
            total += share
    network.train(training)
    return found if abs(total - 1.0) < TOLERANCE else []
