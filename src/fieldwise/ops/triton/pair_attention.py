"""AFM's pair attention pooling in Triton: the op's CUDA implementation.

The kernels were run in Triton's interpreter and compiled for NVIDIA GPUs, but not yet run on one: tile sizes and the
numbers of warps and slices are not tuned.

Letters: B batch, F fields, P pairs, D embedding size, A attention size, S slices of the batch.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.keep import keep_threshold
from fieldwise.ops.triton.dropout import seed_words
from fieldwise.ops.triton.pair_attention_kernels import forward_kernel, row_kernel, weight_kernel

__all__ = ["backward", "forward"]

LEAST = 16  # minimum depth of Triton's products
SLICES = 512  # maximum per batch: a fixed number, so that sums over rows are the same on every GPU
PARTS_NUMBERS = 2**24  # numbers in all slices' weight gradients: 64 MB


def forward(
    x_BFD: Tensor, left_P: Tensor, right_P: Tensor, W_AD: Tensor, b_A: Tensor, h_A: Tensor, seeds: Tensor, *drops: float
) -> tuple[Tensor, Tensor]:
    """`fieldwise::pair_attention_pool` in float32; seeds are on the CPU.

    Shape:
        as in `pair_attention_pool`; returns pooled [B, D] and, for the backward pass, the maximum score and
        1 / sum of exp(score - maximum), [B, 2].

    Errors:
        ConfigError: tensors other than float32.
        RuntimeError: a pair is given twice (on a GPU, raised at the next synchronization).
    """
    x, W, b, h = _checked(x_BFD, W_AD, b_A, h_A)
    batch, fields, size = x.shape
    pooled, stats = x.new_zeros(batch, size), x.new_zeros(batch, 2)
    if batch and left_P.shape[0]:
        slots = _slots(left_P, right_P, fields)
        operands = (x, slots, W, b, h, pooled, stats, fields, size, W.shape[0])
        forward_kernel[(batch,)](*operands, **_dropout(seeds, *drops), **_blocks(size, W.shape[0]))
    return pooled, stats


def backward(
    x_BFD: Tensor,
    left_P: Tensor,
    right_P: Tensor,
    W_AD: Tensor,
    b_A: Tensor,
    h_A: Tensor,
    seeds: Tensor,
    pair_dropout: float,
    attention_dropout: float,
    pooled_BD: Tensor,
    stats_B2: Tensor,
    grad_BD: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`fieldwise::pair_attention_pool_backward` in float32: the gradients of x, W, b and h, deterministic.

    The only tensor with an axis of pairs holds the gradients of their scores, [B, P].

    Errors:
        ConfigError: tensors other than float32.
    """
    x, W, b, h = _checked(x_BFD, W_AD, b_A, h_A)
    (batch, fields, size), attention, pairs = x.shape, W.shape[0], left_P.shape[0]
    if not batch or not pairs:
        return torch.zeros_like(x), torch.zeros_like(W), torch.zeros_like(b), torch.zeros_like(h)
    slots, blocks = _slots(left_P, right_P, fields), _blocks(size, attention)
    dropout = _dropout(seeds, pair_dropout, attention_dropout)
    gx, ge = torch.empty_like(x), x.new_empty(batch, pairs)
    rest = (pooled_BD.contiguous(), stats_B2.contiguous(), grad_BD.contiguous())
    tiles = triton.next_power_of_2(triton.cdiv(fields, blocks["T"]))
    sizes = (fields, size, attention, pairs)
    row_kernel[(batch,)](x, slots, W, b, h, *rest, gx, ge, *sizes, **dropout, N=tiles, **blocks)
    slices = min(batch, SLICES, max(1, PARTS_NUMBERS // (attention * (size + 2))))
    parts = [x.new_empty(slices, *t.shape) for t in (W, b, h)]
    grid = (slices, triton.cdiv(attention, blocks["BLOCK_A"]))
    of_products = {name: value for name, value in dropout.items() if name.endswith("_0")}
    weight_kernel[grid](x, slots, W, b, h, ge, *parts, batch, *sizes, **of_products, **blocks)
    gW, gb, gh = (part.sum(0) for part in parts)
    return gx, gW, gb, gh


def _checked(*tensors: Tensor) -> list[Tensor]:
    for tensor in tensors:
        if tensor.dtype != torch.float32:
            raise ConfigError(f"Triton ops take float32 tensors, found {tensor.dtype}: use use_ops('plain')")
    return [t.contiguous() for t in tensors]


def _slots(left_P: Tensor, right_P: Tensor, fields: int) -> Tensor:
    """The pair's number for fields i and j, int32 [F, F], -1 for none."""
    pairs = left_P.shape[0]
    slots = left_P.new_full((fields * fields,), -1, dtype=torch.int32)
    slots[left_P * fields + right_P] = torch.arange(pairs, dtype=torch.int32, device=left_P.device)
    torch._assert_async((slots >= 0).sum() == pairs, "no pair of fields may be given twice")
    return slots


def _dropout(seeds: Tensor, *drops: float) -> dict[str, Any]:
    """Seeds as signed 32-bit words, thresholds, factors, and whether there is dropout, by the kernels' names."""
    named: dict[str, Any] = {}
    for k, (seed, p) in enumerate(zip(seeds.tolist(), drops, strict=True)):
        named[f"low_{k}"], named[f"high_{k}"] = seed_words(seed)
        named |= {f"threshold_{k}": keep_threshold(p), f"factor_{k}": 1.0 / (1.0 - p), f"DROP_{k}": p > 0}
    return named


def _blocks(size: int, attention: int) -> dict[str, int]:
    """Sizes of a tile and its number of warps; not tuned.

    Triton unrolls IEEE products, tile rows * columns * depth over the threads: these sizes keep that below 1,024, and
    a tile's numbers at 16 per thread.
    """
    block_d = max(LEAST, triton.next_power_of_2(size))
    block_a = min(32, max(LEAST, triton.next_power_of_2(attention)))
    tile = 8 if block_d <= 64 else 4
    warps = min(8, tile * tile * max(block_d, block_a) // 512)
    return {"T": tile, "BLOCK_D": block_d, "BLOCK_A": block_a, "num_warps": warps, "num_stages": 1}
