"""Dropout: shares and scale by counting, equal masks in both backends, the gradient through the same mask."""

import numpy as np
import pytest
import torch
from torch.library import opcheck

from fieldwise.layers.dropout import Dropout
from fieldwise.ops import use_ops
from fieldwise.ops.dropout import dropout, dropout_plain
from fieldwise.ops.native import NATIVE

needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")


@pytest.mark.parametrize("backend", ["plain", pytest.param("native", marks=needs_native)])
def test_the_share_that_is_dropped_and_the_scale_of_the_rest(backend):
    torch.manual_seed(3)
    with use_ops(backend):
        found = dropout(torch.ones(400, 250), 0.2, True).numpy()
    assert set(np.unique(found)) == {np.float32(0), np.float32(1.25)}
    kept = found > 0
    assert kept.mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / found.size))
    for axis, of in ((0, 400), (1, 250)):  # no row and no column is favoured
        assert np.abs(kept.mean(axis=axis) - 0.8).max() < 5 * np.sqrt(0.16 / of)
    neighbours = (kept[:, 1:] & kept[:, :-1]).mean(), (kept[1:] & kept[:-1]).mean()
    assert neighbours == pytest.approx((0.64, 0.64), abs=0.01)


def test_each_call_drops_others_and_the_seed_decides():
    x = torch.ones(20, 30)
    torch.manual_seed(0)
    first, second = dropout(x, 0.5, True), dropout(x, 0.5, True)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(dropout(x, 0.5, True), first)


@needs_native
def test_native_drops_what_plain_drops(subtests):
    for shape in [(0, 3), (1, 1), (2, 7), (70, 8), (3, 5, 11), (130, 33)]:
        for dtype in [torch.float32, torch.float64]:
            with subtests.test(shape=shape, dtype=dtype):
                x = torch.randn(shape, dtype=dtype, requires_grad=True)
                seed = torch.tensor([2**62 + 12345])
                grad = torch.randn(shape, dtype=dtype)
                found, expected = torch.ops.fieldwise.dropout(x, seed, 0.3), dropout_plain(x, seed, 0.3)
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
                torch.testing.assert_close(
                    torch.autograd.grad(found, x, grad)[0], torch.autograd.grad(expected, x, grad)[0], rtol=1e-6, atol=0
                )
                assert torch.equal(found == 0, expected == 0)


@needs_native
def test_threads_change_no_bit(same_on_all_threads):
    x = torch.randn(4100, 257)
    found = same_on_all_threads(lambda: [torch.ops.fieldwise.dropout(x, torch.tensor([9]), 0.3)])
    assert torch.equal(found[0], dropout_plain(x, torch.tensor([9]), 0.3))


@needs_native
def test_input_that_is_not_contiguous_and_nan():
    x = torch.randn(9, 4).t()
    seed = torch.tensor([7])
    torch.testing.assert_close(torch.ops.fieldwise.dropout(x, seed, 0.4), dropout_plain(x, seed, 0.4))
    assert dropout(torch.full((3, 9), float("nan")), 0.5, True).isnan().all()


@needs_native
def test_registered_as_pytorch_wants_it():
    x = torch.randn(4, 9, requires_grad=True)
    opcheck(torch.ops.fieldwise.dropout, (x, torch.tensor([1]), 0.25))
    assert torch.autograd.gradcheck(
        lambda t: torch.ops.fieldwise.dropout(t, torch.tensor([1]), 0.25), x.detach().double().requires_grad_()
    )


def test_nothing_is_dropped_where_nothing_should_be():
    x = torch.randn(3, 4)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
    assert Dropout(0.9).eval()(x) is x
    assert not dropout(x, 1.0, True).any()
    assert dropout(x.bfloat16(), 0.5, True).dtype == torch.bfloat16
