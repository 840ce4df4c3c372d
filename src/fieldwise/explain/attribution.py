"""Attributions of a logit to fields: integrated gradients, and occlusion by background rows' values.

Letters: N rows, M mixed rows, F fields, P = F(F-1)/2 pairs, D embedding size, S single-valued
fields, G bags, K background rows.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.data.vector_column import VectorColumn
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Bags, Batch
from fieldwise.ops.devices import device_of, flushed_denormals
from fieldwise.scoring.batches import SCORING_BATCH, finite, score_batches

ROWS_PER_BATCH = 256
"""AFM's products of 39 fields with vectors of 64 take 50 MB."""
QUADRATURE_STEPS = 64


def has_gradients(network: nn.Module) -> bool:
    """Whether a row's logit depends on its values only through its fields' vectors, which hooks can access."""
    if not _embeddings(network):
        return False
    return not any(getattr(module, "reads_rows", False) for module in network.modules())


def integrated_gradients(
    network: nn.Module,
    table: EncodedTable,
    background: EncodedTable,
    *,
    steps: int = QUADRATURE_STEPS,
) -> tuple[np.ndarray, float]:
    """Integrated gradients (Sundararajan et al., ICML 2017, Equation 1) of the logit for every field's vectors.

    All tables' vectors move along the path together, from the background's average vectors; the
    integral uses Gauss-Legendre quadrature. A field's contribution is the sum over its vectors'
    entries.

    Returns:
        The contributions [N, F] float64, and the logit of the average vectors. The rest of a row's
        logit is the quadrature error.
    """
    # A copy that shares the weights: hooks on the network itself would affect concurrent scoring.
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    network = copy.deepcopy(network, shared).eval()
    with flushed_denormals():
        # of the outputs [F, D] of each call of an embedding, in the order of the calls
        sums: list[Tensor] = []

        def add(x: Tensor, call: int) -> Tensor:
            if call == len(sums):
                sums.append(torch.zeros(x.shape[1:], device=x.device))
            sums[call] += x.sum(0)
            return x

        for batch in device_batches(network, background):
            with torch.no_grad(), _vectors(network, add):
                network(batch)
        average = [total / len(background) for total in sums]
        with torch.no_grad(), _vectors(network, lambda x, call: average[call].expand_as(x)):
            any_row, _ = background.batch(slice(0, 1))  # its vectors are replaced
            base = float(network(any_row.to(device_of(network))))
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        parts = []
        for batch in device_batches(network, table):
            total = np.zeros((batch.size, len(average[0])))
            for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
                for way, gradient in _gradients(network, batch, average, float(node)):
                    total += weight * (way * gradient).sum(2).cpu().double().numpy()
            parts.append(total)
    return np.concatenate(parts), base


def _gradients(
    network: nn.Module, batch: Batch, average: list[Tensor], share: float
) -> list[tuple[Tensor, Tensor]]:
    """For each call of an embedding, the difference of actual and average vectors, and the gradient on the path.

    The gradient is taken after a share of the way from the average vectors.
    """
    points: list[Tensor] = []
    ways: list[Tensor] = []

    def move(x: Tensor, call: int) -> Tensor:
        ways.append((x - average[call]).detach())
        points.append((average[call] + share * ways[-1]).requires_grad_())
        return points[-1]

    with _vectors(network, move), torch.enable_grad():
        gradients = torch.autograd.grad(network(batch).sum(), points, allow_unused=True)
    return [
        (way, gradient)
        for way, gradient in zip(ways, gradients, strict=True)
        if gradient is not None
    ]


def device_batches(network: nn.Module, table: EncodedTable) -> Iterator[Batch]:
    """The table's rows on the network's device; one empty batch without a row."""
    for start in range(0, max(1, len(table)), ROWS_PER_BATCH):
        rows = slice(start, min(start + ROWS_PER_BATCH, len(table)))
        batch, _ = table.batch(rows)
        yield batch.to(device_of(network))


def _embeddings(network: nn.Module) -> list[FieldEmbedding]:
    """All embedding tables of a network, including an unregistered one shared with the heads of other labels."""
    registered = [module for module in network.modules() if isinstance(module, FieldEmbedding)]
    shared = vars(network).get("embedding")
    if isinstance(shared, FieldEmbedding):
        return [shared, *registered]
    return registered


@contextmanager
def _vectors(network: nn.Module, change: Callable[[Tensor, int], Tensor]) -> Iterator[None]:
    """A context in which `change` replaces every embedding call's output; it gets the output and the call's number."""
    calls = count()

    def hook(_: nn.Module, __: Any, x: Tensor) -> Tensor:
        return change(x, next(calls))

    handles = [embedding.register_forward_hook(hook) for embedding in _embeddings(network)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


MIXED_ROWS_IN_MEMORY = 16 * SCORING_BATCH
MAX_CHOSEN_CELLS = 2**25
"""Fields of mixed rows that are chosen at once."""


class Mixer:
    """Computes logits of a table's rows with some fields from background rows of the same layout."""

    def __init__(self, network: nn.Module, table: EncodedTable, background: EncodedTable) -> None:
        self.network = network
        self.rows = len(table)
        self.layout = table.layout
        self.ids = np.concatenate([table.ids, background.ids])
        self.values = np.concatenate([table.values, background.values])
        self.vectors = [
            VectorColumn.joined(both)
            for both in zip(table.vectors, background.vectors, strict=True)
        ]
        self.bags = Bags.joined([table.bags, background.bags])
        self.singles = table.layout.single_positions
        self.numbers = table.layout.positions(kind="value")
        self.vector_fields = table.layout.positions(kind="vector")
        self.bag_fields = table.layout.positions(kind="bag")

    def score(self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray) -> np.ndarray:
        """The logits [M] of rows [M] of the table with the fields `taken_MF` from rows [M] of the background."""
        batches = self._mixed_batches(rows, others, taken_MF)
        return finite(score_batches(self.network, batches))

    def _mixed_batches(
        self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray
    ) -> Iterator[tuple[Batch, Tensor | None]]:
        """The mixed rows in batches, of which some are in memory at once."""
        for start in range(0, len(rows), MIXED_ROWS_IN_MEMORY):
            part = slice(start, start + MIXED_ROWS_IN_MEMORY)
            mixed = self.mixed(rows[part], others[part], taken_MF[part])
            yield from mixed.batches(SCORING_BATCH)

    def without(self, rows: np.ndarray, others: np.ndarray, taken_SF: np.ndarray) -> np.ndarray:
        """The logits [S, M, K] of rows [M] with each set of fields from their background rows [M, K]."""
        parts = max(1, taken_SF.size * others.size // MAX_CHOSEN_CELLS)
        logits = []
        for sets in np.array_split(taken_SF, parts):
            mixed_rows = np.tile(np.repeat(rows, others.shape[1]), len(sets))
            mixed_others = np.tile(others.ravel(), len(sets))
            taken_MF = np.repeat(sets, others.size, axis=0)
            logits.append(self.score(mixed_rows, mixed_others, taken_MF))
        return np.concatenate(logits).reshape(len(taken_SF), *others.shape)

    def mixed(self, rows: np.ndarray, others: np.ndarray, taken_MF: np.ndarray) -> EncodedTable:
        """The mixed rows, encoded."""
        # The row from which each field of each mixed row is read.
        source_MF = np.where(taken_MF, (self.rows + others)[:, None], rows[:, None])
        ids = np.take_along_axis(self.ids, source_MF[:, self.singles], 0)
        values = np.take_along_axis(self.values, source_MF[:, self.numbers], 0)
        vectors = [
            column.take(source_MF[:, i])
            for column, i in zip(self.vectors, self.vector_fields, strict=True)
        ]
        bags_per_row = len(self.bag_fields)
        bag_numbers = source_MF[:, self.bag_fields] * bags_per_row + np.arange(bags_per_row)
        bags = self.bags.take(torch.from_numpy(bag_numbers))
        bag_arrays = bags.ids.numpy(), bags.offsets.numpy()
        return EncodedTable(self.layout, ids, values, *bag_arrays, vectors=tuple(vectors))


def occlusion(mixer: Mixer, logit: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The logit [N] minus its mean with other rows' values [N, K] in one field, for every field [N, F]."""
    each_field_FF = np.eye(mixer.layout.num_fields, dtype=bool)
    without = mixer.without(np.arange(len(logit)), others, each_field_FF)
    lost: np.ndarray = logit[:, None] - without.mean(2).T
    return lost


def pair_interactions(
    mixer: Mixer,
    logit: np.ndarray,
    others: np.ndarray,
    rows: np.ndarray,
    fields: np.ndarray | None = None,
) -> np.ndarray:
    """Interaction effects of all pairs of fields, or of chosen ones, [M, K, P], in the order of `pair_indices`.

    `f(x) - f(x without i) - f(x without j) + f(x without both)` for every background row: effects
    of single fields, such as first-order terms, cancel. `others` are the background rows [M, K] of
    the chosen `rows` [M].
    """
    single_SF = np.eye(mixer.layout.num_fields, dtype=bool)
    if fields is not None:
        single_SF = single_SF[fields]
    left, right = np.triu_indices(len(single_SF), 1)
    pair_PF = single_SF[left] | single_SF[right]
    without = mixer.without(rows, others, np.concatenate([single_SF, pair_PF]))
    without_one = without[: len(single_SF)]
    without_both = without[len(single_SF) :]
    effects = logit[rows, None] - without_one[left] - without_one[right] + without_both
    return np.moveaxis(effects, 0, 2)
