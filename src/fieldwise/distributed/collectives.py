"""Sums and rows over the processes of a training, with gradients; in a process alone they change nothing.

Letters: B rows of this process, A rows of all processes.
"""

from typing import Any

import torch
from torch import Tensor

from fieldwise.distributed.process_group import ProcessGroup, current_group

__all__ = ["all_gather_rows", "all_reduce", "rows_before", "total_rows"]


def all_reduce(x: Tensor) -> Tensor:
    """The sum of all processes' tensors.

    >>> all_reduce(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    group = current_group()
    if group is None:
        return x
    found: Tensor = _AllReduce.apply(x, group)  # type: ignore[no-untyped-call]
    return found


def all_gather_rows(x: Tensor) -> Tensor:
    """The rows of all processes, in the order of the batch.

    Shape:
        x: [B, ...]; returns [A, ...].

    >>> all_gather_rows(torch.tensor([[1.0], [2.0]])).shape
    torch.Size([2, 1])
    """
    group = current_group()
    if group is None:
        return x
    lengths = group.all_gather_lengths(x.shape[0])
    found: Tensor = _AllGatherRows.apply(x, lengths, group)  # type: ignore[no-untyped-call]
    return found


def rows_before(rows: int) -> int:
    """How many rows of the batch come before those of this process, which has `rows`.

    >>> rows_before(3)
    0
    """
    group = current_group()
    return 0 if group is None else sum(group.all_gather_lengths(rows)[: group.rank])


def total_rows(rows: int) -> int:
    """The sum of all processes' numbers of rows.

    >>> total_rows(3)
    3
    """
    group = current_group()
    return rows if group is None else sum(group.all_gather_lengths(rows))


class _AllReduce(torch.autograd.Function):
    """A sum over processes. Each process uses the sum, so the backward pass sums gradients too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return group.all_reduce(x.detach().clone().contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group
        return group.all_reduce(grads[0].clone().contiguous()), None


class _AllGatherRows(torch.autograd.Function):
    """The rows of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, lengths: list[int], group: ProcessGroup) -> Tensor:
        ctx.lengths, ctx.group = lengths, group
        return group.all_gather_v(x.detach(), lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        group: ProcessGroup = ctx.group
        grad = group.all_reduce(grads[0].clone().contiguous())
        return torch.split(grad, ctx.lengths)[group.rank], None, None
