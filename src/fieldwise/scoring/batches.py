"""Scoring many rows in batches, in evaluation mode."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.layout import Batch
from fieldwise.ops.denormals import flushed_denormals

__all__ = ["SCORING_BATCH", "score_batches"]

SCORING_BATCH = 2048
"""Rows per batch in scoring: enough to hide the overhead per batch, few enough for layers' outputs to stay in the CPU
cache, and for a plain AFM over 39 fields to keep its pairs' products below 1 GB at D = 64."""


def score_batches(network: nn.Module, batches: Iterable[tuple[Batch, Tensor | None]]) -> np.ndarray:
    """Logits (or predicted numbers) [N], or [N, T] with several labels, float64; [0] without a batch.

    The network is set to evaluation mode, and reset to its former mode at the end.
    """
    was_training = network.training
    if was_training:  # otherwise nothing is written, and several threads may score at once
        network.eval()
    try:
        # Not inference_mode: tensors that a table creates and caches in it could not be used in training.
        with torch.no_grad(), flushed_denormals():
            parts = [network(batch).double().numpy() for batch, _ in batches]
    finally:
        if was_training:
            network.train()
    return np.concatenate(parts) if parts else np.zeros(0)
