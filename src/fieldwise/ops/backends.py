"""Choice of an op's backend: plain PyTorch (the reference), or the native CPU kernels."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fieldwise.errors import ConfigError
from fieldwise.ops.devices import CPU
from fieldwise.ops.native import NATIVE

__all__ = [
    "Backend",
    "Mode",
    "autocast_to_bfloat16",
    "backend_of",
    "backends_here",
    "float32_under_autocast",
    "missing_on",
    "plain_is_set",
    "use_ops",
]

Mode = Literal["auto", "plain", "native"]
Backend = Literal["plain", "native"]
MODES: tuple[Mode, ...] = ("auto", "plain", "native")
NATIVE_TYPES = (torch.float32, torch.float64)
AUTOCAST_TYPES = (torch.float32, torch.bfloat16, torch.float16)  # types that autocast casts to float32

# Every op with a native backend. On other devices than the CPU field self-attention without dropout is PyTorch's
# `scaled_dot_product_attention`.
OPS = ("AFM pair attention", "field self-attention", "MaxSim", "sparse embedding update", "FM", "dropout")

_mode: Mode = "auto"


@contextmanager
def use_ops(mode: Mode) -> Iterator[None]:
    """A context that sets the backend of ops, for the whole process (not per thread).

    Args:
        mode: `auto`: the fastest backend that supports the tensors. The plain one is used during export, since an
            exported model must run without fieldwise, inside transforms of `torch.func`, and for tensors with a
            forward-mode tangent, which the others do not support. `plain`: only PyTorch. `native`: the native kernels,
            also in exports; the op raises if they do not support a tensor (its type, its device, a tangent).

    Errors:
        ConfigError: an unknown mode; `native` without the native library.

    >>> with use_ops("plain"):
    ...     backend_of(torch.ones(1))
    'plain'
    """
    global _mode
    before, _mode = _mode, checked(mode)
    try:
        yield
    finally:
        _mode = before


def checked(mode: str) -> Mode:
    """The mode, after checking it (ConfigError)."""
    for known in MODES:
        if mode == known:
            if known == "native" and not NATIVE.ready:
                raise ConfigError(f"native ops need the native library: {NATIVE.why}; use 'auto'")
            return known
    raise ConfigError(f"ops must be one of {', '.join(MODES)}, found {mode!r}: set FIELDWISE_OPS or use_ops")


def backend_of(*tensors: Tensor, autocasts: bool = True) -> Backend:
    """The backend for these tensors.

    Args:
        tensors: all floating-point inputs of the op.
        autocasts: whether autocast casts the tensors to float32 before they reach the operator.

    Errors:
        ConfigError: the mode is `native` and a tensor is not a float32 or float64 tensor on the CPU, or has a
            tangent.
    """
    first = tensors[0]
    if _mode != "plain" and _carry_tangents(tensors):
        if _mode == "native":
            raise ConfigError("native ops have no forward-mode derivative, found a tensor with a tangent: use 'auto'")
        return "plain"
    if _mode == "plain" or (_mode == "auto" and (torch.compiler.is_exporting() or _transformed())):
        return "plain"
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    one_type = first.dtype in NATIVE_TYPES and all(t.dtype == first.dtype for t in tensors)
    cast = autocasts and torch.is_autocast_enabled("cpu") and all(t.dtype in AUTOCAST_TYPES for t in tensors)
    if NATIVE.ready and on_cpu and (one_type or cast):
        return "native"
    if _mode == "native":
        found = ", ".join(sorted({f"{t.dtype} on {t.device.type}" for t in tensors}))
        raise ConfigError(f"native ops take float32 or float64 tensors of one type on the CPU, found {found}")
    return "plain"


def plain_is_set() -> bool:
    """Whether only the reference implementations are to run."""
    return _mode == "plain"


def _transformed() -> bool:
    """Whether a transform of `torch.func` (grad, vmap, jvp) is active, which would loop over operators or skip them."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _carry_tangents(tensors: tuple[Tensor, ...]) -> bool:
    """Whether a tensor has a forward-mode tangent, which an operator would drop."""
    if torch.compiler.is_compiling():
        return False
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)  # type: ignore[no-untyped-call]


def backends_here(device: torch.device = CPU) -> dict[str, str]:
    """The backend of each op on a device of this machine and the reason, as printed by `fieldwise doctor`."""
    if _mode == "plain":
        return dict.fromkeys(OPS, "plain PyTorch, set by FIELDWISE_OPS")
    if device.type == "cpu":
        return dict.fromkeys(OPS, f"native, {NATIVE.why}" if NATIVE.ready else f"plain PyTorch, {NATIVE.why}")
    return dict.fromkeys(OPS, "plain PyTorch")


def missing_on(device: torch.device) -> str | None:
    """A sentence on native operations that a CPU lacks; None if it has them, and for other devices, which have none.

    >>> missing_on(torch.device("cuda")) is None
    True
    """
    if _mode != "auto" or device.type != "cpu" or NATIVE.ready:
        return None
    return f"operations run as plain PyTorch, many times slower: {NATIVE.why}"


def float32_under_autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors, cast to float32 if autocast is on and they are narrower: the operators' autocast rule.

    The caller must compute under `torch.autocast(..., enabled=False)`.

    >>> float32_under_autocast(torch.ones(1, dtype=torch.bfloat16))[0].dtype
    torch.bfloat16
    """
    on = torch.is_autocast_enabled(tensors[0].device.type)
    return [t.float() if on and t.dtype in AUTOCAST_TYPES else t for t in tensors]


def autocast_to_bfloat16() -> bool:
    """Whether CPU operations are under autocast to bfloat16.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_to_bfloat16()
    True
    """
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


if "FIELDWISE_OPS" in os.environ:
    _mode = checked(os.environ["FIELDWISE_OPS"])
