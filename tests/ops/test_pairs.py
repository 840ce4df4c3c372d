import numpy as np
import pytest
import torch

from fieldwise.ops import fm_second_order, pair_attention_pool, pair_indices, pair_products


@pytest.mark.parametrize("fields", [0, 1, 2, 5])
def test_pair_indices_are_all_pairs_in_order(fields):
    left, right = pair_indices(fields)
    truth = [(i, j) for i in range(fields) for j in range(i + 1, fields)]
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == truth


@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 2, 1), (4, 6, 3)])
def test_fm_second_order_is_the_sum_over_pairs(shape):
    x = np.random.default_rng(0).normal(size=shape)
    truth = [sum(r[i] @ r[j] for i in range(shape[1]) for j in range(i + 1, shape[1])) for r in x]
    np.testing.assert_allclose(fm_second_order(torch.tensor(x)), np.array(truth), atol=1e-12)


def test_pair_products_are_elementwise():
    x = torch.arange(6.0).view(1, 3, 2)
    assert pair_products(x, *pair_indices(3)).tolist() == [[[0.0, 3.0], [0.0, 5.0], [8.0, 15.0]]]


def _arguments(batch, fields, dim, attention):
    torch.manual_seed(0)
    shapes = [(batch, fields, dim), (attention, dim), (attention,), (attention,)]
    x, w, b, h = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    return x, w, b, h, *pair_indices(fields)


def test_pair_attention_pool_is_the_equation():
    x, w, b, h, left, right = _arguments(3, 4, 2, 5)
    pooled, weights = pair_attention_pool(x, left, right, w, b, h)
    x_, w_, b_, h_ = (t.detach().numpy() for t in (x, w, b, h))
    for r in range(3):
        q = [x_[r, i] * x_[r, j] for i in range(4) for j in range(i + 1, 4)]
        e = np.array([sum(h_[a] * max(w_[a] @ v + b_[a], 0.0) for a in range(5)) for v in q])
        a = np.exp(e) / np.exp(e).sum()
        np.testing.assert_allclose(weights[r].detach(), a, atol=1e-12)
        np.testing.assert_allclose(pooled[r].detach(), (a[:, None] * np.array(q)).sum(0), atol=1e-12)


@pytest.mark.parametrize("function", [fm_second_order, lambda x: pair_products(x, *pair_indices(4))])
def test_products_have_right_gradients(function):
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(function, torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True))


def test_pair_attention_pool_has_right_gradients():
    x, w, b, h, left, right = _arguments(2, 3, 2, 3)
    assert torch.autograd.gradcheck(lambda *t: pair_attention_pool(t[0], left, right, *t[1:]), (x, w, b, h))


def test_large_scores_do_not_overflow():
    x, w, b, h, left, right = _arguments(2, 3, 2, 3)
    pooled, weights = pair_attention_pool(x.float() * 100, left, right, w.float() * 100, b.float(), h.float())
    assert torch.isfinite(pooled).all()
    torch.testing.assert_close(weights.sum(1), torch.ones(2))


def test_dropout_needs_training_and_keeps_the_mean():
    x, w, b, h, left, right = _arguments(1, 3, 2, 3)
    calm, _ = pair_attention_pool(x, left, right, w, b, h)
    off, _ = pair_attention_pool(x, left, right, w, b, h, attention_dropout=0.5, pair_dropout=0.5)
    assert torch.equal(calm, off)
    many = x.expand(20_000, -1, -1)
    on, _ = pair_attention_pool(many, left, right, w, b, h, attention_dropout=0.5, training=True)
    assert on.std(0).min() > 0.01
    torch.testing.assert_close(on.mean(0), calm[0], atol=0.05, rtol=0.05)


def test_no_row_gives_no_row():
    x, w, b, h, left, right = _arguments(0, 3, 2, 4)
    pooled, weights = pair_attention_pool(x, left, right, w, b, h)
    assert (pooled.shape, weights.shape) == ((0, 2), (0, 3))
