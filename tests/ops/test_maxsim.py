import numpy as np
import pytest
import torch

from fieldwise.ops import max_sim


@pytest.mark.parametrize(("user", "item"), [(1, 1), (3, 2), (2, 5)])
def test_is_the_sum_over_user_heads_of_the_best_item_head(user, item):
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(4, user, 3)), rng.normal(size=(4, item, 3))
    truth = [sum(max(u[b, i] @ v[b, j] for j in range(item)) for i in range(user)) for b in range(4)]
    np.testing.assert_allclose(max_sim(torch.tensor(u), torch.tensor(v)), truth, atol=1e-12)


def test_it_is_not_symmetric():
    u, v = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[1.0], [3.0]]])
    assert max_sim(u, v).item() == 9
    assert max_sim(v, u).item() == 8


def test_gradients_and_empty_batches():
    torch.manual_seed(0)
    u = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(2, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(max_sim, (u, v))
    assert max_sim(u[:0], v[:0]).shape == (0,)
