"""Scoring many rows in batches, in evaluation mode; the next batch is read while one is computed."""

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fieldwise.errors import DataError, Row
from fieldwise.layout import Batch
from fieldwise.ops.devices import device_of, flushed_denormals
from fieldwise.storage.arrays import mapped_array
from fieldwise.storage.machine import ahead

T = TypeVar("T", bound=tuple[Any, ...])
KEPT_ROWS = 1 << 17  # of an array of scores that is mapped
SCORING_BATCH = 2048
"""Rows per batch in scoring: enough to hide the overhead per batch, few enough for layers' outputs to stay in the CPU
cache, and for a plain AFM over 39 fields to keep its pairs' products below 1 GB at D = 64."""


def score_batches(network: nn.Module, batches: Iterable[tuple[Batch, Tensor | None]]) -> np.ndarray:
    """Logits (or predicted numbers) [N], or [N, T] with several labels, float64; [0] without a batch.

    They are computed on the network's device; the batches are on the CPU. The network is set to
    evaluation mode, and reset to its former mode at the end.
    """
    # In few large arrays: thousands of small ones that are kept would each stand between the large
    # ones of two batches, which then fit nowhere again once they are freed.
    parts: list[np.ndarray] = []
    held = np.zeros(0)
    rows = 0
    with scoring_mode(network):
        for (batch,) in prefetch(((batch,) for batch, _ in batches), device_of(network)):
            score = network(batch).cpu().double().numpy()
            if rows == 0:
                held = score
                rows = len(score)
                continue
            if rows + len(score) > len(held):
                parts.append(held[:rows])
                held = mapped_array((max(KEPT_ROWS, len(score)), *score.shape[1:]), np.float64)
                rows = 0
            held[rows : rows + len(score)] = score
            rows += len(score)
    if rows:
        parts.append(held[:rows])
    return np.concatenate(parts) if parts else np.zeros(0)


def finite(scores: np.ndarray) -> np.ndarray:
    """Scores [N] or [N, T] of N rows, after checking that they are numbers.

    Errors:
        DataError: a score is NaN or infinite; its row is named.
    """
    # a sum takes no memory; if it overflows, each score is looked at
    if not np.isfinite(scores.sum()):
        wrong = ~np.isfinite(scores).reshape(len(scores), -1).all(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"a prediction must be a finite number, but found {scores[row]} in ",
                Row(row),
                ": its weights or the row's numbers are too large; train with a transform such as log, or with bins",
            )
    return scores


@contextlib.contextmanager
def scoring_mode(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the network's former mode is set again at the end."""
    was_training = network.training
    if was_training:  # otherwise nothing is written, and several threads may score at once
        network.eval()
    try:
        # Not inference_mode: tensors that a table creates and caches in it could not be used in
        # training.
        with torch.no_grad(), flushed_denormals():
            yield
    finally:
        if was_training:
            network.train()


def prefetch(items: Generator[T], device: torch.device) -> Generator[T]:
    """Batches on the CPU (or tuples of batches, tensors and None), moved to a device: by pinned memory to a GPU.

    For the CPU these are `items` themselves. Else a thread is one item ahead, and closes them at
    the end.
    """
    return items if device.type == "cpu" else _moved(items, device)


def _moved(items: Generator[T], device: torch.device) -> Generator[T]:
    ready = items
    if device.type == "cuda":
        ready = (tree_map_only(Tensor, Tensor.pin_memory, item) for item in items)
    with contextlib.closing(items), contextlib.closing(ahead(ready)) as coming:
        for item in coming:
            yield tree_map_only(Tensor, lambda tensor: tensor.to(device, non_blocking=True), item)
