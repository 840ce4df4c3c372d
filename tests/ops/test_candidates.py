"""The context's entry of a softmax merges exactly: against the attention over all pairs, and at extremes."""

import math

import numpy as np
import pytest
import torch

from fieldwise import ConfigError
from fieldwise.ops import pair_attention as module
from fieldwise.ops import pair_attention_pool_plain, pair_indices, use_ops
from fieldwise.ops.fm import fm_second_order_candidates
from fieldwise.ops.native import NATIVE
from fieldwise.ops.pair_attention import pair_attention_candidates, pool_context_pairs

BACKENDS = [
    "plain",
    pytest.param("native", marks=pytest.mark.skipif(not NATIVE.ready, reason="no native library")),
]
SIZES = [(0, 2), (1, 1), (1, 3), (2, 1), (5, 4), (3, 0)]  # C, I
D, A = 5, 6


def vectors(context, own, rows=7, seed=0, dtype=torch.float64):
    """A context [C, D], candidates [N, I, D], and the full rows [N, C + I, D]."""
    generator = torch.Generator().manual_seed(seed)
    x_CD = torch.randn(context, D, generator=generator, dtype=torch.float64).to(dtype)
    x_NID = torch.randn(rows, own, D, generator=generator, dtype=torch.float64).to(dtype)
    return x_CD, x_NID, torch.cat([x_CD.expand(rows, -1, -1), x_NID], 1)


def attention(seed=1, dtype=torch.float64):
    """W [A, D], b [A], h [A]."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)
        for size in ((A, D), (A,), (A,))
    ]


def test_fm_is_the_sum_over_all_pairs(subtests):
    for context, own in SIZES:
        with subtests.test(context=context, own=own):
            x_CD, x_NID, x_NFD = vectors(context, own)
            rows = x_NFD.numpy()
            expected = [
                sum(row[i] @ row[j] for j in range(len(row)) for i in range(j)) for row in rows
            ]
            torch.testing.assert_close(
                fm_second_order_candidates(x_CD, x_NID), torch.tensor(np.array(expected))
            )


@pytest.mark.parametrize("backend", BACKENDS)
def test_pair_attention_is_the_pooling_over_all_pairs(subtests, monkeypatch, backend):
    for context, own in SIZES:
        for rows in [0, 1, 7]:
            with subtests.test(context=context, own=own, rows=rows):
                # blocks of 3 candidates
                monkeypatch.setattr(module, "HIDDEN_NUMBERS", 3 * own * context * A)
                x_CD, x_NID, x_NFD = vectors(context, own, rows)
                weights = attention()
                expected = pair_attention_pool_plain(x_NFD, *pair_indices(context + own), *weights)[
                    0
                ]
                with use_ops(backend):
                    result = pair_attention_candidates(x_CD, x_NID, *weights)
                torch.testing.assert_close(result, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pair_attention_in_float32(backend):
    x_CD, x_NID, x_NFD = vectors(5, 4, dtype=torch.float32)
    weights = attention(dtype=torch.float32)
    doubles = [t.double() for t in (x_NFD, *weights)]
    expected = pair_attention_pool_plain(doubles[0], *pair_indices(9), *doubles[1:])[0]
    with use_ops(backend):
        result = pair_attention_candidates(x_CD, x_NID, *weights)
    torch.testing.assert_close(result.double(), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_beyond_what_exp_holds_merge_too(subtests, backend):
    """The pair of greatest score takes all the weight, whether the context's entry holds it or the candidate does."""
    for inside in [True, False]:
        with subtests.test(inside=inside):
            x_CD, x_NID = torch.full((2, D), 2.0), torch.full((3, 1, D), 1.0)
            if not inside:
                x_NID = x_NID * 3
            W, b, h = torch.ones(A, D), torch.zeros(A), torch.full((A,), 1e3)
            with use_ops(backend):
                result = pair_attention_candidates(x_CD, x_NID, W, b, h)
            torch.testing.assert_close(result, torch.full((3, D), 4.0 if inside else 6.0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_of_which_all_are_far_below_zero_merge_too(backend):
    """Every pair's score is -200, whose exponential is 0 in float32: the result is the mean of the products."""
    x_CD, x_NID, x_NFD = vectors(3, 2, dtype=torch.float32)
    left, right = pair_indices(5)
    with use_ops(backend):
        result = pair_attention_candidates(
            x_CD, x_NID, torch.zeros(A, D), torch.ones(A), torch.full((A,), -200 / A)
        )
    torch.testing.assert_close(result, (x_NFD[:, left] * x_NFD[:, right]).mean(1))


def test_the_summary_is_the_logarithm_of_the_sum_and_the_mean():
    x_CD, _, _ = vectors(4, 1)
    W, b, h = (t.numpy() for t in attention())
    x = x_CD.numpy()
    q = np.array([x[i] * x[j] for i in range(4) for j in range(i + 1, 4)])
    e = np.maximum(q @ W.T + b, 0) @ h
    total, mean_D = pool_context_pairs(x_CD, *attention())
    assert float(total) == pytest.approx(np.log(np.exp(e).sum()), rel=1e-12)
    np.testing.assert_allclose(mean_D.numpy(), np.exp(e) @ q / np.exp(e).sum(), rtol=1e-12)


def test_a_context_without_a_pair_weighs_nothing():
    for few in (0, 1):
        total, mean_D = pool_context_pairs(vectors(few, 1)[0], *attention())
        assert (float(total), mean_D.tolist()) == (-math.inf, [0.0] * D)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nan_reaches_the_candidates_that_have_it(backend):
    x_CD, x_NID, _ = vectors(3, 2, rows=4)
    x_NID[2, 1, 0] = math.nan
    with use_ops(backend):
        result = pair_attention_candidates(x_CD, x_NID, *attention())
        assert result.isnan().any(1).tolist() == [False, False, True, False]
        assert pair_attention_candidates(x_CD * math.nan, x_NID, *attention()).isnan().all()


def test_gradients_are_those_of_the_pooling_over_all_pairs():
    """They are plain PyTorch's, whatever backends there are."""
    inputs = [t.requires_grad_() for t in (*vectors(3, 2)[:2], *attention())]
    generator = torch.Generator().manual_seed(2)
    direction_ND = torch.randn(7, D, generator=generator, dtype=torch.float64)
    result = torch.autograd.grad((pair_attention_candidates(*inputs) * direction_ND).sum(), inputs)
    x_CD, x_NID, *weights = inputs
    x_NFD = torch.cat([x_CD.expand(7, -1, -1), x_NID], 1)
    pooled_ND = pair_attention_pool_plain(x_NFD, *pair_indices(5), *weights)[0]
    for ours, expected in zip(
        result, torch.autograd.grad((pooled_ND * direction_ND).sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, expected)


@pytest.mark.skipif(not NATIVE.ready, reason="no native library")
def test_operands_that_do_not_fit_are_refused():
    """The kernel reads by pointers: what does not fit must never reach it."""
    x_CD, x_NID, _ = vectors(3, 2)
    for wrong in ((x_CD[:, :-1], x_NID), (x_CD, x_NID[..., :-1]), (x_CD[:0], x_NID[:, :1])):
        with (
            use_ops("native"),
            torch.no_grad(),
            pytest.raises(ConfigError, match="correct the shapes"),
        ):
            pair_attention_candidates(*wrong, *attention())
