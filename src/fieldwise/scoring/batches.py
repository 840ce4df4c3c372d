"""Scoring many rows in batches, in evaluation mode."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.layout import Batch
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.scoring.feeding import fed

__all__ = ["SCORING_BATCH", "in_numpy", "score_batches"]

SCORING_BATCH = 2048
"""Rows per batch in scoring: enough to hide the overhead per batch, few enough for layers' outputs to stay in the CPU
cache, and for a plain AFM over 39 fields to keep its pairs' products below 1 GB at D = 64."""


def score_batches(network: nn.Module, batches: Iterable[tuple[Batch, Tensor | None]]) -> np.ndarray:
    """Logits (or predicted numbers) [N], or [N, T] with several labels, float64; [0] without a batch.

    They are computed on the network's device; the batches are on the CPU. The network is set to evaluation mode, and
    reset to its former mode at the end.
    """
    was_training = network.training
    if was_training:  # otherwise nothing is written, and several threads may score at once
        network.eval()
    try:
        # Not inference_mode: tensors that a table creates and caches in it could not be used in training.
        with torch.no_grad(), flushed_denormals():
            only = ((batch,) for batch, _ in batches)
            parts = [in_numpy(network(batch)) for (batch,) in fed(only, device_of(network))]
    finally:
        if was_training:
            network.train()
    return np.concatenate(parts) if parts else np.zeros(0)


def in_numpy(score: Tensor) -> np.ndarray:
    """A tensor of any device without a gradient, as float64.

    >>> in_numpy(torch.ones(2))
    array([1., 1.])
    """
    found: np.ndarray = score.cpu().double().numpy()
    return found
