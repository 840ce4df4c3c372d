"""Estimates of the memory for training: per parameter, and per batch."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.training.optimizer_kinds import OPTIMIZERS
from fieldwise.training.optimizers import run_optimizer
from fieldwise.training.settings import TrainingSettings

__all__ = ["bytes_of_parameters", "bytes_saved_for_backward"]

PROBE_ROWS = 64


def bytes_of_parameters(network: nn.Module, settings: TrainingSettings) -> int:
    """Bytes of everything with the size of the parameters during training.

    These are the parameters; their gradients (a lazily updated table has none as a whole); the optimizer's state, one
    number per row for a lazy table with `rowwise_adagrad`; the best weights so far, twice while they are replaced; and
    the average, if weights are averaged.

    Args:
        network: the network to train; its embeddings are set to dense or sparse gradients.
        settings: `optimizer`, `embedding_update`, `momentum`, `l2`, `l2_rows` and `average` are used.

    Errors:
        ConfigError: lazy updates that the settings do not allow.

    >>> bytes_of_parameters(nn.Linear(10, 1, bias=False), TrainingSettings(optimizer="sgd"))
    160
    """
    optimizer = run_optimizer(network, settings)
    lazy = {id(g["params"][0]) for g in optimizer.lazy.param_groups} if optimizer.lazy is not None else set()
    kind = OPTIMIZERS[settings.optimizer]
    kept = 3 + int(bool(settings.average))  # itself and twice the best
    total = 0
    for parameter in network.parameters():
        size = parameter.numel() * parameter.element_size()
        if id(parameter) not in lazy:
            total += size * (kept + 1 + kind.numbers(settings))
        else:
            assert kind.rows is not None, "run_optimizer refuses the others"
            states = kind.rows.states(parameter.detach().to("meta"), 0.0).values()
            total += size * kept + sum(state.numel() * state.element_size() for state in states)
    return total


def bytes_saved_for_backward(network: nn.Module, table: EncodedTable, batch_size: int) -> int:
    """Bytes that autograd saves for one batch, without the parameters.

    Measured on a few rows and on twice as many, and extrapolated linearly, so that constant parts are not scaled.
    """
    rows = min(batch_size, len(table))
    if rows <= 2 * PROBE_ROWS:
        return _saved(network, table, rows)
    few, more = (_saved(network, table, n) for n in (PROBE_ROWS, 2 * PROBE_ROWS))
    return round(more + (more - few) / PROBE_ROWS * (rows - 2 * PROBE_ROWS))


def _saved(network: nn.Module, table: EncodedTable, rows: int) -> int:
    batch, _ = table.batch(torch.arange(rows))  # copied: a slice would share the memory of the whole table
    own = {t.untyped_storage().data_ptr() for t in (*network.parameters(), *network.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    before: Mapping[str, Tensor] = {name: t.clone() for name, t in network.named_buffers()}
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        alive = network.train()(batch)  # kept, so that no two tensors share an address
    del alive
    for name, buffer in network.named_buffers():  # running means, which the pass has changed
        buffer.copy_(before[name])
    return sum(kept.values())
