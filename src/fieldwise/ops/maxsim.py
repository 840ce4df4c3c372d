"""MaxSim, the late interaction of two sets of head vectors: plain and native backends.

Letters: B batch, H user heads, K item heads, P size of a head, W words of 32 item heads.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

from fieldwise.ops.backends import backend_of, float32_under_autocast
from fieldwise.ops.native import NATIVE, pointer, type_name
from fieldwise.ops.operators import Differentiable, define, implement_with_gradient, save_with_second_output

__all__ = ["max_sim", "max_sim_plain"]

WORD = 32  # item heads per word of bits


def max_sim(user_BHP: Tensor, item_BKP: Tensor) -> Tensor:
    """`sum over user heads of max over item heads of <user head, item head>` (IntTower, CIKM 2022, FE-Block).

    The native backend stores no products, only bits for the item heads that reached the maximum of each
    user head. All backends treat special cases like PyTorch's `amax`: equal maxima share the gradient equally, and a
    user head with NaN among its products returns NaN, with a gradient of NaN for itself and all item heads of its row.
    It has no second derivative, and gives other item heads a zero gradient even if they are infinite
    (plain: NaN, as 0 times infinity).

    Args:
        user_BHP: the users' head vectors.
        item_BKP: the items' head vectors. Under autocast, both are cast to float32.

    Shape:
        user_BHP: [B, H, P] head vectors of size P; item_BKP: [B, K, P], K may differ from H; returns [B].

    >>> user, item = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[3.0, 1.0]]])
    >>> max_sim(user, item)
    tensor([5.])
    """
    if backend_of(user_BHP, item_BKP) == "native" and all((*user_BHP.shape[1:], item_BKP.shape[1])):
        score_B: Tensor = torch.ops.fieldwise.max_sim(user_BHP, item_BKP)[0]
        return score_B
    user_BHP, item_BKP = float32_under_autocast(user_BHP, item_BKP)
    with torch.autocast(user_BHP.device.type, enabled=False):
        return max_sim_plain(user_BHP, item_BKP)


def max_sim_plain(user_BHP: Tensor, item_BKP: Tensor) -> Tensor:
    """The reference implementation of `max_sim` in plain PyTorch.

    Shape:
        as in `max_sim`.

    >>> max_sim_plain(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [3.0]]]))
    tensor([9.])
    """
    return torch.bmm(user_BHP, item_BKP.transpose(1, 2)).amax(2).sum(1)


define("max_sim(Tensor user, Tensor item) -> (Tensor, Tensor)")
define("max_sim_backward(Tensor user, Tensor item, Tensor wins, Tensor grad) -> (Tensor, Tensor)")


def _outputs(user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised scores [B] and wins [B, H, W]."""
    if user.dim() != 3 or item.dim() != 3 or user.shape[::2] != item.shape[::2]:
        found = f"{list(user.shape)} and {list(item.shape)}"
        raise ValueError(
            f"max_sim takes user heads [B, H, P] and item heads [B, K, P], found {found}: B and P must agree"
        )
    words = (item.shape[1] + WORD - 1) // WORD
    return user.new_empty(user.shape[0]), user.new_empty((*user.shape[:2], words), dtype=torch.int32)


def _forward(user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    user, item = user.contiguous(), item.contiguous()
    outputs, name = _outputs(user, item), type_name(user, item)
    NATIVE.call(f"fw_maxsim_forward_{name}", _sizes(user, item), *(pointer(t) for t in (user, item, *outputs)))
    return outputs


def _backward(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    user, item, wins, grad = (t.contiguous() for t in inputs)
    grads = torch.empty_like(user), torch.empty_like(item)
    operands = [pointer(t) for t in (user, item, wins, grad, *grads)]
    NATIVE.call(f"fw_maxsim_backward_{type_name(user, item, grad)}", _sizes(user, item), *operands)
    return grads


def _sizes(user: Tensor, item: Tensor) -> Any:
    return (ctypes.c_int64 * 4)(*user.shape[:2], *item.shape[1:])


def _fake_backward(user: Tensor, item: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return user.new_empty(user.shape), item.new_empty(item.shape)


def _differentiate(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None
    grads: tuple[Tensor, Tensor] = torch.ops.fieldwise.max_sim_backward(*ctx.saved_tensors, grad)
    return grads


implement_with_gradient(
    "max_sim",
    Differentiable(
        forward=_forward,
        backward=_backward,
        fake=_outputs,
        fake_backward=_fake_backward,
        save=save_with_second_output,
        differentiate=_differentiate,
    ),
)
