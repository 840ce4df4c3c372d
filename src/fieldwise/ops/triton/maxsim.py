"""MaxSim in Triton: the op's CUDA implementation, and users with stored items.

The kernels were run in Triton's interpreter and compiled for NVIDIA GPUs, but not yet run on one: block sizes and the
number of warps are not tuned.

Letters: B batch, H user heads, K item heads, P size of a head, W words of 32 item heads; U users, N stored items,
C candidates.
"""

import torch
import triton
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.triton.maxsim_kernels import backward_kernel, forward_kernel, stored_kernel

__all__ = ["backward", "forward", "stored"]

LEAST = 16  # minimum depth of Triton's products
WORD = 32
BYTES_LEAST = 32  # minimum depth of its products of bytes
TILE_HEADS = 128  # item heads per tile of stored items, over its candidates
STORED_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


def forward(user_BHP: Tensor, item_BKP: Tensor) -> tuple[Tensor, Tensor]:
    """`fieldwise::max_sim` in float32.

    Shape:
        user_BHP: [B, H, P]; item_BKP: [B, K, P]; returns scores [B] and, int32 [B, H, W], which item heads reach a user
        head's maximum: none if it is NaN.

    Errors:
        ConfigError: tensors other than float32, or shapes that do not fit.
    """
    _check(user_BHP, item_BKP)
    user, item = user_BHP.contiguous(), item_BKP.contiguous()
    (batch, heads, size), items = user.shape, item.shape[1]
    scores = user.new_zeros(batch)
    wins = user.new_zeros(batch, heads, triton.cdiv(items, WORD), dtype=torch.int32)
    if batch:
        forward_kernel[(batch,)](user, item, scores, wins, heads, items, size, **_blocks(heads, items, size))
    return scores, wins


def backward(user_BHP: Tensor, item_BKP: Tensor, wins_BHW: Tensor, grad_B: Tensor) -> tuple[Tensor, Tensor]:
    """`fieldwise::max_sim_backward` in float32: the gradients of both sets of heads.

    Shape:
        as in `forward`; grad_B: [B].
    """
    user, item = user_BHP.contiguous(), item_BKP.contiguous()
    (batch, heads, size), items = user.shape, item.shape[1]
    grads = torch.empty_like(user), torch.empty_like(item)
    if batch:
        blocks = _blocks(heads, items, size)
        words = triton.next_power_of_2(wins_BHW.shape[2])
        operands = (user, item, wins_BHW.contiguous(), grad_B.contiguous(), *grads, heads, items, size)
        backward_kernel[(batch, triton.cdiv(size, blocks["BLOCK_P"]))](*operands, BLOCK_W=words, **blocks)
    return grads


def stored(
    user_UHP: Tensor,
    item_NKP: Tensor,
    *,
    rows_C: Tensor | None = None,
    user_scale_UH: Tensor | None = None,
    item_scale_N: Tensor | None = None,
) -> Tensor:
    """MaxSim of every user with stored items, without a gradient.

    Args:
        user_UHP: the users' heads: int8 if the items are, else float32.
        item_NKP: the items' heads: float32, bfloat16, float16 (multiplied as float32) or int8 (as integers).
        rows_C: int64 or int32, the candidate items; all if None.
        user_scale_UH: scales of user heads, for int8.
        item_scale_N: scales of items, for int8; not negative.

    Shape:
        user_UHP: [U, H, P]; item_NKP: [N, K, P]; returns float32 [U, C], or [U, N] without rows.

    Errors:
        ConfigError: types or shapes that do not fit, or int8 without scales.
    """
    kind = torch.int8 if item_NKP.dtype == torch.int8 else torch.float32
    scales = (user_scale_UH, item_scale_N) if kind == torch.int8 else (None, None)
    if item_NKP.dtype not in STORED_TYPES or user_UHP.dtype != kind:
        found = f"{item_NKP.dtype} items with {user_UHP.dtype} users"
        raise ConfigError(
            f"stored items are float32, bfloat16 or float16 (users float32) or int8 (both), found {found}"
        )
    if kind == torch.int8 and (scales[0] is None or scales[1] is None):
        raise ConfigError("int8 items need user_scale_UH and item_scale_N")
    _check_shapes(user_UHP, item_NKP)
    user, item = user_UHP.contiguous(), item_NKP.contiguous()
    (users, heads, size), items = user.shape, item.shape[1]
    count = item.shape[0] if rows_C is None else rows_C.shape[0]
    scores = torch.zeros(users, count, device=user.device)
    if not users or not count:
        return scores
    least = BYTES_LEAST if kind == torch.int8 else LEAST
    block_h = min(16, triton.next_power_of_2(heads))
    block_k = min(64, triton.next_power_of_2(items))
    block_c = max(1, TILE_HEADS // block_k)
    block_p = min(64, max(least, triton.next_power_of_2(size)))
    # An unused pointer must still be a valid argument.
    read = [(user if t is None else t.contiguous()) for t in (rows_C, *scales)]
    stored_kernel[(triton.cdiv(count, block_c), users)](
        user, item, *read, scores, heads, items, size, count, ROWS=rows_C is not None, BYTES=kind == torch.int8,
        BLOCK_C=block_c, BLOCK_H=block_h, BLOCK_K=block_k, BLOCK_P=block_p, num_warps=4,
    )  # fmt: skip
    return scores


def _check(user: Tensor, item: Tensor) -> None:
    if user.dtype != torch.float32 or item.dtype != torch.float32:
        found = f"{user.dtype} and {item.dtype}"
        raise ConfigError(f"Triton ops take float32 tensors, found {found}: use use_ops('plain')")
    if user.shape[0] != item.shape[0]:
        raise ConfigError(f"max_sim takes as many users as items, found {user.shape[0]} and {item.shape[0]}")
    _check_shapes(user, item)


def _check_shapes(user: Tensor, item: Tensor) -> None:
    if user.shape[2] != item.shape[2] or not all((*user.shape[1:], item.shape[1])):
        found = f"{list(user.shape[1:])} and {list(item.shape[1:])}"
        raise ConfigError(f"max_sim takes heads [H, P] and [K, P] of one size, at least one each, found {found}")


def _blocks(heads: int, items: int, size: int) -> dict[str, int]:
    """Sizes of a tile and its number of warps; not tuned."""
    block_h = 16 if heads <= 16 else 32
    block_k = 32 if items <= 32 else 64
    block_p = min(64, max(LEAST, triton.next_power_of_2(size)))
    warps = max(1, min(8, block_h * block_k * block_p // 2**14))
    return {"BLOCK_H": block_h, "BLOCK_K": block_k, "BLOCK_P": block_p, "num_warps": warps}
