"""Scoring many rows in batches, in evaluation mode."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.layout import Batch
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.scoring.feeding import fed
from fieldwise.storage.arrays import mapped_array

__all__ = ["SCORING_BATCH", "in_numpy", "score_batches"]

KEPT_ROWS = 1 << 17  # of an array of scores that is mapped
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
            parts = list(_together(in_numpy(network(batch)) for (batch,) in fed(only, device_of(network))))
    finally:
        if was_training:
            network.train()
    return np.concatenate(parts) if parts else np.zeros(0)


def _together(scores: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The scores of batches in few large arrays.

    Thousands of small arrays that are kept would each stand between the large ones of two batches, which then fit
    nowhere again once they are freed.
    """
    held, rows = np.zeros(0), 0
    for score in scores:
        if rows == 0:
            held, rows = score, len(score)
            continue
        if rows + len(score) > len(held):
            yield held[:rows]
            held, rows = mapped_array((max(KEPT_ROWS, len(score)), *score.shape[1:]), np.float64), 0
        held[rows : rows + len(score)] = score
        rows += len(score)
    if rows:
        yield held[:rows]


def in_numpy(score: Tensor) -> np.ndarray:
    """A tensor of any device without a gradient, as float64.

    >>> in_numpy(torch.ones(2))
    array([1., 1.])
    """
    found: np.ndarray = score.cpu().double().numpy()
    return found
