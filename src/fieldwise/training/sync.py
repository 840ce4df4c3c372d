"""What processes that train a network together settle before the first step."""

import socket
from typing import Any

import torch
from torch import nn

from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError
from fieldwise.layers.batch_norm import normalize_over_processes
from fieldwise.ops.devices import device_of
from fieldwise.training.checkpoint import Checkpoints, State
from fieldwise.training.settings import TrainingSettings

__all__ = ["broadcast_parameters", "check_own_gpu", "latest_checkpoint"]


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
    if (kind := device_of(network).type) not in ("cpu", "cuda"):
        raise ConfigError(f"several processes share a training on CPUs or on CUDA's GPUs, found device = {kind!r}")
    if kind == "cuda":
        check_own_gpu(group, _gpu(device_of(network)))
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


def _gpu(device: torch.device) -> str:
    """The GPU's unique id where CUDA tells it, else its number on its machine."""
    found = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"{socket.gethostname()}, {device}" if found is None else str(found)


def latest_checkpoint(checkpoints: Checkpoints | None, group: ProcessGroup | None) -> State | None:
    """The last whole checkpoint, which process 0 reads and the others are sent; see `Checkpoints.newest`.

    Args:
        checkpoints: None in other processes than 0, and where none are kept.
        group: the processes; None for a process alone.
    """
    found = None if checkpoints is None else checkpoints.newest()
    if group is None:
        return found
    kinds = None
    if found is not None:
        kinds = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in found.tensors.items()}
    about = None if found is None else {"facts": found.facts, "kinds": kinds}
    told: dict[str, Any] | None = group.broadcast_object(about)
    if told is None:
        return None
    tensors = {}
    for name, (shape, dtype) in told["kinds"].items():
        own = torch.empty(shape, dtype=getattr(torch, dtype)) if found is None else found.tensors[name]
        tensors[name] = group.broadcast(own)
    return State(facts=told["facts"], tensors=tensors)
