"""Dropout in Triton: the op's CUDA implementation.

Letters: R rows, N elements of a row.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from fieldwise.ops.keep import keep_threshold
from fieldwise.ops.triton.keep_kernels import dropout_kernel

__all__ = ["forward", "seed_words"]

MOST = 1024  # elements of a program


def forward(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """`fieldwise::dropout`, which is its own gradient; the seed is on the CPU.

    Shape:
        x: [R, ...] of any floating-point type; seed: [1], int64; returns the same as x.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel():
        rows = x.shape[0]
        elements = x.numel() // rows
        block = min(MOST, triton.next_power_of_2(elements))
        low, high = seed_words(int(seed))
        grid = (rows, triton.cdiv(elements, block))
        dropout_kernel[grid](x, out, elements, low, high, keep_threshold(p), 1.0 / (1.0 - p), BLOCK=block)
    return out


def seed_words(seed: int) -> tuple[int, int]:
    """A seed's lower and upper word as signed 32-bit numbers: Triton compiles a kernel for each type of an argument."""
    words: list[Any] = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    low, high = (word - 2**32 if word >= 2**31 else word for word in words)
    return low, high
