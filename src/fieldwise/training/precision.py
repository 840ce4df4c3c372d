"""Computing in bfloat16, and checks for hardware support of it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

__all__ = ["Precision", "computes_bfloat16", "in_precision", "slow_bfloat16"]


Precision = Literal["float32", "bfloat16"]
# Names of torch.cpu.get_capabilities(): x86's dot products and tiles, ARM's.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


def computes_bfloat16() -> bool:
    """Whether this CPU has instructions for bfloat16 products."""
    found = torch.cpu.get_capabilities()
    return any(bool(found.get(name)) for name in BFLOAT16)


def slow_bfloat16(device: str = "cpu") -> str | None:
    """A sentence if bfloat16 would be slower than float32 on a device (`cpu` or `cuda`), else None.

    >>> slow_bfloat16("cuda") is None
    True
    """
    if device != "cpu" or computes_bfloat16():
        return None
    return (
        "this CPU has no bfloat16 arithmetic (AVX512-BF16, AMX or ARM's), so PyTorch computes its products up to "
        "100 times slower than in float32: set precision = 'float32'"
    )


def in_precision(precision: Precision, device: str) -> AbstractContextManager[object]:
    """A context in which a network on a device (`cpu`, `cuda`, `mps`) multiplies matrices in this precision.

    >>> with in_precision("bfloat16", "cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    return torch.autocast(device, dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
