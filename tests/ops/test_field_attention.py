import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fieldwise.ops import field_attention


def _random(batch, fields, size):
    torch.manual_seed(0)
    return [torch.randn(batch, fields, size, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def test_each_head_is_softmax_of_scores_times_v(subtests):
    for scale in [False, True]:
        for heads in [1, 2, 3]:
            with subtests.test(scale=scale, heads=heads):
                q, k, v = _random(2, 4, 6)
                out, weights = field_attention(q, k, v, heads=heads, scale=scale)
                size = 6 // heads
                for b in range(2):
                    for h in range(heads):
                        part = slice(h * size, (h + 1) * size)
                        q_, k_, v_ = (t[b, :, part].detach().numpy() for t in (q, k, v))
                        e = np.exp(q_ @ k_.T / (np.sqrt(size) if scale else 1.0))
                        a = e / e.sum(1, keepdims=True)
                        np.testing.assert_allclose(weights[b, h].detach(), a, atol=1e-12)
                        np.testing.assert_allclose(out[b, :, part].detach(), a @ v_, atol=1e-12)


def test_agrees_with_pytorchs_own_attention():
    q, k, v = _random(3, 5, 8)
    heads = [t.view(3, 5, 4, 2).transpose(1, 2) for t in (q, k, v)]
    reference = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(3, 5, 8)
    torch.testing.assert_close(field_attention(q, k, v, heads=4, scale=True)[0], reference)


@pytest.mark.parametrize("scale", [False, True])
def test_has_right_gradients(scale):
    assert torch.autograd.gradcheck(lambda *t: field_attention(*t, heads=2, scale=scale), _random(2, 3, 4))


def test_dropout_needs_training():
    q, k, v = _random(2, 3, 4)
    calm = field_attention(q, k, v, heads=2)[0]
    assert torch.equal(field_attention(q, k, v, heads=2, dropout=0.5)[0], calm)
    assert not torch.equal(field_attention(q, k, v, heads=2, dropout=0.5, training=True)[0], calm)


def test_no_row_gives_no_row():
    out, weights = field_attention(*_random(0, 3, 4), heads=2)
    assert (out.shape, weights.shape) == ((0, 3, 4), (0, 2, 3, 3))
