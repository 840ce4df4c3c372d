"""The Triton backends for GPUs: AFM's pair attention pooling, MaxSim and dropout, in float32.

Triton comes with PyTorch's CUDA wheels (or with `pip install 'fieldwise[triton]'`) and is imported at the first op on a
GPU tensor. Only this module of the folder can be imported without it.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from fieldwise.ops.operators import implement

__all__ = ["READY", "WHY", "register"]

READY: bool = importlib.util.find_spec("triton") is not None
WHY: str = "Triton is installed: it runs float32 tensors on a GPU" if READY else "Triton is not installed"
OPERATORS = {
    "pair_attention_pool": ("pair_attention", "forward"),
    "pair_attention_pool_backward": ("pair_attention", "backward"),
    "dropout": ("dropout", "forward"),
    "max_sim": ("maxsim", "forward"),
    "max_sim_backward": ("maxsim", "backward"),
}


def register() -> None:
    """Register the operators' CUDA implementations if Triton is installed; call it once."""
    if READY:
        for name, (module, function) in OPERATORS.items():
            implement(name, _imported_when_called(module, function), "CUDA")


def _imported_when_called(module: str, function: str) -> Callable[..., Any]:
    def call(*inputs: Any) -> Any:
        found = importlib.import_module(f"fieldwise.ops.triton.{module}")
        with torch.cuda.device(inputs[0].device):  # Triton launches on the current device
            return getattr(found, function)(*inputs)

    return call
