"""Dropout masks as a function of a seed: every backend drops the same elements and stores no mask.

Letters: R rows, N elements of a row.
"""

import torch
from torch import Tensor

from fieldwise.errors import ConfigError

__all__ = ["draw_seeds", "keep_factors", "keep_threshold"]

_WORD = 0xFFFFFFFF
_STEP = 0x9E3779B9  # 2^32 / golden ratio


def draw_seeds(count: int) -> Tensor:
    """Seeds [count], int64, from PyTorch's global generator (`torch.manual_seed`).

    >>> _ = torch.manual_seed(0)
    >>> draw_seeds(2).shape
    torch.Size([2])
    """
    return torch.randint(0, 2**63 - 1, (count,))


def keep_threshold(p: float) -> int:
    """The number of 2^24 equally likely draws that drop an element at rate p.

    Errors:
        ConfigError: p is not in [0, 1).
    """
    if not 0 <= p < 1:
        raise ConfigError(f"a dropout rate must be in [0, 1), found {p}")
    return round(p * 2**24)


def keep_factors(seed: Tensor, rows: int, elements: int, p: float, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask's factors, 0 for dropped and `1 / (1 - p)` for kept elements, by a hash of (seed, row r, element n).

    The hash is two rounds of multiply and shift in 32 bits (constants from Wellons' search for low bias), over a
    sequence that starts at a hash of seed and row; 24 of its bits are compared with p. The native kernels
    (`native/vec.h`) compute the same.

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
    low, high = seed & _WORD, (seed >> 32) & _WORD
    row_R = torch.arange(rows, dtype=torch.int64, device=seed.device)
    key_R = _mixed(_mixed((row_R + low) & _WORD) ^ high)
    step_N = torch.arange(elements, dtype=torch.int64, device=seed.device) * _STEP
    draw_RN = _mixed((key_R[:, None] + step_N) & _WORD) >> 8
    return (draw_RN >= keep_threshold(p)).to(dtype) / (1.0 - p)


def _mixed(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _WORD
    x = ((x ^ (x >> 15)) * 0xD35A2D97) & _WORD
    return x ^ (x >> 15)
