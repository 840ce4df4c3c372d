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
from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layout import Layout
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import RunOptimizer, has_spread_l2, row_states
from fieldwise.training.settings import LBFGS, OPTIMIZERS, TrainingSettings
from fieldwise.training.step import Step
from fieldwise.training.stepped_lr import settings_of_lr

PROBE_ROWS = 64
LEAST_ROWS = 4  # two halves of at least two rows, for batch normalization
PROBE_VOCABULARY = 1_024  # rows of a field
GATHERED_ROWS = 32_768  # `EncodedTable.batches`
EVALUATED = 90  # bytes of metrics per row
# bytes of an exact regression per cell of the rows, and per weight
CELL = 40
SOLVED = 8 * (2 * 20 + 34)


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
    sizes = [p.numel() * p.element_size() for p in network.parameters()]
    gradients = 0
    counted = 0
    if settings.optimizer == LBFGS:
        states = SOLVED * sum(p.numel() for p in network.parameters())
    else:
        occurrences = None
        if has_spread_l2(settings):
            tables = [
                module.weight for module in network.modules() if isinstance(module, FieldEmbedding)
            ]
            occurrences = torch.empty(max(map(len, tables), default=0), device="meta")
        optimizer = RunOptimizer(network, settings, occurrences)
        states = 0
        if occurrences is not None:
            counted = occurrences.numel() * occurrences.element_size()
        lazy = (
            {id(g["params"][0]) for g in optimizer.lazy.param_groups}
            if optimizer.lazy is not None
            else set()
        )
        for parameter, size in zip(network.parameters(), sizes, strict=True):
            if id(parameter) not in lazy:
                gradients += size
                states += size * OPTIMIZERS[settings.optimizer].numbers
            else:
                rows = row_states(settings.optimizer, parameter.detach().to("meta"), 0.0).values()
                states += sum(state.numel() * state.element_size() for state in rows)
    weights = sum(sizes)
    copies = 1 + int(bool(settings.average))
    total = weights * (2 + copies) + gradients + states + counted
    checkpoint = weights * copies + states
    lr = first_lr_of(network, settings)
    if lr is None:
        return total, checkpoint
    of_lr, lr_checkpoint = bytes_of_parameters(lr, settings_of_lr(settings))
    # the network has no gradients, states and best weights yet
    before = weights * copies + counted + of_lr
    result = sum(p.numel() * p.element_size() for p in lr.parameters())
    # kept until the mean has a copy of it
    return max(before, total + 2 * result), max(checkpoint, lr_checkpoint)


def first_lr_of(network: nn.Module, settings: TrainingSettings) -> FirstOrder | None:
    """The LR that is trained by steps before a network, without memory of its own; None if there is none."""
    if not settings.solves_lr or settings.l2_of_lr is None:
        return None
    rows = max(
        (len(m.weight) for m in network.modules() if isinstance(m, FieldEmbedding)), default=1
    )
    with torch.device("meta"):
        return FirstOrder(Layout.of_sizes([rows]))


def bytes_of_rows(train: EncodedTable, valid_rows: int, settings: TrainingSettings) -> int:
    """Bytes of rows, their order, and the metrics of validation rows; the table itself is not counted."""
    row = train.nbytes / max(len(train), 1)
    window = window_rows(train, settings.shuffle_rows)
    ordered = 8 * len(train) if window == len(train) else 2 * window * (row + 8)
    if settings.optimizer == LBFGS:
        return CELL * (train.ids.size + train.bag_ids.size) + EVALUATED * valid_rows
    gathered = 2 * min(max(GATHERED_ROWS, settings.batch_size), len(train)) * row
    return round(ordered + gathered + EVALUATED * valid_rows)


def bytes_of_regression(train: EncodedTable, valid: EncodedTable) -> int:
    """Bytes while LR is solved exactly before a training (`start_from_lr`, `mean_with_lr`): rows, L-BFGS's vectors."""
    cells = sum(table.ids.size + table.bag_ids.size for table in (train, valid))
    return CELL * cells + SOLVED * (train.layout.num_rows + 1)


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
    layout = table.layout
    rows = min(2 * PROBE_ROWS, len(table))
    if settings.optimizer == LBFGS or rows < LEAST_ROWS:
        return 0
    own = [f for f in layout.fields if f.shares is None]
    sizes = {f.name: min(f.rows, PROBE_VOCABULARY) for f in own}
    starts = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    # the row there of each row of the embedding table
    small = torch.zeros(layout.num_rows, dtype=torch.int32)
    for f in own:
        small[f.all_rows()] = (
            starts[f.name] + torch.arange(f.rows, dtype=torch.int32) % sizes[f.name]
        )
    names = [f.shares or f.name for f in layout.fields]
    fields = (
        dataclasses.replace(f, offset=starts[name], rows=sizes[name], extents=())
        for f, name in zip(layout.fields, names, strict=True)
    )
    network = build(Layout(tuple(fields)))
    batch, y = table.batch(torch.arange(rows))
    assert y is not None, "training rows have targets"
    ids, bag_ids = (small[each.long()].to(each.dtype) for each in (batch.ids, batch.bag_ids))
    batch = batch._replace(ids=ids, bag_ids=bag_ids)
    plain = dataclasses.replace(
        settings, unknown_share=0.0, compile=False, start_from_lr=False, mean_with_lr=False
    )
    step = Step(network, table.take(np.arange(rows)), plain, objective, 0)
    most = list[int]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network.train()
        for n in (rows // 2, rows):
            part = batch.rows(torch.arange(n), table.bags_per_row)
            targets = y[:n]
            step(part, targets, None)  # makes the optimizer's states
            network.zero_grad(set_to_none=True)
            with _Allocations((*network.parameters(), *network.buffers(), *part, targets)) as watch:
                step(part, targets, None)
            most.append(watch.most)
    return round(
        max(0, most[1] - most[0]) / (rows - rows // 2) * min(settings.batch_size, len(table))
    )


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that operations make, until they are freed."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                key = storage._cdata
                size = storage.nbytes()
                if key not in self._seen:
                    self._seen.add(key)
                    self.now += size
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._freed, key, size)
        return made

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
