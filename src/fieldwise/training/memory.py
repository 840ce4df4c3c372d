"""Estimates of the memory for training: per parameter, per batch, and for rows."""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fieldwise.data.shuffled_rows import window_rows
from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.layout import Batch, FieldLayout, Layout
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import (
    RunOptimizer,
    field_embeddings,
    has_spread_l2,
    row_states,
)
from fieldwise.training.settings import LBFGS, OPTIMIZERS, TrainingSettings
from fieldwise.training.step import Step
from fieldwise.training.with_lr import settings_of_lr

PROBE_ROWS = 64
LEAST_PROBE_ROWS = 4
"""Two halves of at least two rows, for batch normalization."""
PROBE_ROWS_OF_FIELD = 1_024
"""The most rows that a field's part of the embedding table has in a probe."""
GATHERED_ROWS = 32_768
"""Rows that `EncodedTable.batches` gathers at once."""
METRICS_BYTES_PER_ROW = 90
# of an exact regression
REGRESSION_BYTES_PER_CELL = 40
REGRESSION_BYTES_PER_WEIGHT = 8 * (2 * 20 + 34)


def bytes_of_parameters(network: nn.Module, settings: TrainingSettings) -> tuple[int, int]:
    """Bytes of all that has the parameters' size in training, and of what is copied while a checkpoint is written.

    In training these are the parameters; their gradients (a lazily updated table has none as a
    whole); the optimizer's state, one number per row for a lazy table with `rowwise_adagrad`; the
    occurrences of rows, over which L2 of all rows of lazy tables is spread; the best weights so
    far, twice while they are replaced; and the average, if weights are averaged. A checkpoint's
    copy has the parameters, the state and the average. The network's embeddings are set to dense or
    sparse gradients. An LR that is trained by steps first (`l2_of_lr`) is counted where that takes
    more; one that is solved exactly is not (`bytes_of_regression`).

    >>> bytes_of_parameters(nn.Linear(10, 1, bias=False), TrainingSettings(optimizer="adagrad"))
    (200, 80)
    """
    weights = sum(p.nbytes for p in network.parameters())
    gradients = 0
    occurrences = 0
    if settings.optimizer == LBFGS:
        states = REGRESSION_BYTES_PER_WEIGHT * sum(p.numel() for p in network.parameters())
    else:
        gradients, states, occurrences = _bytes_of_optimizer(network, settings)

    copies = 1 + int(bool(settings.average))
    total = weights * (2 + copies) + gradients + states + occurrences
    checkpoint = weights * copies + states
    lr = first_lr_of(network, settings)
    if lr is None:
        return total, checkpoint

    lr_total, lr_checkpoint = bytes_of_parameters(lr, settings_of_lr(settings))
    lr_weights = sum(p.nbytes for p in lr.parameters())
    # the network has no gradients, states and best weights yet
    while_lr_trains = weights * copies + occurrences + lr_total
    # LR is kept until the mean has a copy of it
    while_network_trains = total + 2 * lr_weights
    return max(while_lr_trains, while_network_trains), max(checkpoint, lr_checkpoint)


def _bytes_of_optimizer(network: nn.Module, settings: TrainingSettings) -> tuple[int, int, int]:
    """Bytes of gradients, of the optimizer's states, and of the occurrences of rows."""
    occurrences = None
    if has_spread_l2(settings):
        table_rows = [len(embedding.weight) for embedding in field_embeddings(network)]
        occurrences = torch.empty(max(table_rows, default=0), device="meta")
    optimizer = RunOptimizer(network, settings, occurrences)
    lazy_tables = set()
    if optimizer.lazy is not None:
        lazy_tables = {id(group["params"][0]) for group in optimizer.lazy.param_groups}

    gradients = 0
    states = 0
    for parameter in network.parameters():
        if id(parameter) in lazy_tables:
            table = parameter.detach().to("meta")
            states_of_table = row_states(settings.optimizer, table, 0.0)
            states += sum(state.nbytes for state in states_of_table.values())
        else:
            gradients += parameter.nbytes
            states += parameter.nbytes * OPTIMIZERS[settings.optimizer].numbers
    return gradients, states, 0 if occurrences is None else occurrences.nbytes


def first_lr_of(network: nn.Module, settings: TrainingSettings) -> FirstOrder | None:
    """The LR that is trained by steps before a network, without memory of its own; None if there is none."""
    if not settings.solves_lr or settings.l2_of_lr is None:
        return None
    table_rows = [len(embedding.weight) for embedding in field_embeddings(network)]
    with torch.device("meta"):
        return FirstOrder(Layout.of_sizes([max(table_rows, default=1)]))


def bytes_of_rows(train: EncodedTable, valid_rows: int, settings: TrainingSettings) -> int:
    """Bytes of rows, their order, and the metrics of validation rows; the table itself is not counted."""
    metrics = METRICS_BYTES_PER_ROW * valid_rows
    if settings.optimizer == LBFGS:
        return REGRESSION_BYTES_PER_CELL * _cells(train) + metrics
    bytes_per_row = train.nbytes / max(len(train), 1)
    window = window_rows(train, settings.shuffle_rows)
    ordered = 8.0 * len(train)
    if window != len(train):
        ordered = 2 * window * (bytes_per_row + 8)
    gathered_rows = min(max(GATHERED_ROWS, settings.batch_size), len(train))
    gathered = 2 * gathered_rows * bytes_per_row
    return round(ordered + gathered + metrics)


def bytes_of_regression(train: EncodedTable, valid: EncodedTable) -> int:
    """Bytes while LR is solved exactly before a training (`start_from_lr`, `mean_with_lr`): rows, L-BFGS's vectors."""
    cells = _cells(train) + _cells(valid)
    weights = train.layout.num_rows + 1
    return REGRESSION_BYTES_PER_CELL * cells + REGRESSION_BYTES_PER_WEIGHT * weights


def _cells(table: EncodedTable) -> int:
    return table.ids.size + table.bag_ids.size


def bytes_of_step(
    build: Callable[[Layout], nn.Module],
    table: EncodedTable,
    settings: TrainingSettings,
    objective: Objective,
) -> int:
    """Bytes that a step allocates for its batch: what autograd keeps, gradients of layers, and temporary tensors.

    Steps over a few rows and over twice as many are watched, and extrapolated linearly, so that
    constant parts, such as gradients of parameters, are not counted. They train a network with at
    most 1,024 rows per field.
    """
    rows = min(2 * PROBE_ROWS, len(table))
    if settings.optimizer == LBFGS or rows < LEAST_PROBE_ROWS:
        return 0
    layout, new_rows = _shrink(table.layout)
    network = build(layout)
    batch, y = table.batch(torch.arange(rows))
    assert y is not None, "training rows have targets"
    batch = batch._replace(
        ids=new_rows[batch.ids.long()].to(batch.ids.dtype),
        bag_ids=new_rows[batch.bag_ids.long()].to(batch.bag_ids.dtype),
    )
    settings_of_probe = dataclasses.replace(
        settings,
        loss="logloss",
        unknown_share=0.0,
        compile=False,
        start_from_lr=False,
        mean_with_lr=False,
    )
    step = Step(network, table.take(np.arange(rows)), settings_of_probe, objective, 0)

    half = rows // 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network.train()
        of_half = _peak_of_step(step, batch.rows(torch.arange(half), table.bags_per_row), y[:half])
        of_all = _peak_of_step(step, batch.rows(torch.arange(rows), table.bags_per_row), y[:rows])
    bytes_per_row = max(0, of_all - of_half) / (rows - half)
    return round(bytes_per_row * min(settings.batch_size, len(table)))


def _shrink(layout: Layout) -> tuple[Layout, Tensor]:
    """A layout with at most 1,024 rows per field, and its row for each row of the embedding table [R]."""
    owners = [f for f in layout.fields if f.shares is None]
    sizes = {f.name: min(f.rows, PROBE_ROWS_OF_FIELD) for f in owners}
    offsets = itertools.accumulate(sizes.values(), initial=0)
    offset_of = dict(zip(sizes, offsets, strict=False))

    new_rows = torch.zeros(layout.num_rows, dtype=torch.int32)
    for f in owners:
        local_rows = torch.arange(f.rows, dtype=torch.int32) % sizes[f.name]
        new_rows[f.all_rows()] = offset_of[f.name] + local_rows

    fields = list[FieldLayout]()
    for f in layout.fields:
        owner = f.shares or f.name
        fields.append(
            dataclasses.replace(f, offset=offset_of[owner], rows=sizes[owner], extents=())
        )
    return Layout(tuple(fields)), new_rows


def _peak_of_step(step: Step, batch: Batch, y: Tensor) -> int:
    """The most bytes that a step allocates at once."""
    step(batch, y, None)  # makes the optimizer's states
    network = step.network
    network.zero_grad(set_to_none=True)
    allocations = _Allocations((*network.parameters(), *network.buffers(), *batch, y))
    with allocations:
        step(batch, y, None)
    return allocations.peak


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make, until they are freed."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current = 0
        self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        outputs = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                self._count(tensor)
        return outputs

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.current -= size
