"""One optimizer step on the touched rows of a table: plain and native backends.

Letters: R rows of the table, D its width, N ids with a gradient each, U distinct ids.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.library import register_fake

from fieldwise.errors import ConfigError
from fieldwise.ops.backends import backend_of
from fieldwise.ops.native import NATIVE, pointer, type_name
from fieldwise.ops.operators import OPERATORS, define, implement
from fieldwise.ops.rows import RowGroups, grouped

__all__ = ["RowRule", "RuleName", "squares_of_rows", "sums_of_groups", "update_rows_", "update_rows_plain_"]

RuleName = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]
RULES: tuple[RuleName, ...] = ("sgd", "adagrad", "rowwise_adagrad", "adam")  # in the kernel's order


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """The update rule of a touched row w; g is its summed gradient plus L2's, `l2 * w`.

    - `sgd`: `w -= rate * g`.
    - `adagrad` (Duchi et al., JMLR 2011): `a += g^2`, `w -= rate * g / (sqrt(a) + eps)`; `a` is [R, D].
    - `rowwise_adagrad` (Mudigere et al., ISCA 2022, Section 4.1.4): as `adagrad`, with one number per row, `a += mean
      of g^2`; `a` is [R].
    - `adam` (Kingma & Ba, ICLR 2015), lazy: both moments of the row are updated by one step, `m = m + (1 - beta1) (g -
      m)`, `v = beta2 v + (1 - beta2) g^2`, and `w -= rate m' / (sqrt(v') + eps)` with `m' = m / (1 - beta1^step)`, `v'
      = v / (1 - beta2^step)`; `m`, `v` are [R, D].

    Args:
        name: the name of the rule.
        rate: the learning rate.
        l2: strength of squared L2 on the touched rows.
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


def update_rows_(
    table_RD: Tensor, states: Sequence[Tensor], groups: RowGroups, grads_ND: Tensor, rule: RowRule
) -> None:
    """Update the rows with a gradient, in place; other rows and their states do not change.

    Gradients of equal ids are summed in order, for any number of threads.

    Args:
        table_RD: the table.
        states: none for `sgd`, one for `adagrad` (`[R, D]`) and `rowwise_adagrad` (`[R]`), two for `adam` (m and v).
        groups: the groups of ids from `group_rows`.
        grads_ND: a gradient per id.
        rule: the update rule.

    >>> from fieldwise.ops.rows import group_rows
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
            table_RD, list(states), *groups, grads_ND, RULES.index(rule.name), _numbers(rule)
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
        g_UD = g_UD + rule.l2 * w_UD
    g_UD = g_UD * rule.scale
    if rule.name == "sgd":
        moved_UD = rule.rate * g_UD
    elif rule.name == "adam":
        m, v = states
        m_UD = torch.lerp(m[rows_U], g_UD, 1 - rule.betas[0])
        v_UD = rule.betas[1] * v[rows_U] + (1 - rule.betas[1]) * g_UD.square()
        first, second = _corrections(rule)
        moved_UD = first * m_UD / (v_UD.sqrt() / second + rule.eps)
        m[rows_U], v[rows_U] = m_UD, v_UD
    else:
        a = states[0]
        square = g_UD.square() if rule.name == "adagrad" else g_UD.square().mean(1)
        a_U = a[rows_U] + square
        root = a_U.sqrt() + rule.eps
        moved_UD = rule.rate * g_UD / (root if rule.name == "adagrad" else root.unsqueeze(1))
        a[rows_U] = a_U
    table_RD[rows_U] = w_UD - moved_UD


def squares_of_rows(table_RD: Tensor, groups: RowGroups, grads_ND: Tensor, l2: float) -> float:
    """The squared norm of the gradient of `update_rows_` before scaling: summed by row and including L2's.

    >>> from fieldwise.ops.rows import group_rows
    >>> squares_of_rows(torch.ones(3, 1), group_rows(torch.tensor([2, 2, 0]), 3), torch.ones(3, 1), 0.5)
    8.5
    """
    if _native(table_RD, grads_ND):
        return float(torch.ops.fieldwise.squares_of_rows(table_RD, *groups, grads_ND, l2))
    wide = torch.float32 if table_RD.device.type == "mps" else torch.float64  # which has no float64
    g_UD = _summed(groups, grads_ND).to(wide)
    if l2:
        g_UD = g_UD + l2 * table_RD[groups.distinct.long()].to(wide)
    return float(g_UD.square().sum())


def sums_of_groups(groups: RowGroups, grads_ND: Tensor) -> Tensor:
    """The sum of every group's gradients, each in order, for any number of threads: [N, D] -> [U, D].

    >>> from fieldwise.ops.rows import group_rows
    >>> sums_of_groups(group_rows(torch.tensor([2, 0, 2]), 3), torch.tensor([[1.0], [2.0], [3.0]]))
    tensor([[2.],
            [4.]])
    """
    if backend_of(grads_ND, autocasts=False) == "native":
        sums_UD: Tensor = torch.ops.fieldwise.sums_of_groups(*groups, grads_ND)
        return sums_UD
    return _summed(groups, grads_ND)


def _native(table: Tensor, grads: Tensor, *states: Tensor) -> bool:
    """Whether the kernels can update the table and its states in place."""
    in_place = all(t.is_contiguous() for t in (table, *states))
    return in_place and backend_of(table, grads, *states, autocasts=False) == "native"


def _summed(groups: RowGroups, grads_ND: Tensor) -> Tensor:
    """The sum of every group's gradients [U, D]."""
    counts_U = groups.starts.diff().long()
    segment_N = torch.repeat_interleave(torch.arange(len(counts_U), device=counts_U.device), counts_U)
    sums_UD = grads_ND.new_zeros(len(counts_U), grads_ND.shape[1])
    return sums_UD.index_add_(0, segment_N, grads_ND[groups.order.long()])


def _corrections(rule: RowRule) -> tuple[float, float]:
    """`rate / (1 - beta1^step)` and `sqrt(1 - beta2^step)`."""
    return rule.rate / (1 - rule.betas[0] ** rule.step), math.sqrt(1 - rule.betas[1] ** rule.step)


def _numbers(rule: RowRule) -> list[float]:
    """The kernel's numeric arguments, in its order."""
    beta1, beta2 = rule.betas
    return [rule.rate, rule.l2, rule.scale, rule.eps, 1 - beta1, beta2, 1 - beta2, *_corrections(rule)]


_GROUPS = "Tensor order, Tensor starts, Tensor distinct, Tensor grads"
define(f"update_rows(Tensor(a!) table, Tensor(b!)[] states, {_GROUPS}, int rule, float[] numbers) -> ()")
define(f"squares_of_rows(Tensor table, {_GROUPS}, float l2) -> Tensor")
define(f"sums_of_groups({_GROUPS}) -> Tensor")


def _update(
    table: Tensor,
    states: Sequence[Tensor],
    order: Tensor,
    starts: Tensor,
    distinct: Tensor,
    grads: Tensor,
    rule: int,
    numbers: Sequence[float],
) -> None:
    groups, grads = _fitting(table, order, starts, distinct, grads), grads.contiguous()
    shapes = {"sgd": [], "adagrad": [table.shape], "rowwise_adagrad": [table.shape[:1]], "adam": [table.shape] * 2}
    found, wanted = [t.shape for t in states], shapes[RULES[rule]]
    if found != wanted or not all(t.is_contiguous() for t in (table, *states)):
        named = f"{[list(s) for s in wanted]} for {RULES[rule]}, found {[list(s) for s in found]}"
        raise ConfigError(f"the states of a table must be contiguous, like the table, and {named}")
    a, b = [*(pointer(t) for t in states), None, None][:2]
    given = (ctypes.c_double * 9)(*numbers)
    name = f"fw_update_rows_{type_name(table, grads, *states)}"
    NATIVE.call(name, rule, *grouped(groups, grads), pointer(table), a, b, given)
    increment_version([t for t in (table, *states) if not t.is_inference()])


def _squares(table: Tensor, order: Tensor, starts: Tensor, distinct: Tensor, grads: Tensor, l2: float) -> Tensor:
    groups = _fitting(table, order, starts, distinct, grads)
    grads, table = grads.contiguous(), table.contiguous()
    total = torch.empty((), dtype=torch.float64)
    operands = *grouped(groups, grads), pointer(table), ctypes.c_double(l2), pointer(total)
    NATIVE.call(f"fw_squares_of_rows_{type_name(table, grads)}", *operands)
    return total


def _sums(order: Tensor, starts: Tensor, distinct: Tensor, grads: Tensor) -> Tensor:
    sums, grads = grads.new_empty(len(distinct), grads.shape[-1]), grads.contiguous()
    groups = _checked(sums, order, starts, distinct, grads)
    sizes, order_at, starts_at, _, grads_at = grouped(groups, grads)
    NATIVE.call(f"fw_sums_of_groups_{type_name(grads)}", sizes, order_at, starts_at, grads_at, pointer(sums))
    return sums


def _fitting(table: Tensor, order: Tensor, starts: Tensor, distinct: Tensor, grads: Tensor) -> RowGroups:
    """The groups after the checks that the kernels rely on: contiguous, valid rows, matching gradients."""
    found = _checked(table, order, starts, distinct, grads)
    if len(distinct) and not 0 <= int(distinct[0]) <= int(distinct[-1]) < table.shape[0]:  # sorted
        wrong = f"{int(distinct[0])} to {int(distinct[-1])}"
        raise IndexError(f"grouped ids must be rows of the table, 0 to {table.shape[0] - 1}, found {wrong}")
    return found


def _checked(table: Tensor, order: Tensor, starts: Tensor, distinct: Tensor, grads: Tensor) -> RowGroups:
    """The groups, contiguous, of gradients that match."""
    n, groups = order.shape[0], distinct.shape[0]
    if table.dim() != 2 or grads.shape != (n, table.shape[1]) or starts.shape != (groups + 1,):
        found = f"{n} ids, {groups} groups, a table {list(table.shape)} and gradients {list(grads.shape)}"
        raise ConfigError(f"a table [R, D] needs a gradient [D] for each grouped id, found {found}")
    if any(t.dtype != torch.int32 for t in (order, starts, distinct)):
        raise ConfigError("groups of rows must be int32, as group_rows gives them")
    return RowGroups(order.contiguous(), starts.contiguous(), distinct.contiguous())


def _fake_update(*_: object) -> None:
    return None


def _fake_sums(_order: Tensor, _starts: Tensor, distinct: Tensor, grads: Tensor) -> Tensor:
    return grads.new_empty(distinct.shape[0], grads.shape[1])


def _fake_squares(table: Tensor, *_: object) -> Tensor:
    return table.new_empty((), dtype=torch.float64)


implement("update_rows", _update, "CPU")
implement("squares_of_rows", _squares, "CPU")
implement("sums_of_groups", _sums, "CPU")
register_fake("fieldwise::update_rows", _fake_update, lib=OPERATORS)
register_fake("fieldwise::squares_of_rows", _fake_squares, lib=OPERATORS)
register_fake("fieldwise::sums_of_groups", _fake_sums, lib=OPERATORS)
