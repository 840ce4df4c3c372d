"""Dropout on a GPU: its hash, an element-wise `fieldwise.ops.keep.keep_factors`, and its kernel.

Letters: R rows, N elements of a row.
"""

import triton
import triton.language as tl

__all__ = ["dropout_kernel", "keep_factors", "row_key"]


@triton.jit
def row_key(row, low, high):
    """The start of a row's sequence; low and high are the seed's words, as signed 32-bit numbers."""
    start = tl.add(row.to(tl.uint32), low.to(tl.uint32), sanitize_overflow=False)
    return _mixed(_mixed(start) ^ high.to(tl.uint32))


@triton.jit
def keep_factors(key, element, threshold, factor):
    """0 for an element that is dropped, `factor` for one that is kept."""
    step = tl.mul(element.to(tl.uint32), 0x9E3779B9, sanitize_overflow=False)
    draw = _mixed(tl.add(key, step, sanitize_overflow=False)) >> 8
    return tl.where(draw >= threshold.to(tl.uint32), factor, 0.0)


@triton.jit
def _mixed(x):
    x = tl.mul(x ^ (x >> 16), 0x21F0AAAD, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 15), 0xD35A2D97, sanitize_overflow=False)
    return x ^ (x >> 15)


@triton.jit(do_not_specialize=["low", "high", "threshold", "factor"])
def dropout_kernel(x_RN, out_RN, N, low, high, threshold, factor, BLOCK: tl.constexpr):
    """A part of one row per program."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_RN + row * N + n, mask=n < N, other=0.0)
    keep = keep_factors(row_key(row, low, high), n, threshold, factor)
    tl.store(out_RN + row * N + n, x * keep, mask=n < N)
