"""Processes that train together: the same weights at the start, the same gradients in each step."""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError
from fieldwise.layers.batch_norm import normalize_over_processes
from fieldwise.ops.devices import device_of
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings


def broadcast_parameters(
    network: nn.Module, group: ProcessGroup, settings: TrainingSettings
) -> None:
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
    if device.type == "cuda":
        _check_one_gpu_each(device, group)
    normalize_over_processes(network)
    for tensor in network.state_dict().values():
        dist.broadcast(tensor, 0)


def _check_one_gpu_each(device: torch.device, group: ProcessGroup) -> None:
    """Check that no two processes share a GPU, by which NCCL may hang; else a ConfigError."""
    gpu_by_rank = group.all_gather_object(str(torch.cuda.get_device_properties(device).uuid))
    for rank, gpu in enumerate(gpu_by_rank):
        first_rank = gpu_by_rank.index(gpu)
        if first_rank < rank:
            raise ConfigError(
                f"each of the {group.size} processes needs a GPU of its own, but processes {first_rank} and "
                f"{rank} would share one, which NCCL does not support: start at most as many processes on a "
                "machine as it has GPUs, or train on the device cpu"
            )


class GradientSync:
    """Sums losses and gradients over the processes of a training in each step.

    Gradients are equal to the bit in all processes: parameters that the optimizer moves as a whole
    travel as one buffer; of embedding tables that move by rows, ids and rows travel, one entry per
    id that was read.

    Attributes:
        noted: numbers of received signals, on which all processes act at the same step.
        agreed: whether all processes know that one of them has a signal.
        share: of this process's rows in those of the batch; times it a mean loss is a part of the
            batch's.
    """

    def __init__(self, group: ProcessGroup, optimizer: RunOptimizer, seed: int) -> None:
        self.group = group
        self.seed = seed
        self.share = 0.0
        # also of the training before
        self.noted = group.pending_signals
        self.agreed = False
        self.tables = list[Tensor]()
        if optimizer.lazy is not None:
            self.tables = [options["params"][0] for options in optimizer.lazy.param_groups]
        self.dense = [p for p in optimizer.parameters if p.requires_grad]

    def begin(self, epoch: int, step: int, local_rows: int, batch_rows: int) -> None:
        """A step begins: this process has some of the batch's rows. Dropout's draws depend on step and process.

        `torch.manual_seed` also notes a call stack for each kind of device that is not in use: 2 ms
        in every step.
        """
        self.share = local_rows / batch_rows
        key = hashlib.sha256(f"step {self.seed} {epoch} {step} {self.group.rank}".encode()).digest()
        seed = int.from_bytes(key[:4], "little")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)

    @torch.no_grad()
    def __call__(self, loss: Tensor) -> Tensor:
        """Make gradients those of the whole batch; returns its loss, of which `loss` is this process's part."""
        if self.tables:
            self._gather_table_gradients()

        # the mean over no rows is not a number
        local_loss = loss if self.share else torch.zeros_like(loss)
        has_gradient = [p.grad is not None for p in self.dense]
        facts = [len(self.noted), *has_gradient]
        gradients = []
        for p in self.dense:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            gradients.append(gradient.flatten())
        buffer = torch.cat([local_loss.view(1), local_loss.new_tensor(facts), *gradients])
        dist.all_reduce(buffer)

        num_noted, *num_with_gradient = buffer[1 : 1 + len(facts)].tolist()
        self.agreed = num_noted > 0
        summed = torch.split(buffer[1 + len(facts) :], [p.numel() for p in self.dense])
        for p, gradient, count in zip(self.dense, summed, num_with_gradient, strict=True):
            p.grad = None
            if count:
                p.grad = gradient.view_as(p).to(p.dtype)
        return buffer[0].to(loss.dtype)

    def _gather_table_gradients(self) -> None:
        """Give each table the ids and rows of all processes; an optimizer sums the rows of an id."""
        no_ids = torch.empty(0, dtype=torch.int64, device=self.tables[0].device)
        local = list[tuple[Tensor, Tensor]]()
        for table in self.tables:
            if table.grad is None:
                local.append((no_ids, table[:0]))
            else:
                local.append((table.grad._indices()[0], table.grad._values()))
        local_lengths = torch.tensor([len(ids) for ids, _ in local])
        lengths_by_table = self.group.all_gather(local_lengths).t().tolist()
        for table, (ids, rows), lengths in zip(self.tables, local, lengths_by_table, strict=True):
            all_ids = self.group.all_gather_v(ids, lengths).view(1, -1)
            all_rows = self.group.all_gather_v(rows, lengths)
            table.grad = torch.sparse_coo_tensor(
                all_ids, all_rows, table.shape, check_invariants=False
            )
