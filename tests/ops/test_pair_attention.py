"""AFM's pooling: the plain backend against NumPy, the native one against the plain one."""

import numpy as np
import pytest
import torch

from fieldwise.ops import pair_attention_pool, pair_attention_pool_plain, pair_indices, use_ops
from fieldwise.ops.dropout import keep_factors
from fieldwise.ops.native import NATIVE

needs_native = pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
SHAPES = [
    (1, 2, 1, 1),
    (7, 3, 5, 3),
    (33, 10, 10, 17),
    (16, 39, 16, 16),
    (9, 5, 3, 128),
    (3, 7, 65, 2),
]


def _arguments(batch, fields, dim, attention, dtype=torch.float64):
    torch.manual_seed(0)
    shapes = [(batch, fields, dim), (attention, dim), (attention,), (attention,)]
    x, W, b, h = (torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes)
    left, right = pair_indices(fields)
    return x, left, right, W, b, h


def _numpy(x, W, b, h, seeds=(0, 0), drops=(0.0, 0.0)):
    """Pooled vectors and weights, pair by pair."""
    rows, fields, dim = x.shape
    pairs = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
    keep_q = keep_factors(
        torch.tensor(seeds[0]), rows, len(pairs) * dim, drops[0], dtype=torch.float64
    ).numpy()
    keep_a = keep_factors(
        torch.tensor(seeds[1]), rows, len(pairs), drops[1], dtype=torch.float64
    ).numpy()
    pooled, weights = np.zeros((rows, dim)), np.zeros((rows, len(pairs)))
    for r in range(rows):
        q = np.array([x[r, i] * x[r, j] for i, j in pairs]) * keep_q[r].reshape(len(pairs), dim)
        e = np.array([sum(h[a] * max(W[a] @ v + b[a], 0.0) for a in range(len(h))) for v in q])
        weights[r] = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
        pooled[r] = (weights[r] * keep_a[r]) @ q
    return pooled, weights


def _detached(*tensors):
    return [t.detach().numpy() for t in tensors]


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_pooling_is_the_equations(subtests, mode):
    for drops in [(0.0, 0.0), (0.3, 0.0), (0.0, 0.4), (0.2, 0.1)]:
        with subtests.test(drops=drops):
            x, left, right, W, b, h = _arguments(3, 4, 2, 5)
            torch.manual_seed(5)
            seeds = torch.randint(0, 2**63 - 1, (2,)).tolist()
            torch.manual_seed(5)
            with use_ops(mode):
                pooled = pair_attention_pool(
                    x,
                    left,
                    right,
                    W,
                    b,
                    h,
                    pair_dropout=drops[0],
                    attention_dropout=drops[1],
                    training=True,
                )
            reference, _ = _numpy(*_detached(x, W, b, h), seeds, drops)
            np.testing.assert_allclose(pooled.detach(), reference, atol=1e-12)


def test_weights_are_the_softmax():
    x, left, right, W, b, h = _arguments(3, 4, 2, 5)
    np.testing.assert_allclose(
        pair_attention_pool_plain(x, left, right, W, b, h)[1].detach(),
        _numpy(*_detached(x, W, b, h))[1],
        atol=1e-12,
    )


@needs_native
def test_pairs_in_32_bits_are_the_same_pairs():
    x, left, right, *rest = _arguments(4, 5, 3, 2)
    with use_ops("native"):
        result = pair_attention_pool(x, left.int(), right.int(), *rest)
        assert torch.equal(result, pair_attention_pool(x, left, right, *rest))


@needs_native
def test_native_and_plain_give_the_same_numbers(subtests):
    for shape in SHAPES:
        for drops in [(0.0, 0.0), (0.25, 0.5)]:
            for dtype, tolerance in [(torch.float64, 1e-11), (torch.float32, 2e-5)]:
                with subtests.test(shape=shape, drops=drops, dtype=dtype, tolerance=tolerance):
                    results = []
                    for mode in ("plain", "native"):
                        x, left, right, W, b, h = _arguments(*shape, dtype=dtype)
                        grad = torch.randn(shape[0], shape[2], dtype=dtype)
                        with use_ops(mode):
                            pooled = pair_attention_pool(
                                x, left, right, W, b, h, pair_dropout=drops[0], attention_dropout=drops[1],
                                training=True,
                            )  # fmt: skip
                        pooled.backward(grad)
                        results.append([pooled.detach(), x.grad, W.grad, b.grad, h.grad])
                    for plain, native in zip(*results, strict=True):
                        scale = float(plain.abs().max()) + 1.0
                        torch.testing.assert_close(native, plain, atol=tolerance * scale, rtol=0)


@needs_native
def test_any_list_of_pairs_will_do():
    x, _, _, W, b, h = _arguments(5, 4, 3, 2)
    left, right = torch.tensor([2, 0, 3, 2]), torch.tensor([1, 0, 2, 1])
    with use_ops("native"):
        result = pair_attention_pool(x, left, right, W, b, h)
    torch.testing.assert_close(result, pair_attention_pool_plain(x, left, right, W, b, h)[0])


def test_without_a_pair_there_is_nothing_to_pool(subtests):
    for fields in [0, 1]:
        for batch in [0, 3]:
            for mode in ["plain", "auto"]:
                with subtests.test(fields=fields, batch=batch, mode=mode), use_ops(mode):
                    pooled = pair_attention_pool(*_arguments(batch, fields, 2, 4))
                    assert pooled.tolist() == [[0.0, 0.0]] * batch


def test_nan_and_infinity_stay_in_their_row(subtests):
    for bad in [float("nan"), float("inf")]:
        for mode in ["plain", "auto"]:
            with subtests.test(bad=bad, mode=mode):
                x, left, right, W, b, h = (
                    t.detach() for t in _arguments(20, 4, 3, 5, dtype=torch.float32)
                )
                clean = pair_attention_pool(x, left, right, W, b, h)
                x[7, 2, 1] = bad
                with use_ops(mode):
                    spoilt = pair_attention_pool(x, left, right, W, b, h)
                assert spoilt[7].isnan().any()
                others = torch.arange(20) != 7
                torch.testing.assert_close(spoilt[others], clean[others])


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_nan_in_a_weight_reaches_scores_and_gradients(mode):
    x, left, right, W, b, h = _arguments(3, 4, 3, 5, dtype=torch.float32)
    with torch.no_grad():
        W[2, 1] = float("nan")
    with use_ops(mode):
        pooled = pair_attention_pool(x, left, right, W, b, h)
    pooled.sum().backward()
    assert pooled.isnan().all()
    assert all(t.grad.isnan().any() for t in (x, W, b, h))


def test_gradients_are_finite_where_the_bias_alone_makes_a_large_score(subtests):
    """Lanes beyond the batch see such scores, too, without a row's maximum."""
    for dtype in [torch.float32, torch.float64]:
        for mode in ["plain", "auto"]:
            with subtests.test(dtype=dtype, mode=mode):
                x, left, right, W, _, _ = _arguments(3, 4, 2, 5, dtype=dtype)
                b, h = (torch.full((5,), n, dtype=dtype, requires_grad=True) for n in (100.0, 2.0))
                with use_ops(mode):
                    result = torch.autograd.grad(
                        pair_attention_pool(x, left, right, W, b, h).sum(), (x, W, b, h)
                    )
                doubles = [t.detach().double().requires_grad_() for t in (x, W, b, h)]
                pooled = pair_attention_pool_plain(doubles[0], left, right, *doubles[1:])[0]
                for ours, reference in zip(
                    result, torch.autograd.grad(pooled.sum(), doubles), strict=True
                ):
                    torch.testing.assert_close(ours.double(), reference, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_large_scores_neither_overflow_nor_vanish(mode):
    x, left, right, W, b, h = (t.detach() for t in _arguments(4, 3, 2, 3, dtype=torch.float32))
    with use_ops(mode):
        pooled = pair_attention_pool(x * 30, left, right, W * 30, b, h)
    reference = pair_attention_pool_plain(
        (x * 30).double(), left, right, (W * 30).double(), b.double(), h.double()
    )[0]
    torch.testing.assert_close(pooled.double(), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_scores_of_which_all_are_far_below_zero_are_a_softmax_too(mode):
    """Every pair's score is -200, whose exponential is 0 in float32: the pooled vector is the mean of the products."""
    x = torch.randn(20, 5, 3)
    W, b, h = torch.zeros(4, 3), torch.ones(4), torch.full((4,), -50.0)
    left, right = pair_indices(5)
    with use_ops(mode):
        pooled = pair_attention_pool(x, left, right, W, b, h)
    torch.testing.assert_close(pooled, (x[:, left] * x[:, right]).mean(1))


def test_dropout_needs_training():
    x, left, right, W, b, h = _arguments(20, 3, 2, 3)
    calm = pair_attention_pool(x, left, right, W, b, h)
    dropped = {"attention_dropout": 0.5, "pair_dropout": 0.5}
    assert torch.equal(calm, pair_attention_pool(x, left, right, W, b, h, **dropped))
    assert not torch.equal(
        calm, pair_attention_pool(x, left, right, W, b, h, training=True, **dropped)
    )
