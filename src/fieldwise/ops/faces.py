"""Which face of an op runs: plain PyTorch (the truth), the native CPU kernels, or Triton on a GPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.native import NATIVE
from fieldwise.ops.triton import READY as TRITON_READY

__all__ = ["Face", "Mode", "face_of", "faces_here", "float32_under_autocast", "use_ops"]

Mode = Literal["auto", "plain", "native"]
Face = Literal["plain", "native", "triton"]
MODES: tuple[Mode, ...] = ("auto", "plain", "native")
NATIVE_TYPES = (torch.float32, torch.float64)

# Every op that has more than its plain face, and whether Triton is one of them.
OPS = {
    "AFM pair attention": True,
    "field self-attention": False,
    "MaxSim": True,
    "sparse embedding update": False,
    "FM": False,
}

_mode: Mode = "auto"


@contextmanager
def use_ops(mode: Mode) -> Iterator[None]:
    """Within the block, ops run as told; the setting is the process's, not a thread's.

    Args:
        mode: `auto`: the fastest face that takes the tensors, and the plain one while a model is exported, since what
            is exported must run where fieldwise is not installed. `plain`: PyTorch alone. `native`: the native kernels,
            in exports too; where they cannot take a tensor (its type or device), the op raises.

    Errors:
        ConfigError: an unknown mode; `native` without the native library.

    >>> with use_ops("plain"):
    ...     face_of(torch.ones(1))
    'plain'
    """
    global _mode
    before, _mode = _mode, checked(mode)
    try:
        yield
    finally:
        _mode = before


def checked(mode: str) -> Mode:
    """The mode, or a ConfigError."""
    for known in MODES:
        if mode == known:
            if known == "native" and not NATIVE.ready:
                raise ConfigError(f"native ops need the native library: {NATIVE.why}; take 'auto'")
            return known
    raise ConfigError(f"ops must be one of {', '.join(MODES)}, found {mode!r}: set FIELDWISE_OPS or use_ops")


def face_of(*tensors: Tensor, triton: bool = False) -> Face:
    """The face that takes these tensors.

    Args:
        tensors: all floating-point inputs of the op.
        triton: whether the op has a Triton face.

    Errors:
        ConfigError: the mode is `native` and a tensor is not a float32 or float64 tensor on the CPU.
    """
    first = tensors[0]
    if _mode == "plain" or (_mode == "auto" and torch.compiler.is_exporting()):
        return "plain"
    if first.is_cuda:
        single = all(t.is_cuda and t.dtype == torch.float32 for t in tensors)
        return "triton" if triton and TRITON_READY and single else "plain"
    same = all(t.device.type == "cpu" and t.dtype == first.dtype for t in tensors) and first.dtype in NATIVE_TYPES
    if NATIVE.ready and (same or torch.is_autocast_enabled("cpu")):  # the operators' autocast rule makes them float32
        return "native"
    if _mode == "native":
        found = f"{first.dtype} on {first.device.type}"
        raise ConfigError(f"native ops take float32 or float64 tensors of one type on the CPU, found {found}")
    return "plain"


def faces_here() -> dict[str, str]:
    """For each op with a fast face, which runs on this machine and why, as `fieldwise doctor` prints it."""
    cpu = f"native, {NATIVE.why}" if NATIVE.ready else f"plain PyTorch, {NATIVE.why}"
    if _mode == "plain":
        cpu = "plain PyTorch, as FIELDWISE_OPS asks"
    found = {}
    for name, triton in OPS.items():
        gpu = "; on the GPU " + ("Triton" if triton and _mode == "auto" else "plain PyTorch")
        found[name] = cpu + (gpu if torch.cuda.is_available() else "")
    return found


def float32_under_autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors as they are, or as float32 where autocast is on: what the operators' autocast rule does.

    The caller computes under `torch.autocast(..., enabled=False)`.

    >>> float32_under_autocast(torch.ones(1, dtype=torch.bfloat16))[0].dtype
    torch.bfloat16
    """
    on = torch.is_autocast_enabled(tensors[0].device.type)
    return [t.float() if on else t for t in tensors]


if "FIELDWISE_OPS" in os.environ:
    _mode = checked(os.environ["FIELDWISE_OPS"])
