"""What processes that train a network together settle before the first step and exchange in each.

Gradients are summed and equal to the bit in all processes: parameters that move as a whole travel as one buffer; of
embedding tables that move by rows, ids and rows travel.

Letters: N ids of this process, A ids of all, D width of a table.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError
from fieldwise.layers.batch_norm import normalize_over_processes
from fieldwise.ops.devices import device_of
from fieldwise.training.checkpoint import Checkpoints, State, differences
from fieldwise.training.interrupts import Signals
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings

__all__ = ["GradientSync", "broadcast_parameters", "check_own_gpu", "check_same_on_all_ranks", "latest_checkpoint"]


def check_same_on_all_ranks(group: ProcessGroup, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the facts of process 0.

    Args:
        group: the processes.
        facts: nested plain values: settings, digests of rows, versions.

    Errors:
        ConfigError: in all processes; it names the first that differs, and what does.
    """
    every = group.all_gather_object(facts)
    for rank, own in enumerate(every):
        if unequal := differences(every[0], own):
            name, first, other = unequal[0]
            more = f", and {len(unequal) - 1} more differ" if len(unequal) > 1 else ""
            raise ConfigError(
                f"all {group.size} processes must train with the same settings, rows and versions, but process {rank} "
                f"has {name} {other} where process 0 has {first}{more}: start all of them with the same recipe, files "
                "and version"
            )


def broadcast_parameters(network: nn.Module, group: ProcessGroup, settings: TrainingSettings) -> None:
    """Give a network the weights of process 0, and let what reads a whole batch read all processes' rows.

    Errors:
        ConfigError: batches that cannot be shared, or a layer that cannot.
    """
    if settings.batch_size < group.size:
        raise ConfigError(
            f"each of the {group.size} processes needs a row of every batch, found training.batch_size = "
            f"{settings.batch_size}: raise it, or start fewer processes"
        )
    device = device_of(network)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"several processes share a training on CPUs or on CUDA's GPUs, found device = {device.type!r}"
        )
    if device.type == "cuda":
        check_own_gpu(group, str(torch.cuda.get_device_properties(device).uuid))
    if ":" in settings.device:
        raise ConfigError(
            f"each of the {group.size} processes takes a GPU of its own, found training.device = {settings.device!r}, "
            "which is one: leave the number out, and say by CUDA_VISIBLE_DEVICES which GPUs there are"
        )
    normalize_over_processes(network)
    for tensor in network.state_dict().values():
        group.broadcast(tensor)


def check_own_gpu(group: ProcessGroup, gpu: str) -> None:
    """Check that no two processes have one GPU: NCCL does not support that, and may hang by it.

    Args:
        group: the processes.
        gpu: what tells this process's GPU from all others.

    Errors:
        ConfigError: in all processes.
    """
    every = group.all_gather_object(gpu)
    for rank, one in enumerate(every):
        if (first := every.index(one)) < rank:
            raise ConfigError(
                f"each of the {group.size} processes needs a GPU of its own, but processes {first} and {rank} would "
                "share one, which NCCL does not support: start at most as many processes on a machine as it has GPUs, "
                "or train with --device cpu"
            )


def latest_checkpoint(checkpoints: Checkpoints | None, group: ProcessGroup | None) -> State | None:
    """The last whole checkpoint, which process 0 reads and the others are sent; see `Checkpoints.newest`.

    Args:
        checkpoints: None in other processes than 0, and where none are kept.
        group: the processes; None for a process alone.
    """
    state = None if checkpoints is None else checkpoints.newest()
    if group is None:
        return state
    read = {} if state is None else state.tensors
    kinds = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in read.items()}
    facts, kinds = group.broadcast_object([None if state is None else state.facts, kinds])
    if facts is None:
        return None
    own = read or {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in kinds.items()}
    return State(facts=facts, tensors={name: group.broadcast(own[name]) for name in kinds})


class GradientSync:
    """Sums losses and gradients over the processes of a training in each step.

    Args:
        group: the processes.
        optimizer: it moves parameters as a whole, and tables with sparse gradients, one entry per id that was read.
        seed: the run's seed.

    Attributes:
        signals: received signals, on which all processes act at the same step.
        share: of this process's rows in those of the batch; times it a mean loss is a part of the batch's.
    """

    def __init__(self, group: ProcessGroup, optimizer: RunOptimizer, seed: int) -> None:
        self.group, self.seed, self.share = group, seed, 0.0
        self.signals = Signals(noted=group.pending_signals)  # also of the training before
        lazy = [] if optimizer.lazy is None else optimizer.lazy.param_groups
        self.tables: list[nn.Parameter] = [group["params"][0] for group in lazy]
        dense = [p for p in optimizer.parameters if p.requires_grad]
        self._kinds = {p.dtype: [q for q in dense if q.dtype == p.dtype] for p in dense}
        self._flat = {
            dtype: torch.empty(sum(p.numel() + 1 for p in group), dtype=dtype, device=group[0].device)
            for dtype, group in self._kinds.items()
        }

    def begin(self, epoch: int, step: int, own: int, rows: int) -> None:
        """A step begins: this process has `own` of the batch's rows. Dropout's draws depend on step and process.

        `torch.manual_seed` also notes a call stack for each kind of device that is not in use: 2 ms in every step.
        """
        self.share = own / rows
        key = hashlib.sha256(f"step {self.seed} {epoch} {step} {self.group.rank}".encode()).digest()
        seed = int.from_bytes(key[:4], "little")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)

    @torch.no_grad()
    def __call__(self, loss: Tensor) -> Tensor:
        """Make gradients those of the whole batch; returns its loss, of which `loss` is this process's part."""
        for dtype, parameters in self._kinds.items():
            self._sum(parameters, self._flat[dtype])
        self._gather_tables()
        own = loss.detach() if self.share else torch.zeros_like(loss)  # the mean over no rows is not a number
        both = self.group.all_reduce(torch.stack([own.double(), own.new_tensor(len(self.signals.noted)).double()]))
        self.signals.agreed = bool(both[1] > 0)
        return both[0].to(loss.dtype)

    def _sum(self, parameters: list[nn.Parameter], flat: Tensor) -> None:
        """Sum gradients that are whole; one that no process has stays None."""
        count, sizes = len(parameters), [p.numel() for p in parameters]
        views = [view.view_as(p) for view, p in zip(torch.split(flat[count:], sizes), parameters, strict=True)]
        flat[:count] = flat.new_tensor([p.grad is not None for p in parameters])
        for view, p in zip(views, parameters, strict=True):
            if p.grad is None:
                view.zero_()
            else:
                view.copy_(p.grad)
        self.group.all_reduce(flat)
        for view, p, having in zip(views, parameters, flat[:count].tolist(), strict=True):
            p.grad = view if having else None

    def _gather_tables(self) -> None:
        """Gather the ids and rows of tables; those of tables that were read by the same ids travel together."""
        if not self.tables:
            return
        none = torch.empty(0, dtype=torch.int64, device=self.tables[0].device)
        grads = [
            (none, t.new_empty(0, t.shape[1])) if t.grad is None else (t.grad._indices()[0], t.grad._values())
            for t in self.tables
        ]
        alike = [k > 0 and torch.equal(ids, grads[k - 1][0]) for k, (ids, _) in enumerate(grads)]
        gathered = self.group.all_gather(torch.tensor([[len(ids) for ids, _ in grads], alike]))
        lengths, together = gathered[:, 0].t().tolist(), gathered[:, 1].all(0).tolist()
        starts = [k for k, joined in enumerate(together) if not joined]
        for start, end in zip(starts, [*starts[1:], len(grads)], strict=True):
            ids = self.group.all_gather_v(grads[start][0], lengths[start]).view(1, -1)
            rows = self.group.all_gather_v(torch.cat([rows for _, rows in grads[start:end]], 1), lengths[start])
            tables = self.tables[start:end]
            for table, own in zip(tables, torch.split(rows, [t.shape[1] for t in tables], 1), strict=True):
                table.grad = torch.sparse_coo_tensor(ids, own, table.shape, check_invariants=False)
