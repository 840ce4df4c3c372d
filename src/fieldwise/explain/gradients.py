"""Integrated gradients along the straight line from average to actual field vectors.

Letters: N rows, F fields, D embedding size.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FieldEmbedding
from fieldwise.layers.subset_embedding import SubsetEmbedding
from fieldwise.layout import Batch
from fieldwise.models.dat import DATNetwork
from fieldwise.models.din import DINNetwork
from fieldwise.models.fm import FMNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.scoring.batches import in_numpy

__all__ = ["IntegratedGradients", "has_gradients", "integrated_gradients"]

ROWS = 256
STEPS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegratedGradients:
    """Integrated gradients per field, from the average vectors of a background to a row's own.

    Args:
        contributions: [N, F] float64.
        base: the logit of the average vectors.
        gap: [N], the logit minus `base` minus the sum of the contributions: the quadrature error.
    """

    contributions: np.ndarray
    base: float
    gap: np.ndarray


def has_gradients(network: nn.Module) -> bool:
    """Whether a row's logit depends on its values only through its fields' vectors, which hooks can access."""
    whole = _embeddings(network)
    # FM reads its tables in one op, DIN histories value by value; DAT and FinalMLP's gates have further tables.
    beside = FMNetwork, DINNetwork, DATNetwork, SubsetEmbedding
    partial = any(isinstance(m, beside) for m in network.modules())
    return bool(whole) and not partial


def integrated_gradients(
    network: nn.Module, table: EncodedTable, background: EncodedTable, *, steps: int = STEPS
) -> IntegratedGradients:
    """Integrated gradients (Sundararajan et al., ICML 2017, Equation 1) of the logit for every field's vectors.

    All tables' vectors move along the path together; the integral uses Gauss-Legendre quadrature. A field's
    contribution is the sum over its vectors' entries.

    Args:
        network: a network of one label, with `has_gradients`.
        table: N rows.
        background: rows whose average vectors are the start of the path.
        steps: number of quadrature points.
    """
    # A copy that shares the weights: hooks on the network itself would affect concurrent scoring.
    kept = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    network = copy.deepcopy(network, kept).eval()
    with flushed_denormals():
        average = _average(network, background)
        with torch.no_grad(), _vectors(network, lambda x, call: average[call].expand_as(x)):
            one = background.batch(slice(0, 1))[0]  # any row: its vectors are replaced
            base = float(network(one.to(device_of(network))))
        parts = [_of_batch(network, batch, average, steps) for batch in _batches(network, table)]
    contributions, logit = (np.concatenate(found) for found in zip(*parts, strict=True))
    return IntegratedGradients(contributions=contributions, base=base, gap=logit - base - contributions.sum(1))


def _of_batch(network: nn.Module, batch: Batch, average: list[Tensor], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Contributions [N, F] and the logit [N]."""
    with torch.no_grad():
        logit = in_numpy(network(batch))
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    total = np.zeros((batch.size, len(average[0])))
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        for step, gradient in _at(network, batch, average, float(node)):
            total += weight * in_numpy((step * gradient).sum(2))
    return total, logit


def _at(network: nn.Module, batch: Batch, average: list[Tensor], at: float) -> list[tuple[Tensor, Tensor]]:
    """For each call of an embedding, the difference of actual and average vectors, and the gradient on the path."""
    points: list[Tensor] = []
    ways: list[Tensor] = []

    def move(x: Tensor, call: int) -> Tensor:
        ways.append((x - average[call]).detach())
        points.append((average[call] + at * ways[-1]).requires_grad_())
        return points[-1]

    with _vectors(network, move), torch.enable_grad():
        gradients = torch.autograd.grad(network(batch).sum(), points, allow_unused=True)
    return [(way, gradient) for way, gradient in zip(ways, gradients, strict=True) if gradient is not None]


def _average(network: nn.Module, background: EncodedTable) -> list[Tensor]:
    """The mean output [F, D] of each call of an embedding over a background's rows, in the order of the calls."""
    sums: list[Tensor] = []

    def add(x: Tensor, call: int) -> Tensor:
        if call == len(sums):
            sums.append(torch.zeros(x.shape[1:], device=x.device))
        sums[call] += x.sum(0)
        return x

    with torch.no_grad():
        for batch in _batches(network, background):
            with _vectors(network, add):
                network(batch)
    return [total / len(background) for total in sums]


def _batches(network: nn.Module, table: EncodedTable) -> Iterator[Batch]:
    """The table's rows on the network's device; one empty batch without a row."""
    for start in range(0, max(1, len(table)), ROWS):
        yield table.batch(slice(start, min(start + ROWS, len(table))))[0].to(device_of(network))


def _embeddings(network: nn.Module) -> list[FieldEmbedding]:
    """All embedding tables of a network, including an unregistered one shared with the heads of other labels."""
    own = [m for m in network.modules() if isinstance(m, FieldEmbedding)]
    shared = vars(network).get("embedding")
    return [shared, *own] if isinstance(shared, FieldEmbedding) else own


@contextmanager
def _vectors(network: nn.Module, change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """A context in which `change` replaces every embedding call's output; it gets the output and the call's number."""
    calls = iter(range(10**6))

    def hook(_: nn.Module, __: Any, x: Tensor) -> Tensor:
        return change(x, next(calls))

    handles = [m.register_forward_hook(hook) for m in _embeddings(network)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
