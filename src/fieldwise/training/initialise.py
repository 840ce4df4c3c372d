"""What goes before the first step: the network on its device, its output bias at the training rows' base rate."""

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

# of the search for output biases
PROBE_ROWS = 8
TOLERANCE = 1e-3


def move_to_device(device: str, network: nn.Module) -> torch.device:
    """Move a network to the device of a name; a warning says which operations have no fast version there."""
    opened = open_device(device)
    warning = missing_on(opened)
    if warning is not None:
        warnings.warn(warning, stacklevel=3)
    network.to(opened)
    return opened


@torch.no_grad()
def start_at_base_rate(network: nn.Module, train: EncodedTable, objective: Objective) -> list[str]:
    """Set the network's output biases so that its initial mean score is the best constant prediction.

    That is the logit of the training rows' positive rate (with half a row added to each class, so
    that it is finite), or the mean of a regression label over its scale. The scores of other
    parameters are initially near 0. Output biases are single-number parameters whose changes shift
    all scores of a batch equally; they are found by trial, so this works for your own networks too:
    one bias that is added to every score, or several whose values are averaged (FinalNet's two
    branches).

    A bias that is not 0, such as from a warm start, is not changed. The names of those that were
    set are returned.
    """
    assert train.y is not None, "training rows have targets"
    batch = train.batch(slice(0, PROBE_ROWS))[0].to(device_of(network))
    heads = {"": network}
    heads_of_labels = getattr(network, "heads", None)
    if objective.more and heads_of_labels is not None:
        heads = {f"heads.{number}.": head for number, head in enumerate(heads_of_labels)}
    labels = objective.labels

    changed = []
    was_training = network.training
    network.eval()
    for (prefix, head), y, label in zip(heads.items(), train.targets.T, labels, strict=True):
        start = base_score(y, train.weight, binary=label.task == "binary", scale=label.scale)
        if label.sampled is not None:
            start -= label.sampled.log_odds
        for name, bias in _output_biases(head, batch):
            if not bool(bias.count_nonzero()):  # else from a warm start
                bias.fill_(start)
                changed.append(f"{prefix}{name}")
    network.train(was_training)
    return changed


def _output_biases(network: nn.Module, batch: Batch) -> list[tuple[str, nn.Parameter]]:
    """The single-number parameters that together shift all scores of a batch by what is added to each of them."""
    biases = list[tuple[str, nn.Parameter]]()
    total = 0.0
    before: Tensor = network(batch)
    for name, parameter in network.named_parameters():
        if parameter.numel() != 1:
            continue
        old = parameter.clone()
        parameter.add_(1.0)
        change = network(batch) - before
        parameter.copy_(old)
        share = float(change.mean())
        shifts_equally = share > TOLERANCE and float((change - share).abs().max()) < TOLERANCE
        # if two each add their whole value, use the first
        if shifts_equally and total + share < 1.0 + TOLERANCE:
            biases.append((name, parameter))
            total += share
    return biases if abs(total - 1.0) < TOLERANCE else []


def base_score(
    y: np.ndarray, weight: np.ndarray | None = None, *, binary: bool, scale: float = 1.0
) -> float:
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
