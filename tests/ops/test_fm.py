"""The machine's logit from ids: against the sum over pairs in plain NumPy, native against plain, odd sizes."""

import numpy as np
import pytest
import torch
from torch.library import opcheck

from fieldwise.ops import use_ops
from fieldwise.ops.fm import fm_logit, fm_logit_plain
from fieldwise.ops.native import NATIVE

needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")
SIZES = [(0, 3, 4), (1, 1, 1), (1, 2, 3), (3, 5, 7), (5, 2, 8), (7, 3, 10), (9, 4, 17), (70, 39, 16)]  # B, F, D


def tables(rows, dim, *, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(rows, dim, generator=generator, dtype=dtype).requires_grad_()
    return table, torch.randn(rows, 1, generator=generator, dtype=dtype).requires_grad_()


def ids_of(batch, fields, rows, kind=torch.int32):
    return torch.randint(0, rows, (batch, fields), generator=torch.Generator().manual_seed(1)).to(kind)


@pytest.mark.parametrize("backend", ["plain", pytest.param("native", marks=needs_native)])
def test_the_logit_is_the_sum_over_pairs(backend):
    table, first = tables(11, 5)
    ids = ids_of(6, 4, 11)
    with use_ops(backend):
        found = fm_logit(table, first, ids).detach().numpy()
    x, w = table.detach().numpy()[ids.numpy()], first.detach().numpy()[ids.numpy(), 0]
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    by_hand = [w[b].sum() + sum(x[b, i] @ x[b, j] for i, j in pairs) for b in range(6)]
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)


@needs_native
def test_native_is_plain_forward_and_backward(subtests):
    for batch, fields, dim in SIZES:
        for dtype in [torch.float32, torch.float64]:
            for kind in [torch.int32, torch.int64]:
                with subtests.test(batch=batch, fields=fields, dim=dim, dtype=dtype, kind=kind):
                    table, first = tables(2 * fields + 3, dim, dtype=dtype)
                    ids = ids_of(batch, fields, len(table), kind)
                    grad = torch.randn(batch, generator=torch.Generator().manual_seed(2), dtype=dtype)
                    results = []
                    for backend in ("native", "plain"):
                        with use_ops(backend):
                            logit = fm_logit(table, first, ids)
                            results.append((logit.detach(), *torch.autograd.grad(logit, (table, first), grad)))
                    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
                    for found, expected in zip(*results, strict=True):
                        torch.testing.assert_close(found, expected, **close)


@needs_native
def test_the_number_of_threads_changes_no_bit(same_on_all_threads):
    table, first = tables(50, 16, dtype=torch.float32)
    ids = ids_of(8192, 8, 50)

    def work():
        logit = fm_logit(table, first, ids)
        return logit, *torch.autograd.grad(logit.sum(), (table, first))

    same_on_all_threads(work)


@needs_native
def test_inputs_that_are_not_contiguous():
    table, first = tables(20, 9)
    turned = table.detach().t().contiguous().t().requires_grad_()
    ids = ids_of(4, 8, 9).t()[:, ::2]
    torch.testing.assert_close(fm_logit(turned, first, ids), fm_logit_plain(table, first, ids))


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


@needs_native
def test_gradients_by_differences():
    table, first = tables(7, 9)
    ids = ids_of(5, 3, 7)
    with use_ops("native"):
        assert torch.autograd.gradcheck(lambda t, w: fm_logit(t, w, ids), (table, first))


@needs_native
def test_registered_as_pytorch_wants_it():
    table, first = tables(7, 9, dtype=torch.float32)
    opcheck(torch.ops.fieldwise.fm_logit, (table, first, ids_of(5, 3, 7)))
    compiled = torch.compile(fm_logit, fullgraph=True, backend="aot_eager")
    ids = ids_of(5, 3, 7)
    torch.testing.assert_close(compiled(table, first, ids), fm_logit(table, first, ids))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fm_logit(table, first, ids).dtype == torch.float32
