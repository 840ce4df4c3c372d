"""Products of pairs, and FM's logit by ids and tables."""

import numpy as np
import pytest
import torch

from fieldwise.ops import fm_second_order, pair_indices, pair_products, use_ops
from fieldwise.ops.fm import fm_logit
from fieldwise.ops.native import NATIVE


def test_pair_indices_are_all_pairs_in_order(subtests):
    for fields in [0, 1, 2, 5]:
        with subtests.test(fields=fields):
            left, right = pair_indices(fields)
            reference = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
            assert list(zip(left.tolist(), right.tolist(), strict=True)) == reference


def test_fm_second_order_is_the_sum_over_pairs(subtests):
    for shape in [(0, 3, 2), (1, 2, 1), (4, 6, 3)]:
        with subtests.test(shape=shape):
            x = np.random.default_rng(0).normal(size=shape)
            reference = [
                sum(r[i] @ r[j] for i in range(shape[1]) for j in range(i + 1, shape[1])) for r in x
            ]
            np.testing.assert_allclose(
                fm_second_order(torch.tensor(x)), np.array(reference), atol=1e-12
            )


@pytest.mark.parametrize(
    "function", [fm_second_order, lambda x: pair_products(x, *pair_indices(4))]
)
def test_products_have_right_gradients(function):
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(
        function, torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    )


needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")
# B, F, D
SIZES = [
    (0, 3, 4),
    (1, 1, 1),
    (1, 2, 3),
    (3, 5, 7),
    (5, 2, 8),
    (7, 3, 10),
    (9, 4, 17),
    (70, 39, 16),
]


def tables(rows, dim, *, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, dim, generator=generator, dtype=dtype).requires_grad_()
    return table, torch.randn(rows, 1, generator=generator, dtype=dtype).requires_grad_()


def ids_of(batch, fields, rows, kind=torch.int32):
    return torch.randint(0, rows, (batch, fields), generator=torch.Generator().manual_seed(1)).to(
        kind
    )


@pytest.mark.parametrize("backend", ["plain", pytest.param("native", marks=needs_native)])
def test_the_logit_is_the_sum_over_pairs(backend):
    table, first = tables(11, 5)
    ids = ids_of(6, 4, 11)
    with use_ops(backend):
        result = fm_logit(table, first, ids).detach().numpy()
    x, w = table.detach().numpy()[ids.numpy()], first.detach().numpy()[ids.numpy(), 0]
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    by_hand = [w[b].sum() + sum(x[b, i] @ x[b, j] for i, j in pairs) for b in range(6)]
    np.testing.assert_allclose(result, by_hand, rtol=1e-12)


@needs_native
def test_native_is_plain_forward_and_backward(subtests):
    for batch, fields, dim in SIZES:
        for dtype in [torch.float32, torch.float64]:
            for kind in [torch.int32, torch.int64]:
                with subtests.test(batch=batch, fields=fields, dim=dim, dtype=dtype, kind=kind):
                    table, first = tables(2 * fields + 3, dim, dtype=dtype)
                    ids = ids_of(batch, fields, len(table), kind)
                    grad = torch.randn(
                        batch, generator=torch.Generator().manual_seed(2), dtype=dtype
                    )
                    results = []
                    for backend in ("native", "plain"):
                        with use_ops(backend):
                            logit = fm_logit(table, first, ids)
                            results.append(
                                (logit.detach(), *torch.autograd.grad(logit, (table, first), grad))
                            )
                    close = (
                        {"rtol": 1e-4, "atol": 1e-4}
                        if dtype == torch.float32
                        else {"rtol": 1e-11, "atol": 1e-11}
                    )
                    for result, expected in zip(*results, strict=True):
                        torch.testing.assert_close(result, expected, **close)


@needs_native
def test_nan_stays_in_its_row():
    table, first = tables(6, 9, dtype=torch.float32)
    with torch.no_grad():
        table[4, 8] = float("nan")
    logit = fm_logit(table, first, torch.tensor([[0, 1], [4, 1], [2, 3]]))
    assert logit.isnan().tolist() == [False, True, False]
    into_table, into_first = torch.autograd.grad(logit.sum(), (table, first))
    assert into_table.isnan().nonzero().tolist() == [[1, 8], [4, 8]]
    assert not into_first.isnan().any()


@needs_native
def test_an_id_that_is_no_row_is_refused(subtests):
    for bad, kind in [(-1, torch.int32), (6, torch.int32), (6, torch.int64), (2**32, torch.int64)]:
        with subtests.test(bad=bad, kind=kind):
            table, first = tables(6, 3)
            ids = torch.tensor([[0, 1], [2, bad]]).to(kind)
            with pytest.raises(IndexError, match=f"0 to 5, found {bad} at position 3"):
                fm_logit(table, first, ids)
