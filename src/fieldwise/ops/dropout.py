"""Dropout without a stored mask: plain and native backends.

Letters: B rows, N elements of a row.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import register_autograd, register_fake
from torch.nn import functional as F

from fieldwise.ops.backends import backend_of
from fieldwise.ops.keep import draw_seeds, keep_factors, keep_threshold
from fieldwise.ops.native import NATIVE, pointer, type_name
from fieldwise.ops.operators import OPERATORS, define, implement

__all__ = ["dropout", "dropout_plain"]


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout: each element becomes 0 with probability p, else it is divided by `1 - p` (Srivastava et al., JMLR 2014).

    A row's mask is a hash of a seed and the row's number (`fieldwise.ops.keep`), equal in all backends and on all
    devices; the seed comes from PyTorch's global generator. PyTorch's own dropout is used for a rate of 1, for one
    dimension, and for 16 bits on the CPU.

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
        dropped: Tensor = torch.ops.fieldwise.dropout(x, seed, p)
        return dropped
    return dropout_plain(x, seed, p)


def dropout_plain(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """The reference implementation of `dropout` in plain PyTorch, with a given seed.

    >>> dropout_plain(torch.ones(1, 6), torch.tensor([1]), 0.5)
    tensor([[2., 0., 0., 0., 0., 2.]])
    """
    rows, width = x.shape[0], x[:1].numel()
    return x * keep_factors(seed[0].to(x.device), rows, width, p, dtype=x.dtype).view(x.shape)


define("dropout(Tensor x, Tensor seed, float p) -> Tensor")


def _dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    rows = x.shape[0]
    sizes = ctypes.c_int64(rows), ctypes.c_int64(x.numel() // max(rows, 1))
    drawn = ctypes.c_uint64(int(seed)), ctypes.c_uint32(keep_threshold(p)), ctypes.c_double(1 / (1 - p))
    NATIVE.call(f"fw_dropout_{type_name(x)}", *sizes, *drawn, pointer(x), pointer(out))
    return out


def _set_up(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    del output
    ctx.save_for_backward(inputs[1])
    ctx.p = inputs[2]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.fieldwise.dropout(grad, ctx.saved_tensors[0], ctx.p), None, None


implement("dropout", _dropout)
register_fake("fieldwise::dropout", lambda x, *_: torch.empty_like(x.contiguous()), lib=OPERATORS)
register_autograd("fieldwise::dropout", _differentiate, setup_context=_set_up, lib=OPERATORS)
