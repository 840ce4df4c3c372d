"""What processes that train a network together settle before the first step and exchange in each.

Gradients are summed and equal to the bit in all processes: parameters that move as a whole travel as one buffer; of
embedding tables that move by rows, ids and rows travel.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError
from fieldwise.layers.batch_norm import normalize_over_processes
from fieldwise.ops.devices import device_of
from fieldwise.training.checkpoint import Checkpoints, State, differences
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings


def check_same_on_all_ranks(group: ProcessGroup, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the facts of process 0, nested plain values; else a ConfigError names one."""
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

    Batches, a device or a layer that cannot be shared are a ConfigError in all processes.
    """
    if settings.batch_size < group.size:
        raise ConfigError(
            f"each of the {group.size} processes needs a row of every batch, found training.batch_size = "
            f"{settings.batch_size}: raise it, or start fewer processes"
        )
    device = device_of(network)
    if device.type not in ("cpu", "cuda") or ":" in settings.device:
        raise ConfigError(
            f"each of the {group.size} processes trains on the CPU or takes a GPU of its own, found training.device = "
            f"{settings.device!r}: set it to cpu, or to cuda, and say by CUDA_VISIBLE_DEVICES which GPUs there are"
        )
    if device.type == "cuda":  # NCCL may hang by a shared one
        every = group.all_gather_object(str(torch.cuda.get_device_properties(device).uuid))
        shared = [(every.index(gpu), rank) for rank, gpu in enumerate(every) if every.index(gpu) < rank]
        if shared:
            raise ConfigError(
                f"each of the {group.size} processes needs a GPU of its own, but processes {shared[0][0]} and "
                f"{shared[0][1]} would share one, which NCCL does not support: start at most as many processes on a "
                "machine as it has GPUs, or train on the device cpu"
            )
    normalize_over_processes(network)
    for tensor in network.state_dict().values():
        dist.broadcast(tensor, 0)


def latest_checkpoint(checkpoints: Checkpoints | None, group: ProcessGroup | None) -> State | None:
    """The last whole checkpoint, which process 0 alone reads (`Checkpoints.newest`), and the others are sent."""
    state = None if checkpoints is None else checkpoints.newest()
    if group is None:
        return state
    facts, tensors = (None, {}) if state is None else state
    kinds = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()}
    facts, kinds = group.all_gather_object([facts, kinds])[0]
    if facts is None:
        return None
    made = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in kinds.items()}
    tensors = tensors or made
    for name in kinds:
        dist.broadcast(tensors[name], 0)
    return facts, tensors


class GradientSync:
    """Sums losses and gradients over the processes of a training in each step.

    The optimizer moves parameters as a whole, and tables with sparse gradients, one entry per id that was read.

    Attributes:
        noted: numbers of received signals, on which all processes act at the same step.
        agreed: whether all processes know that one of them has a signal.
        share: of this process's rows in those of the batch; times it a mean loss is a part of the batch's.
    """

    def __init__(self, group: ProcessGroup, optimizer: RunOptimizer, seed: int) -> None:
        self.group, self.seed, self.share = group, seed, 0.0
        self.noted, self.agreed = group.pending_signals, False  # also of the training before
        self.tables = [] if optimizer.lazy is None else [group["params"][0] for group in optimizer.lazy.param_groups]
        self.dense = [p for p in optimizer.parameters if p.requires_grad]

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
        if self.tables:
            self._gather_tables()
        own = loss if self.share else torch.zeros_like(loss)  # the mean over no rows is not a number
        facts = [len(self.noted), *(p.grad is not None for p in self.dense)]
        grads = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.dense]
        summed = torch.cat([own.view(1), own.new_tensor(facts), *grads])
        dist.all_reduce(summed)
        noted, *having = summed[1 : 1 + len(facts)].tolist()
        self.agreed = noted > 0
        whole = torch.split(summed[1 + len(facts) :], [p.numel() for p in self.dense])
        for p, grad, had in zip(self.dense, whole, having, strict=True):
            p.grad = grad.view_as(p).to(p.dtype) if had else None  # None if no process has one
        return summed[0].to(loss.dtype)

    def _gather_tables(self) -> None:
        """Gather the ids and rows of tables; an optimizer sums the rows of an id by the native operation."""
        none = torch.empty(0, dtype=torch.int64, device=self.tables[0].device)
        grads = [(none, t[:0]) if t.grad is None else (t.grad._indices()[0], t.grad._values()) for t in self.tables]
        lengths = self.group.all_gather(torch.tensor([len(ids) for ids, _ in grads])).t().tolist()
        for table, (ids, rows), each in zip(self.tables, grads, lengths, strict=True):
            every = self.group.all_gather_v(ids, each).view(1, -1), self.group.all_gather_v(rows, each)
            table.grad = torch.sparse_coo_tensor(*every, table.shape, check_invariants=False)
