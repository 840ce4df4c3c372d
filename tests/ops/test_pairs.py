import numpy as np
import pytest
import torch

from fieldwise.ops import fm_second_order, pair_indices, pair_products


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
            reference = [sum(r[i] @ r[j] for i in range(shape[1]) for j in range(i + 1, shape[1])) for r in x]
            np.testing.assert_allclose(fm_second_order(torch.tensor(x)), np.array(reference), atol=1e-12)


def test_pair_products_are_elementwise():
    x = torch.arange(6.0).view(1, 3, 2)
    assert pair_products(x, *pair_indices(3)).tolist() == [[[0.0, 3.0], [0.0, 5.0], [8.0, 15.0]]]


@pytest.mark.parametrize("function", [fm_second_order, lambda x: pair_products(x, *pair_indices(4))])
def test_products_have_right_gradients(function):
    torch.manual_seed(0)
    assert torch.autograd.gradcheck(function, torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True))
