"""Dropout whose mask is a function of a seed: every backend drops the same elements and stores no mask.

Letters: B rows, R rows of a mask, N elements of a row.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.ops.native import NATIVE, OPERATORS, backend_of, define, implement, type_name

_WORD = 0xFFFFFFFF
_STEP = 0x9E3779B9  # 2^32 / golden ratio


def draw_seeds(count: int) -> Tensor:
    """Seeds [count], int64, from PyTorch's global generator (`torch.manual_seed`)."""
    return torch.randint(0, 2**63 - 1, (count,))


def keep_threshold(p: float) -> int:
    """The number of 2^24 equally likely draws that drop an element at rate p.

    Errors:
        ConfigError: p is not in [0, 1).
    """
    if not 0 <= p < 1:
        raise ConfigError(f"a dropout rate must be in [0, 1), found {p}")
    return round(p * 2**24)


def keep_factors(
    seed: Tensor, rows: int, elements: int, p: float, *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The mask's factors, 0 for dropped and `1 / (1 - p)` for kept elements, by `hash_draws`.

    Args:
        seed: one number, int64.
        rows: R.
        elements: N.
        p: dropout rate, in [0, 1).
        dtype: type of the result.

    Shape:
        returns [R, N].

    >>> keep_factors(torch.tensor(1), 1, 6, 0.5)
    tensor([[2., 0., 0., 0., 0., 2.]])
    """
    return (hash_draws(seed, rows, elements) >= keep_threshold(p)).to(dtype) / (1.0 - p)


def hash_draws(seed: Tensor, rows: int, elements: int) -> Tensor:
    """Equally likely whole numbers below 2^24 on the seed's device, by a hash of (seed, row r, element n).

    The hash is two rounds of multiply and shift in 32 bits (constants from Wellons' search for low
    bias), over a sequence that starts at a hash of seed and row; 24 of its bits count. The native
    kernels (`native/vec.h`) compute the same.

    Shape:
        returns [R, N].
    """
    low = seed & _WORD
    high = (seed >> 32) & _WORD
    row_R = torch.arange(rows, dtype=torch.int64, device=seed.device)
    key_R = _mixed(_mixed((row_R + low) & _WORD) ^ high)
    step_N = torch.arange(elements, dtype=torch.int64, device=seed.device) * _STEP
    return _mixed((key_R[:, None] + step_N) & _WORD) >> 8


def _mixed(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _WORD
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & _WORD
    return x ^ (x >> 15)


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout: each element becomes 0 with probability p, else it is divided by `1 - p` (Srivastava et al., JMLR 2014).

    A row's mask is a hash of a seed and the row's number (`fieldwise.ops.dropout`), equal in all
    backends and on all devices; the seed comes from PyTorch's global generator. PyTorch's own
    dropout is used for a rate of 1, for one dimension, and for 16 bits on the CPU.

    Args:
        x: rows of any shape.
        p: dropout rate, in [0, 1].
        training: whether dropout is on.

    Shape:
        x: [B, ...]; returns the same.

    >>> dropout(torch.ones(2, 2), 0.5, False)
    tensor([[1., 1.],
            [1., 1.]])
    >>> _ = torch.manual_seed(0)
    >>> sorted(set(dropout(torch.ones(8, 8), 0.5, True).flatten().tolist()))
    [0.0, 2.0]
    """
    if not training or p == 0:
        return x
    narrow = x.dtype not in (torch.float32, torch.float64)
    if (narrow and x.device.type == "cpu") or p == 1 or x.dim() < 2:
        return F.dropout(x, p)
    seed = draw_seeds(1)
    if backend_of(x) == "native":
        return torch.ops.fieldwise.dropout(x, seed, p)
    factors = keep_factors(seed[0].to(x.device), x.shape[0], x[:1].numel(), p, dtype=x.dtype)
    return x * factors.view(x.shape)


define("dropout(Tensor x, Tensor seed, float p) -> Tensor")


def _dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    rows = x.shape[0]
    sizes = ctypes.c_int64(rows), ctypes.c_int64(x.numel() // max(rows, 1))
    drawn = (
        ctypes.c_uint64(int(seed)),
        ctypes.c_uint32(keep_threshold(p)),
        ctypes.c_double(1 / (1 - p)),
    )
    NATIVE.call(f"fw_dropout_{type_name(x)}", *sizes, *drawn, x, out)
    return out


def _set_up(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del output
    ctx.save_for_backward(inputs[1])
    ctx.p = inputs[2]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.fieldwise.dropout(grad, ctx.saved_tensors[0], ctx.p), None, None


implement("dropout", _dropout, lambda x, *_: torch.empty_like(x.contiguous()))
register_autograd("fieldwise::dropout", _differentiate, setup_context=_set_up, lib=OPERATORS)
