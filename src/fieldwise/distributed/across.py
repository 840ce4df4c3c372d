"""Sums and rows over the processes of a training, with gradients; in a process alone they change nothing.

Letters: B rows of this process, A rows of all processes.
"""

from typing import Any

import torch
from torch import Tensor

from fieldwise.distributed.world import World, current

__all__ = ["joined_rows", "rows_before", "summed", "total"]


def summed(x: Tensor) -> Tensor:
    """The sum of all processes' tensors.

    >>> summed(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    world = current()
    if world is None:
        return x
    found: Tensor = _Summed.apply(x, world)  # type: ignore[no-untyped-call]
    return found


def joined_rows(x: Tensor) -> Tensor:
    """The rows of all processes, in the order of the batch.

    Shape:
        x: [B, ...]; returns [A, ...].

    >>> joined_rows(torch.tensor([[1.0], [2.0]])).shape
    torch.Size([2, 1])
    """
    world = current()
    if world is None:
        return x
    found: Tensor = _Joined.apply(x, world.lengths(x.shape[0]), world)  # type: ignore[no-untyped-call]
    return found


def rows_before(rows: int) -> int:
    """How many rows of the batch come before those of this process, which has `rows`.

    >>> rows_before(3)
    0
    """
    world = current()
    return 0 if world is None else sum(world.lengths(rows)[: world.rank])


def total(number: int) -> int:
    """The sum of all processes' numbers.

    >>> total(3)
    3
    """
    world = current()
    return number if world is None else sum(world.lengths(number))


class _Summed(torch.autograd.Function):
    """A sum over processes. Every one of them goes on with it, so that gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return world.sum_(x.detach().clone().contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        world: World = ctx.world
        return world.sum_(grads[0].clone().contiguous()), None


class _Joined(torch.autograd.Function):
    """The rows of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: list[int], world: World) -> Tensor:
        ctx.lengths, ctx.world = lengths, world
        return world.joined(x.detach(), lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        world: World = ctx.world
        grad = world.sum_(grads[0].clone().contiguous())
        return torch.split(grad, ctx.lengths)[world.rank], None, None
