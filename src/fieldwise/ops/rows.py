"""Lookup of a table's rows by id, with its gradient: plain and native backends.

Letters: R rows of the table, D its width, N ids, U distinct ids among them.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.library import get_ctx, register_autograd, register_fake
from torch.nn import functional as F

from fieldwise.ops.backends import backend_of
from fieldwise.ops.native import NATIVE, pointer, type_name
from fieldwise.ops.operators import OPERATORS, define, implement

__all__ = ["RowGroups", "gather_rows", "group_rows", "group_rows_plain"]

LARGEST = 2**31 - 1  # maximum number of rows and ids for the native sort


class RowGroups(NamedTuple):
    """Ids sorted into groups of equal ones, each in the original order.

    Shape:
        order: [N] int32, positions of the ids, group by group.
        starts: [U + 1] int32, the start of each group in `order`; the last is N.
        distinct: [U] int32, the groups' ids, increasing.
    """

    order: Tensor
    starts: Tensor
    distinct: Tensor


def gather_rows(table_RD: Tensor, ids: Tensor, *, sparse: bool = False) -> Tensor:
    """`table[ids]`, like `torch.nn.functional.embedding`; gradients of equal ids are summed in order.

    Args:
        table_RD: the table.
        ids: int32 or int64, of any shape.
        sparse: make the table's gradient a sparse, uncoalesced COO tensor (one row per id, with duplicates), for
            an optimizer that supports it; no tensor of the table's size is then made. `torch.compile` does not compile
            this lookup (a graph break).

    Shape:
        table_RD: [R, D]; ids: [*]; returns [*, D].

    Errors:
        IndexError: an id that is not a row of the table.

    >>> gather_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([[1, 1], [0, 1]])).squeeze(2)
    tensor([[2., 2.],
            [1., 2.]])
    """
    if sparse and table_RD.requires_grad and torch.is_grad_enabled():
        if (
            torch.compiler.is_compiling()
        ):  # does not support sparse gradients: only the code before and after is compiled
            uncompiled: Callable[[Tensor, Tensor], Tensor] = torch.compiler.disable(_sparse_gather)  # type: ignore[no-untyped-call]
            return uncompiled(table_RD, ids)
        return _sparse_gather(table_RD, ids)
    return _gathered(table_RD, ids)


def group_rows(ids_N: Tensor, rows: int) -> RowGroups:
    """Sort ids into groups of equal ones.

    Args:
        ids_N: int32 or int64, in [0, R).
        rows: R.

    Shape:
        ids_N: [N].

    Errors:
        IndexError: an id that is not a row of the table.

    >>> group_rows(torch.tensor([5, 2, 5]), 6)
    RowGroups(order=tensor([1, 0, 2], dtype=torch.int32), starts=tensor([0, 1, 3], dtype=torch.int32), \
distinct=tensor([2, 5], dtype=torch.int32))
    """
    if _native_ids(ids_N, rows):
        return RowGroups(*torch.ops.fieldwise.group_rows(ids_N, rows))
    return group_rows_plain(ids_N, rows)


def group_rows_plain(ids_N: Tensor, rows: int) -> RowGroups:
    """The reference implementation of `group_rows` in plain PyTorch."""
    if ids_N.numel() and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < rows:
        raise IndexError(_bad_id(ids_N, rows))
    in_order_N, order_N = torch.sort(ids_N, stable=True)
    distinct_U, count_U = torch.unique_consecutive(in_order_N, return_counts=True)
    starts = torch.cat([count_U.new_zeros(1), count_U.cumsum(0)])
    return RowGroups(order_N.int(), starts.int(), distinct_U.int())


class _SparseGather(torch.autograd.Function):
    """A lookup whose gradient is sparse, with ids and rows."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return _gathered(table.detach(), ids)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ids_1N = ctx.saved_tensors[0].reshape(1, -1).long()
        values_ND = grads[0].reshape(-1, ctx.shape[1])
        return torch.sparse_coo_tensor(ids_1N, values_ND, ctx.shape, check_invariants=False), None


def _sparse_gather(table: Tensor, ids: Tensor) -> Tensor:
    gathered: Tensor = _SparseGather.apply(table, ids)  # type: ignore[no-untyped-call]
    return gathered


def _gathered(table: Tensor, ids: Tensor) -> Tensor:
    if backend_of(table, autocasts=False) == "native" and _native_ids(ids, table.shape[0]) and table.is_contiguous():
        gathered: Tensor = torch.ops.fieldwise.gather_rows(table, ids)
        return gathered
    return F.embedding(ids, table)


def _native_ids(ids: Tensor, rows: int) -> bool:
    """Whether the native sort supports these ids: it uses 32-bit numbers."""
    small = NATIVE.ready and rows <= LARGEST and ids.numel() <= LARGEST
    like_table = torch.empty((), device=ids.device)
    return small and ids.dtype in (torch.int32, torch.int64) and backend_of(like_table) == "native"


define("gather_rows(Tensor table, Tensor ids) -> Tensor")
define("scatter_rows(Tensor grad, Tensor ids, int rows) -> Tensor")
define("group_rows(Tensor ids, int rows) -> (Tensor, Tensor, Tensor)")


def _gather(table: Tensor, ids: Tensor) -> Tensor:
    ids, table = ids.contiguous(), table.contiguous()
    out, bad = table.new_empty(*ids.shape, table.shape[1]), ctypes.c_int64()
    sizes = (ctypes.c_int64 * 3)(ids.numel(), *table.shape)
    operands = pointer(table), pointer(ids), pointer(out)
    NATIVE.call(f"fw_gather_rows_{type_name(table)}", _wide(ids), sizes, *operands, ctypes.byref(bad))
    if bad.value >= 0:
        raise IndexError(_bad_id(ids, table.shape[0]))
    return out


def _scatter(grad: Tensor, ids: Tensor, rows: int) -> Tensor:
    """The gradient of the whole table [R, D]."""
    grad, ids = grad.contiguous(), ids.contiguous()
    out, bad = grad.new_zeros(rows, grad.shape[-1]), ctypes.c_int64()
    sizes = (ctypes.c_int64 * 3)(ids.numel(), *out.shape)
    operands = pointer(grad), pointer(ids), pointer(out)
    NATIVE.call(f"fw_scatter_rows_{type_name(grad)}", _wide(ids), sizes, *operands, ctypes.byref(bad))
    if bad.value >= 0:
        raise IndexError(_bad_id(ids, rows))
    return out


def _group(ids: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = ids.contiguous()
    n = ids.numel()
    order, starts, distinct = (torch.empty(size, dtype=torch.int32) for size in (n, n + 1, n))
    groups, bad = ctypes.c_int64(), ctypes.c_int64()
    outputs = pointer(order), pointer(starts), pointer(distinct), ctypes.byref(groups), ctypes.byref(bad)
    NATIVE.call("fw_group_rows", _wide(ids), (ctypes.c_int64 * 2)(n, rows), pointer(ids), *outputs)
    if bad.value >= 0:
        raise IndexError(_bad_id(ids, rows))
    return order, starts[: groups.value + 1], distinct[: groups.value]


def grouped(groups: RowGroups, grads: Tensor) -> tuple[Any, ...]:
    """Sizes and addresses of groups and their contiguous gradients, as kernel arguments."""
    sizes = (ctypes.c_int64 * 3)(groups.order.shape[0], groups.distinct.shape[0], grads.shape[-1])
    return sizes, *(pointer(t) for t in groups), pointer(grads)


def _wide(ids: Tensor) -> int:
    return int(ids.dtype == torch.int64)


def _bad_id(ids: Tensor, rows: int) -> str:
    flat = ids.reshape(-1)
    at = int(((flat < 0) | (flat >= rows)).nonzero()[0])
    return f"ids must be rows of the table, 0 to {rows - 1}, found {int(flat[at])} at position {at}"


def _fake_gather(table: Tensor, ids: Tensor) -> Tensor:
    return table.new_empty(*ids.shape, table.shape[1])


def _fake_scatter(grad: Tensor, _: Tensor, rows: int) -> Tensor:
    return grad.new_empty(rows, grad.shape[-1])


def _fake_group(ids: Tensor, _: int) -> tuple[Tensor, Tensor, Tensor]:
    n, groups = ids.numel(), get_ctx().new_dynamic_size()
    return (
        ids.new_empty(n, dtype=torch.int32),
        ids.new_empty(groups + 1, dtype=torch.int32),
        ids.new_empty(groups, dtype=torch.int32),
    )


def _save_ids(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[1])
    ctx.rows = inputs[0].shape[0]


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.fieldwise.scatter_rows(grad, ctx.saved_tensors[0], ctx.rows), None


def _scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.fieldwise.gather_rows(grad, ctx.saved_tensors[0]), None, None


implement("gather_rows", _gather, "CPU")
implement("scatter_rows", _scatter, "CPU")
implement("group_rows", _group, "CPU")
register_fake("fieldwise::gather_rows", _fake_gather, lib=OPERATORS)
register_fake("fieldwise::scatter_rows", _fake_scatter, lib=OPERATORS)
register_fake("fieldwise::group_rows", _fake_group, lib=OPERATORS)
register_autograd("fieldwise::gather_rows", _gather_backward, setup_context=_save_ids, lib=OPERATORS)
register_autograd("fieldwise::scatter_rows", _scatter_backward, setup_context=_save_ids, lib=OPERATORS)
