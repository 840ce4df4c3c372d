"""Dropout: the hash behind its masks, shares and scale by counting, equal masks and gradients in both backends."""

import numpy as np
import pytest
import torch

from fieldwise import ConfigError
from fieldwise.layers.mlp import Dropout
from fieldwise.ops import use_ops
from fieldwise.ops.dropout import draw_seeds, dropout, keep_factors, keep_threshold
from fieldwise.ops.native import NATIVE

WORD = 2**32


def _mixed(x):
    x = (x ^ (x >> 16)) * 0x21F0AAAD % WORD
    x = (x ^ (x >> 15)) * 0xD35A2D97 % WORD
    return x ^ (x >> 15)


def _kept(seed, row, element, p):
    key = _mixed(_mixed((row + seed) % WORD) ^ (seed >> 32))
    return _mixed((key + element * 0x9E3779B9) % WORD) >> 8 >= round(p * 2**24)


def test_the_mask_is_the_hash_in_whole_numbers(subtests):
    for seed in [0, 1, 2**32 + 5, 2**63 - 2]:
        with subtests.test(seed=seed):
            factors = keep_factors(torch.tensor(seed), 5, 40, 0.25, dtype=torch.float64)
            reference = [[_kept(seed, r, n, 0.25) / 0.75 for n in range(40)] for r in range(5)]
            np.testing.assert_allclose(factors, reference, rtol=1e-15)


def test_neighbours_and_other_seeds_are_independent():
    a, b = (keep_factors(torch.tensor(s), 500, 500, 0.5).bool().double() - 0.5 for s in (1, 2))
    for x, y in ((a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1])):
        assert abs(float((x * y).mean() * 4)) < 5 / 500


def test_seeds_follow_the_global_generator():
    torch.manual_seed(3)
    first = draw_seeds(2)
    assert not torch.equal(first, draw_seeds(2))
    torch.manual_seed(3)
    assert torch.equal(first, draw_seeds(2))


def test_a_share_of_one_or_below_zero_is_refused():
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\), found"):
            keep_threshold(p)


needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")


@pytest.mark.parametrize("backend", ["plain", pytest.param("native", marks=needs_native)])
def test_the_share_that_is_dropped_and_the_scale_of_the_rest(backend):
    torch.manual_seed(3)
    with use_ops(backend):
        result = dropout(torch.ones(400, 250), 0.2, True).numpy()
    assert set(np.unique(result)) == {np.float32(0), np.float32(1.25)}
    kept = result > 0
    assert kept.mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / result.size))
    for axis, of in ((0, 400), (1, 250)):  # no row and no column is favoured
        assert np.abs(kept.mean(axis=axis) - 0.8).max() < 5 * np.sqrt(0.16 / of)
    neighbours = (kept[:, 1:] & kept[:, :-1]).mean(), (kept[1:] & kept[:-1]).mean()
    assert neighbours == pytest.approx((0.64, 0.64), abs=0.01)


@needs_native
def test_native_drops_what_plain_drops(subtests):
    for shape in [(0, 3), (1, 1), (2, 7), (70, 8), (3, 5, 11), (130, 33)]:
        for dtype in [torch.float32, torch.float64]:
            with subtests.test(shape=shape, dtype=dtype):
                x = torch.randn(shape, dtype=dtype, requires_grad=True)
                seed = torch.tensor([2**62 + 12345])
                grad = torch.randn(shape, dtype=dtype)
                result = torch.ops.fieldwise.dropout(x, seed, 0.3)
                expected = x * keep_factors(seed[0], len(x), x[:1].numel(), 0.3, dtype=dtype).view(
                    shape
                )
                torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)
                torch.testing.assert_close(
                    torch.autograd.grad(result, x, grad)[0],
                    torch.autograd.grad(expected, x, grad)[0],
                    rtol=1e-6,
                    atol=0,
                )
                assert torch.equal(result == 0, expected == 0)


@needs_native
def test_nan_stays():
    assert dropout(torch.full((3, 9), float("nan")), 0.5, True).isnan().all()


def test_nothing_is_dropped_where_nothing_should_be():
    x = torch.randn(3, 4)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x
    assert Dropout(0.9).eval()(x) is x
    assert not dropout(x, 1.0, True).any()
    assert dropout(x.bfloat16(), 0.5, True).dtype == torch.bfloat16
