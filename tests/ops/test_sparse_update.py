"""Gathering and grouping rows, updating touched ones: each backend against loops in NumPy and PyTorch's optimizers."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.ops import use_ops
from fieldwise.ops.native import NATIVE
from fieldwise.ops.rows import (
    RowRule,
    gather_rows,
    group_rows,
    group_rows_plain,
    squares_of_rows,
    update_rows_,
    update_rows_plain_,
)

BACKENDS = [
    "plain",
    pytest.param("native", marks=pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)),
]
WIDTHS = [1, 3, 10, 16, 17]
RULES = ["sgd", "adagrad", "rowwise_adagrad", "adam"]
native_alone = pytest.mark.parametrize("_backend", BACKENDS[1:], indirect=True)


@pytest.fixture(params=BACKENDS, autouse=True)
def _backend(request):
    with use_ops(request.param):
        yield


def case(rows, width, count, *, dtype=torch.float64, ids=None, seed=0):
    """A table, ids (many of them twice) and a gradient an id."""
    rng = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, width, generator=rng, dtype=dtype)
    ids = torch.randint(0, rows, (count,), generator=rng) if ids is None else torch.tensor(ids)
    return table, ids, torch.randn(len(ids), width, generator=rng, dtype=dtype)


def fresh_states(name, table):
    shapes = {
        "sgd": [],
        "adagrad": [table.shape],
        "rowwise_adagrad": [table.shape[:1]],
        "adam": [table.shape] * 2,
    }
    rng = torch.Generator().manual_seed(7)
    return [torch.rand(shape, generator=rng, dtype=table.dtype) for shape in shapes[name]]


def by_loop(table, states, ids, grads, rule):
    """The definition, a row at a time."""
    w, states = table.numpy().copy(), [s.numpy().copy() for s in states]
    for row in sorted(set(ids.tolist())):
        g = np.zeros(w.shape[1])
        for n, own in enumerate(ids.tolist()):
            if own == row:
                g += grads[n].numpy()
        occurrences = (
            1.0 if rule.shares is None else rule.shares[row].item() * ids.tolist().count(row)
        )
        g = (g + rule.l2 * occurrences * w[row]) * rule.scale
        if rule.name == "sgd":
            w[row] -= rule.rate * g
        elif rule.name == "adam":
            m, v = states
            m[row] = rule.betas[0] * m[row] + (1 - rule.betas[0]) * g
            v[row] = rule.betas[1] * v[row] + (1 - rule.betas[1]) * g**2
            m_hat, v_hat = (
                m[row] / (1 - rule.betas[0] ** rule.step),
                v[row] / (1 - rule.betas[1] ** rule.step),
            )
            w[row] -= rule.rate * m_hat / (np.sqrt(v_hat) + rule.eps)
        else:
            a = states[0]
            a[row] += g**2 if rule.name == "adagrad" else np.mean(g**2)
            w[row] -= rule.rate * g / (np.sqrt(a[row]) + rule.eps)
    return w, states


def close(found, expected, **how):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b, **{"rtol": 1e-10, "atol": 1e-12, **how})


@pytest.mark.parametrize("name", RULES)
def test_update_is_the_loop(subtests, name):
    for rows, count, ids, width in [(40, 60, None, width) for width in WIDTHS] + [
        (1, 3, [0, 0, 0], 3),
        (5000, 300, None, 17),
        (9, 50, [4] * 50, 10),
        (7, 0, [], 3),
    ]:
        with subtests.test(rows=rows, count=count, ids=ids, width=width):
            table, ids, grads = case(rows, width, count, ids=ids)
            ids = ids.long()
            states = fresh_states(name, table)
            rule = RowRule(name=name, rate=0.1, l2=0.3, scale=0.5, eps=1e-6, step=3)
            expected, expected_states = by_loop(table, states, ids, grads, rule)
            update_rows_(table, states, group_rows(ids, rows), grads, rule)
            close([table, *states], [expected, *expected_states])


@pytest.mark.parametrize("name", RULES)
def test_l2_in_shares_counts_at_each_occurrence(subtests, name):
    for rows, count, ids, width in [
        (40, 60, None, 1),
        (40, 60, None, 16),
        (5000, 300, None, 17),
        (9, 50, [4] * 50, 3),
    ]:
        with subtests.test(rows=rows, ids=ids, width=width):
            table, ids, grads = case(rows, width, count, ids=ids)
            states, shares = (
                fresh_states(name, table),
                torch.rand(rows, generator=rng(5), dtype=table.dtype),
            )
            rule = RowRule(name=name, rate=0.1, l2=0.3, scale=0.5, eps=1e-6, step=3, shares=shares)
            expected, expected_states = by_loop(table, states, ids, grads, rule)
            update_rows_(table, states, group_rows(ids, rows), grads, rule)
            close([table, *states], [expected, *expected_states])


def test_float32_agrees_with_the_loop_in_double(subtests):
    for name in RULES:
        for width in [1, 17]:
            with subtests.test(name=name, width=width):
                table, ids, grads = case(300, width, 600, dtype=torch.float32)
                states = fresh_states(name, table)
                rule = RowRule(name=name, rate=0.1, l2=0.3, step=3)
                expected, expected_states = by_loop(
                    table.double(), [s.double() for s in states], ids, grads.double(), rule
                )
                update_rows_(table, states, group_rows(ids.int(), 300), grads, rule)
                close([table, *states], [expected, *expected_states], rtol=2e-5, atol=2e-5)


def test_a_row_without_a_gradient_keeps_its_bits(subtests):
    for name in RULES:
        with subtests.test(name=name):
            table, ids, grads = case(50, 3, 30, dtype=torch.float32)
            states = fresh_states(name, table)
            before = [t.clone() for t in (table, *states)]
            update_rows_(
                table, states, group_rows(ids, 50), grads, RowRule(name=name, rate=0.1, l2=1.0)
            )
            away = [row for row in range(50) if row not in set(ids.tolist())]
            assert 10 < len(away) < 50
            for now, then in zip((table, *states), before, strict=True):
                assert torch.equal(now[away], then[away])
                assert not torch.equal(now, then)


def test_nan_stays_in_its_row(subtests):
    for name in RULES:
        with subtests.test(name=name):
            table, _, grads = case(5, 17, 4, dtype=torch.float32)
            grads[2, 3] = torch.nan
            states = [torch.zeros_like(s) for s in fresh_states(name, table)]
            update_rows_(
                table,
                states,
                group_rows(torch.tensor([0, 1, 3, 1]), 5),
                grads,
                RowRule(name=name, rate=0.1),
            )
            assert table.isnan().any(1).tolist() == [False, False, False, True, False]
            if name != "rowwise_adagrad":
                assert table[3].isnan().sum() == 1


def test_gradients_that_are_not_contiguous():
    table, ids, grads = case(20, 4, 30)
    for odd in (grads.t().contiguous().t(), torch.ones((), dtype=torch.float64).expand(30, 4)):
        one, other = table.clone(), table.clone()
        rule = RowRule(name="sgd", rate=0.1)
        update_rows_(one, (), group_rows(ids, 20), odd, rule)
        update_rows_plain_(other, (), group_rows_plain(ids, 20), odd.clone(), rule)
        torch.testing.assert_close(one, other)


@native_alone
def test_equal_ids_are_summed_in_their_order_whatever_the_number_of_threads(same_on_all_threads):
    """2^24 + 1 + 1 - 2^24 is 0, 1 or 2 in float32, by the order."""
    rows = 90_000
    grads = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)]).repeat(rows)[:, None].repeat(1, 3)
    ids = torch.arange(rows).repeat_interleave(4)
    noise = torch.randn(4 * rows, 3, generator=rng(1))

    def work():
        table, read = torch.zeros(rows, 3), torch.zeros(rows, 3, requires_grad=True)
        groups = group_rows(ids, rows)
        update_rows_(table, (), groups, grads, RowRule(name="sgd", rate=1.0))
        gathered = gather_rows(read, ids)
        gathered.backward(grads)
        norm = squares_of_rows(table, groups, noise, 0.5)
        return table, gathered, read.grad, torch.tensor(norm, dtype=torch.float64)

    table, _, into_read, _ = same_on_all_threads(work)
    assert torch.equal(table, torch.zeros_like(table))  # 2^24, 2^24, 2^24, 0
    assert torch.equal(into_read, torch.zeros_like(table))


def rng(seed):
    return torch.Generator().manual_seed(seed)


def test_squares_are_of_the_summed_gradient_with_l2(subtests):
    for l2 in [0.0, 0.7]:
        with subtests.test(l2=l2):
            table, ids, grads = case(30, 5, 50)
            dense = torch.zeros_like(table).index_add(0, ids, grads)
            touched = sorted(set(ids.tolist()))
            dense[touched] += l2 * table[touched]
            assert squares_of_rows(table, group_rows(ids, 30), grads, l2) == pytest.approx(
                float(dense.square().sum())
            )
            assert squares_of_rows(table, group_rows(ids[:0], 30), grads[:0], l2) == 0
            shares = torch.rand(30, generator=rng(5), dtype=table.dtype)
            occurrences = shares * torch.bincount(ids, minlength=30)
            dense = (
                torch.zeros_like(table).index_add(0, ids, grads) + l2 * occurrences[:, None] * table
            )
            expected = pytest.approx(float(dense.square().sum()))
            assert squares_of_rows(table, group_rows(ids, 30), grads, l2, shares) == expected


@native_alone
def test_shares_that_do_not_fit_the_table_are_an_error(subtests):
    table, ids, grads = case(30, 5, 50)
    for shares in (
        torch.ones(29, dtype=table.dtype),
        torch.ones(30),
        torch.ones(60, dtype=table.dtype)[::2],
    ):
        rule = RowRule(name="sgd", rate=0.1, l2=0.3, shares=shares)
        with (
            subtests.test(shares=shares.shape),
            pytest.raises(ConfigError, match="shares of L2 must be contiguous"),
        ):
            update_rows_(table, (), group_rows(ids, 30), grads, rule)


# Groups


def test_groups_are_a_stable_sort(subtests):
    for count, dtype in [
        (0, torch.int64),
        (1, torch.int32),
        (700, torch.int32),
        (700, torch.int64),
    ]:
        for rows in [1, 2, 1000, 2048, 2049, 70_000, 5_000_000, 2**31 - 1]:
            with subtests.test(count=count, dtype=dtype, rows=rows):
                ids = torch.randint(0, rows, (count,), generator=rng(0)).to(dtype)
                ids[: count // 3] = rows - 1
                groups = group_rows(ids, rows)
                assert groups.order.tolist() == np.argsort(ids.numpy(), kind="stable").tolist()
                distinct, counts = np.unique(ids.numpy(), return_counts=True)
                assert groups.distinct.tolist() == distinct.tolist()
                assert groups.starts.tolist() == [0, *np.cumsum(counts)]


def test_an_id_that_is_no_row_is_an_error(subtests):
    for dtype in [torch.int32, torch.int64]:
        for wrong in [-1, 9, 2**31 - 1, -(2**31)]:
            with subtests.test(dtype=dtype, wrong=wrong):
                ids = torch.tensor([0, 8, wrong], dtype=dtype)
                with pytest.raises(IndexError):
                    group_rows(ids, 9)
                with pytest.raises(IndexError):
                    gather_rows(torch.ones(9, 2), ids)


# Gathering


def test_gathered_rows_and_their_gradient(subtests):
    for shape, width in [((64, 40), width) for width in WIDTHS] + [
        ((0,), 3),
        ((1,), 16),
        ((3, 4), 17),
        ((0, 5), 1),
    ]:
        with subtests.test(shape=shape, width=width):
            table, ids, _ = case(300, width, int(np.prod(shape)))
            ids = ids.view(shape)
            ours, theirs = (table.clone().requires_grad_() for _ in range(2))
            out = gather_rows(ours, ids.int())
            assert torch.equal(out, F.embedding(ids, table))
            grad = torch.randn(out.shape, dtype=table.dtype, generator=rng(3))
            out.backward(grad)
            F.embedding(ids, theirs).backward(grad)
            torch.testing.assert_close(ours.grad, theirs.grad)
            again = table.clone().requires_grad_()
            gather_rows(again, ids, sparse=True).backward(grad)
            assert again.grad.is_sparse
            torch.testing.assert_close(again.grad.to_dense(), theirs.grad)


def test_ids_and_gradients_in_any_order_of_memory():
    table, ids, _ = case(30, 3, 20)
    ours = table.clone().requires_grad_()
    out = gather_rows(ours, ids.view(4, 5).t())
    assert torch.equal(out, table[ids.view(4, 5).t()])
    out.sum().backward()
    counts = torch.bincount(ids, minlength=30).double()
    torch.testing.assert_close(ours.grad, counts[:, None].expand(30, 3))


def test_a_sparse_gradient_adds_up_over_several_reads():
    table, ids, _ = case(30, 3, 20)
    w = table.clone().requires_grad_()
    (
        gather_rows(w, ids[:12], sparse=True).sum()
        + 2 * gather_rows(w, ids[12:], sparse=True).sum()
    ).backward()
    assert w.grad.is_sparse
    expected = torch.bincount(ids[:12], minlength=30) + 2 * torch.bincount(ids[12:], minlength=30)
    torch.testing.assert_close(w.grad.to_dense(), expected.double()[:, None].expand(30, 3))


def test_gathering_has_right_gradients_twice():
    table, ids, _ = case(4, 3, 6)
    table.requires_grad_()
    assert torch.autograd.gradcheck(lambda t: gather_rows(t, ids), table)
    assert torch.autograd.gradgradcheck(lambda t: gather_rows(t, ids).square(), table)


@pytest.mark.slow
@native_alone
def test_compiles_without_graph_breaks():
    table, ids, _ = case(40, 3, 12)
    w = table.clone().requires_grad_()
    out = torch.compile(lambda t: gather_rows(t, ids).sum(), fullgraph=True, backend="aot_eager")(w)
    out.backward()
    torch.testing.assert_close(w.grad[:, 0], torch.bincount(ids, minlength=40).double())


@native_alone
def test_operators_are_registered_as_pytorch_asks():
    table, ids, grads = case(40, 3, 12, dtype=torch.float32)
    groups = group_rows(ids, 40)
    ops = torch.ops.fieldwise
    torch.library.opcheck(ops.gather_rows.default, (table.clone().requires_grad_(), ids.view(3, 4)))
    torch.library.opcheck(ops.scatter_rows.default, (grads.clone().requires_grad_(), ids, 40))
    torch.library.opcheck(ops.squares_of_rows.default, (table, *groups, grads, 0.5, torch.rand(40)))
    numbers = [0.1, 0.0, 1.0, 1e-8, 0.1, 0.999, 0.001, 1.0, 0.03]
    states = [torch.rand_like(table), torch.rand_like(table)]
    torch.library.opcheck(
        ops.update_rows.default, (table, states, *groups, grads, 3, numbers, None)
    )
    torch.library.opcheck(ops.group_rows.default, (ids, 40))
