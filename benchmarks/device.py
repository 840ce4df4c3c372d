"""The device of a contender: its name in the options, waiting for it, and its peak of memory."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.absent import NotAvailableError
from fieldwise.errors import ConfigError
from fieldwise.ops.devices import open_device, wait_for

__all__ = ["NO_GPU", "device_of", "waited", "watched"]

NO_GPU = "the cases of a GPU need one that PyTorch can use (`fieldwise doctor` shows the devices), found none"


def device_of(options: Mapping[str, Any]) -> torch.device:
    """The device that the options name, `cpu` if none.

    Errors:
        NotAvailableError: it is not there.
    """
    try:
        return open_device(options.get("device", "cpu"))
    except ConfigError as e:
        raise NotAvailableError(str(e)) from None


def watched(turn: Callable[[], dict[str, float]], device: torch.device) -> Callable[[], dict[str, float]]:
    """A turn that also measures the most memory of the GPU that tensors took; the turn itself on the CPU."""
    if device.type != "cuda":
        return turn

    def measured() -> dict[str, float]:
        torch.cuda.reset_peak_memory_stats(device)
        found = turn()
        return {**found, "peak MB": torch.cuda.max_memory_allocated(device) / 1e6}

    return measured


def waited(work: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Work that ends when the device has done it."""
    if device.type == "cpu":
        return work

    def done() -> Tensor:
        found = work()
        wait_for(device)
        return found

    return done
