"""Lookup of a table's rows by id with its gradient, and one optimizer step on the touched rows: plain and native.

Letters: R rows of the table, D its width, N ids (with a gradient each), U distinct ids among them.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.library import get_ctx, register_autograd
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.ops.native import NATIVE, OPERATORS, backend_of, define, implement, type_name

LARGEST = 2**31 - 1  # maximum number of rows and ids for the native sort


class RowGroups(NamedTuple):
    """Ids sorted into groups of equal ones, each in the original order.

    Shape:
        order: [N] int32, positions of the ids, group by group.
        starts: [U + 1] int32, the start of each group in `order`; the last is N.
        distinct: [U] int32, the groups' ids, increasing.

    On a device other than the CPU U is N, so that no step waits for it: after the distinct ids come
    groups without ids, which repeat the last row.
    """

    order: Tensor
    starts: Tensor
    distinct: Tensor


def gather_rows(table_RD: Tensor, ids: Tensor, *, sparse: bool = False) -> Tensor:
    """`table[ids]`, like `torch.nn.functional.embedding`; gradients of equal ids are summed in order.

    Args:
        table_RD: the table.
        ids: int32 or int64, of any shape.
        sparse: make the table's gradient a sparse, uncoalesced COO tensor (one row per id, with
            duplicates), for an optimizer that supports it; no tensor of the table's size is then
            made. `torch.compile` does not compile this lookup (a graph break).

    Shape:
        table_RD: [R, D]; ids: [*]; returns [*, D].

    Errors:
        IndexError: an id that is not a row of the table.

    >>> gather_rows(torch.tensor([[1.0], [2.0]]), torch.tensor([[1, 1], [0, 1]])).squeeze(2)
    tensor([[2., 2.],
            [1., 2.]])
    """
    if sparse and table_RD.requires_grad and torch.is_grad_enabled():
        # it has no sparse gradients: only the code before and after is compiled
        if torch.compiler.is_compiling():
            uncompiled: Callable[[Tensor, Tensor], Tensor] = torch.compiler.disable(
                _SparseGather.apply
            )  # type: ignore[no-untyped-call]
            return uncompiled(table_RD, ids)
        return _SparseGather.apply(table_RD, ids)  # type: ignore[no-untyped-call]
    native = backend_of(table_RD, autocasts=False) == "native" and ids.device == table_RD.device
    if native and table_RD.is_contiguous() and _sortable(ids, table_RD.shape[0]):
        return torch.ops.fieldwise.gather_rows(table_RD, ids)
    return F.embedding(ids, table_RD)


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
    if _sortable(ids_N, rows) and backend_of(torch.empty((), device=ids_N.device)) == "native":
        return RowGroups(*torch.ops.fieldwise.group_rows(ids_N, rows))
    return group_rows_plain(ids_N, rows)


def group_rows_plain(ids_N: Tensor, rows: int) -> RowGroups:
    """The reference implementation of `group_rows` in plain PyTorch."""
    count = ids_N.numel()
    on_cpu = ids_N.device.type == "cpu"
    if on_cpu and count and not 0 <= int(ids_N.min()) <= int(ids_N.max()) < rows:
        raise no_row(ids_N, rows)
    in_order_N, order_N = torch.sort(ids_N, stable=True)
    group_N = F.pad((in_order_N.diff() != 0).long(), (min(count, 1), 0)).cumsum(0)
    groups = int(group_N[-1]) + 1 if on_cpu and count else count
    starts = torch.searchsorted(group_N, torch.arange(groups + 1, device=ids_N.device))
    distinct_U = in_order_N[starts[:-1].clamp(max=count - 1)]
    return RowGroups(order_N.int(), starts.int(), distinct_U.int())


class _SparseGather(torch.autograd.Function):
    """A lookup whose gradient is sparse, with ids and rows."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return gather_rows(table.detach(), ids)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ids_1N = ctx.saved_tensors[0].reshape(1, -1).long()
        values_ND = grads[0].reshape(-1, ctx.shape[1])
        return torch.sparse_coo_tensor(ids_1N, values_ND, ctx.shape, check_invariants=False), None


def _sortable(ids: Tensor, rows: int) -> bool:
    """Whether the native sort supports these ids: it uses 32-bit numbers."""
    return rows <= LARGEST and ids.numel() <= LARGEST and ids.dtype in (torch.int32, torch.int64)


define("gather_rows(Tensor table, Tensor ids) -> Tensor")
define("scatter_rows(Tensor grad, Tensor ids, int rows) -> Tensor")
define("group_rows(Tensor ids, int rows) -> (Tensor, Tensor, Tensor)")


def _gather(table: Tensor, ids: Tensor) -> Tensor:
    ids = ids.contiguous()
    table = table.contiguous()
    out = table.new_empty(*ids.shape, table.shape[1])
    sizes = (ids.numel(), *table.shape)
    name = f"fw_gather_rows_{type_name(table)}"
    call_by_ids(name, ids, table.shape[0], ids.dtype == torch.int64, sizes, table, ids, out)
    return out


def _scatter(grad: Tensor, ids: Tensor, rows: int) -> Tensor:
    """The gradient of the whole table [R, D]."""
    grad = grad.contiguous()
    ids = ids.contiguous()
    out = grad.new_zeros(rows, grad.shape[-1])
    name = f"fw_scatter_rows_{type_name(grad)}"
    sizes = (ids.numel(), *out.shape)
    call_by_ids(name, ids, rows, ids.dtype == torch.int64, sizes, grad, ids, out)
    return out


def _group(ids: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    ids = ids.contiguous()
    n = ids.numel()
    order, starts, distinct = (torch.empty(size, dtype=torch.int32) for size in (n, n + 1, n))
    groups = ctypes.c_int64()
    outputs = order, starts, distinct, ctypes.byref(groups)
    call_by_ids("fw_group_rows", ids, rows, ids.dtype == torch.int64, (n, rows), ids, *outputs)
    return order, starts[: groups.value + 1], distinct[: groups.value]


def call_by_ids(name: str, ids: Tensor, rows: int, *arguments: Any) -> None:
    """Call a kernel whose last argument takes the position of an id that is not a row; that is an IndexError."""
    bad = ctypes.c_int64()
    NATIVE.call(name, *arguments, ctypes.byref(bad))
    if bad.value >= 0:
        raise no_row(ids, rows)


def no_row(ids: Tensor, rows: int) -> IndexError:
    """The error of the first id that is not a row of the table."""
    flat = ids.reshape(-1)
    position = int(((flat < 0) | (flat >= rows)).nonzero()[0])
    return IndexError(
        f"ids must be rows of the table, 0 to {rows - 1}, found {int(flat[position])} at position {position}"
    )


def _fake_group(ids: Tensor, _: int) -> tuple[Tensor, Tensor, Tensor]:
    n = ids.numel()
    groups = get_ctx().new_dynamic_size()
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


implement("gather_rows", _gather, lambda table, ids: table.new_empty(*ids.shape, table.shape[1]))
implement("scatter_rows", _scatter, lambda grad, _, rows: grad.new_empty(rows, grad.shape[-1]))
implement("group_rows", _group, _fake_group)
register_autograd(
    "fieldwise::gather_rows", _gather_backward, setup_context=_save_ids, lib=OPERATORS
)
register_autograd(
    "fieldwise::scatter_rows", _scatter_backward, setup_context=_save_ids, lib=OPERATORS
)


RuleName = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]
RULES: tuple[RuleName, ...] = ("sgd", "adagrad", "rowwise_adagrad", "adam")  # in the kernel's order


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """The update rule of a touched row w; g is its summed gradient plus L2's, `l2 * w`.

    - `sgd`: `w -= rate * g`.
    - `adagrad` (Duchi et al., JMLR 2011): `a += g^2`, `w -= rate * g / (sqrt(a) + eps)`; `a` is [R,
      D].
    - `rowwise_adagrad` (Mudigere et al., ISCA 2022, Section 4.1.4): as `adagrad`, with one number
      per row, `a += mean of g^2`; `a` is [R].
    - `adam` (Kingma & Ba, ICLR 2015), lazy: both moments of the row are updated by one step,
      `m = m + (1 - beta1) (g - m)`, `v = beta2 v + (1 - beta2) g^2`, and
      `w -= rate m' / (sqrt(v') + eps)` with `m' = m / (1 - beta1^step)`,
      `v' = v / (1 - beta2^step)`; `m`, `v` are [R, D].

    Args:
        name: the name of the rule.
        rate: the learning rate.
        l2: strength of squared L2 on the touched rows.
        shares: share of `l2` at each occurrence of a row [R]; None: all of it once for each touched
            row.
        scale: factor for g, from gradient clipping.
        eps: added to the denominator.
        betas: Adam's betas.
        step: Adam's step, from 1: one count for all rows, however often each was touched.
    """

    name: RuleName
    rate: float
    l2: float = 0.0
    scale: float = 1.0
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    step: int = 1
    shares: Tensor | None = None


def update_rows_(
    table_RD: Tensor, states: Sequence[Tensor], groups: RowGroups, grads_ND: Tensor, rule: RowRule
) -> None:
    """Update the rows with a gradient, in place; other rows and their states do not change.

    Gradients of equal ids are summed in order, for any number of threads.

    Args:
        table_RD: the table.
        states: none for `sgd`, one for `adagrad` (`[R, D]`) and `rowwise_adagrad` (`[R]`), two for
            `adam` (m and v).
        groups: the groups of ids from `group_rows`.
        grads_ND: a gradient per id.
        rule: the update rule.

    >>> table = torch.zeros(3, 2)
    >>> groups = group_rows(torch.tensor([2, 2]), 3)
    >>> update_rows_(table, (), groups, torch.ones(2, 2), RowRule(name="sgd", rate=0.5))
    >>> table
    tensor([[ 0.,  0.],
            [ 0.,  0.],
            [-1., -1.]])
    """
    if _native(table_RD, grads_ND, *states):
        torch.ops.fieldwise.update_rows(
            table_RD,
            list(states),
            *groups,
            grads_ND,
            RULES.index(rule.name),
            _numbers(rule),
            rule.shares,
        )
    else:
        update_rows_plain_(table_RD, states, groups, grads_ND, rule)


def update_rows_plain_(
    table_RD: Tensor, states: Sequence[Tensor], groups: RowGroups, grads_ND: Tensor, rule: RowRule
) -> None:
    """The reference implementation of `update_rows_` in plain PyTorch."""
    rows_U = groups.distinct.long()
    w_UD = table_RD[rows_U]
    g_UD = _summed(groups, grads_ND)
    if rule.l2:
        g_UD = g_UD + _l2_of_rows(groups, w_UD, rule.l2, rule.shares) * w_UD
    g_UD = g_UD * rule.scale
    if rule.name == "sgd":
        moved_UD = rule.rate * g_UD
    elif rule.name == "adam":
        m, v = states
        m_UD = torch.lerp(m[rows_U], g_UD, 1 - rule.betas[0])
        v_UD = rule.betas[1] * v[rows_U] + (1 - rule.betas[1]) * g_UD.square()
        first, second = _numbers(rule)[-2:]
        moved_UD = first * m_UD / (v_UD.sqrt() / second + rule.eps)
        m[rows_U] = m_UD
        v[rows_U] = v_UD
    else:
        a = states[0]
        square = g_UD.square() if rule.name == "adagrad" else g_UD.square().mean(1)
        a_U = a[rows_U] + square
        root = a_U.sqrt() + rule.eps
        moved_UD = rule.rate * g_UD / (root if rule.name == "adagrad" else root.unsqueeze(1))
        a[rows_U] = a_U
    table_RD[rows_U] = w_UD - moved_UD


def squares_of_rows(
    table_RD: Tensor, groups: RowGroups, grads_ND: Tensor, l2: float, shares: Tensor | None = None
) -> float:
    """The squared norm of the gradient of `update_rows_` before scaling: summed by row and including L2's.

    `l2` and `shares` are those of `RowRule`.

    >>> squares_of_rows(torch.ones(3, 1), group_rows(torch.tensor([2, 2, 0]), 3), torch.ones(3, 1), 0.5)
    8.5
    """
    if _native(table_RD, grads_ND):
        return float(torch.ops.fieldwise.squares_of_rows(table_RD, *groups, grads_ND, l2, shares))
    wide = torch.float32 if table_RD.device.type == "mps" else torch.float64  # which has no float64
    g_UD = _summed(groups, grads_ND).to(wide)
    if l2:
        w_UD = table_RD[groups.distinct.long()].to(wide)
        g_UD = g_UD + _l2_of_rows(groups, w_UD, l2, shares) * w_UD
    return float((g_UD.square().sum(1) * (groups.starts.diff() > 0)).sum())


def _native(table: Tensor, grads: Tensor, *states: Tensor) -> bool:
    """Whether the kernels can update the table and its states in place."""
    in_place = all(t.is_contiguous() for t in (table, *states))
    return in_place and backend_of(table, grads, *states, autocasts=False) == "native"


def _summed(groups: RowGroups, grads_ND: Tensor) -> Tensor:
    """The sum of every group's gradients [U, D]; of a group without ids that of the last one with some."""
    counts_U = groups.starts.diff().long()
    group_U = torch.arange(len(counts_U), device=counts_U.device)
    count = len(groups.order)
    group_N = torch.repeat_interleave(group_U, counts_U, output_size=count)
    sums_UD = grads_ND.new_zeros(len(counts_U), grads_ND.shape[1])
    sums_UD.index_add_(0, group_N, grads_ND[groups.order.long()])
    return (
        sums_UD
        if counts_U.device.type == "cpu" or not count
        else sums_UD[torch.minimum(group_U, group_N[-1])]
    )


def _l2_of_rows(
    groups: RowGroups, w_UD: Tensor, l2: float, shares: Tensor | None
) -> float | Tensor:
    """The strength of L2 on each group's row [U, 1], or on all of them."""
    if shares is None:
        return l2
    occurrences_U1 = _summed(groups, w_UD.new_ones(len(groups.order), 1))
    return l2 * shares[groups.distinct.long(), None].to(w_UD.dtype) * occurrences_U1


def _numbers(rule: RowRule) -> list[float]:
    """The kernel's numbers in its order; the last are `rate / (1 - beta1^step)` and `sqrt(1 - beta2^step)`."""
    beta1, beta2 = rule.betas
    corrected = rule.rate / (1 - beta1**rule.step), math.sqrt(1 - beta2**rule.step)
    return [rule.rate, rule.l2, rule.scale, rule.eps, 1 - beta1, beta2, 1 - beta2, *corrected]


_GROUPS = "Tensor order, Tensor starts, Tensor distinct, Tensor grads"
define(
    f"update_rows(Tensor(a!) table, Tensor(b!)[] states, {_GROUPS}, int rule, float[] numbers, Tensor? shares) -> ()"
)
define(f"squares_of_rows(Tensor table, {_GROUPS}, float l2, Tensor? shares) -> Tensor")


def _update(
    table: Tensor,
    states: Sequence[Tensor],
    order: Tensor,
    starts: Tensor,
    distinct: Tensor,
    grads: Tensor,
    rule: int,
    numbers: Sequence[float],
    shares: Tensor | None,
) -> None:
    groups = _fitting(table, order, starts, distinct, grads)
    grads = grads.contiguous()
    _check_shares(table, shares)
    shapes = {
        "sgd": [],
        "adagrad": [table.shape],
        "rowwise_adagrad": [table.shape[:1]],
        "adam": [table.shape] * 2,
    }
    found = [t.shape for t in states]
    wanted = shapes[RULES[rule]]
    if found != wanted or not all(t.is_contiguous() for t in (table, *states)):
        named = f"{[list(s) for s in wanted]} for {RULES[rule]}, found {[list(s) for s in found]}"
        raise ConfigError(f"the states of a table must be contiguous, like the table, and {named}")
    name = f"fw_update_rows_{type_name(table, grads, *states)}"
    given = (ctypes.c_double * 9)(*numbers)
    sizes = len(groups.order), len(groups.distinct), grads.shape[-1]
    NATIVE.call(name, rule, sizes, *groups, grads, table, *[*states, None, None][:2], given, shares)
    increment_version([t for t in (table, *states) if not t.is_inference()])


def _squares(
    table: Tensor,
    order: Tensor,
    starts: Tensor,
    distinct: Tensor,
    grads: Tensor,
    l2: float,
    shares: Tensor | None,
) -> Tensor:
    groups = _fitting(table, order, starts, distinct, grads)
    grads = grads.contiguous()
    table = table.contiguous()
    _check_shares(table, shares)
    total = torch.empty((), dtype=torch.float64)
    sizes = len(groups.order), len(groups.distinct), grads.shape[-1]
    name = f"fw_squares_of_rows_{type_name(table, grads)}"
    NATIVE.call(name, sizes, *groups, grads, table, ctypes.c_double(l2), shares, total)
    return total


def _check_shares(table: Tensor, shares: Tensor | None) -> None:
    fits = shares is None or (
        shares.shape == table.shape[:1] and shares.dtype == table.dtype and shares.is_contiguous()
    )
    if not fits:
        assert shares is not None, "None fits"
        found = f"{shares.dtype} {list(shares.shape)} for {table.dtype} {list(table.shape)}"
        raise ConfigError(
            f"shares of L2 must be contiguous, one for each row, in the table's type, found {found}"
        )


def _fitting(
    table: Tensor, order: Tensor, starts: Tensor, distinct: Tensor, grads: Tensor
) -> RowGroups:
    """The groups after the checks that the kernels rely on: contiguous, valid rows, matching gradients."""
    n = order.shape[0]
    groups = distinct.shape[0]
    if table.dim() != 2 or grads.shape != (n, table.shape[1]) or starts.shape != (groups + 1,):
        found = f"{n} ids, {groups} groups, a table {list(table.shape)} and gradients {list(grads.shape)}"
        raise ConfigError(f"a table [R, D] needs a gradient [D] for each grouped id, found {found}")
    if any(t.dtype != torch.int32 for t in (order, starts, distinct)):
        raise ConfigError("groups of rows must be int32, as group_rows gives them")
    if len(distinct) and not 0 <= int(distinct[0]) <= int(distinct[-1]) < table.shape[0]:  # sorted
        wrong = f"{int(distinct[0])} to {int(distinct[-1])}"
        raise IndexError(
            f"grouped ids must be rows of the table, 0 to {table.shape[0] - 1}, found {wrong}"
        )
    return RowGroups(order.contiguous(), starts.contiguous(), distinct.contiguous())


implement("update_rows", _update, lambda *_: None)
implement("squares_of_rows", _squares, lambda table, *_: table.new_empty((), dtype=torch.float64))
