import math

import pytest
import torch

from fieldwise.layers import FactorizedInteraction

X = torch.tensor([[1.0, -2.0]])


def made(outputs, weight, bias, **options):
    layer = FactorizedInteraction(2, outputs, **options)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor(weight))
        layer.linear.bias.copy_(torch.tensor(bias))
    return layer


def test_concat_worked_by_hand():
    weight, bias = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [1.0, 1.0]], [0.0, 1.0, 0.5, 0.0]
    # z_1 = (1, -1), z_2 = (2.5, -1)
    assert made(4, weight, bias)(X).tolist() == [[1.0, -1.0, 2.5, 1.0]]
    assert made(4, weight, bias, activation="relu")(X).tolist() == [[1.0, -1.0, 2.5, 0.0]]


def test_sum_worked_by_hand():
    weight, bias = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], [0.0, 1.0, 0.5]
    # z = 1, -1, 2.5: h = 1, -1, -2.5
    assert made(1, weight, bias, factors=3, residual="sum")(X).tolist() == [[-2.5]]
    gated = made(1, weight, bias, factors=3, residual="sum", activation="sigmoid")(X)
    second, third = 1 / (1 + math.e), 1 / (1 + math.exp(-2.5))
    assert gated.item() == pytest.approx(1 + second + second * third)


def test_concat_is_as_large_as_a_linear_layer(subtests):
    for factors, residual, rows in [(2, "concat", 6), (3, "concat", 6), (2, "sum", 12)]:
        with subtests.test(factors=factors, residual=residual, rows=rows):
            layer = FactorizedInteraction(5, 6, factors=factors, residual=residual)
            assert layer.linear.weight.shape == (rows, 5)
            assert layer(torch.zeros(2, 5)).shape == (2, 6)


def test_one_factor_is_a_linear_layer():
    layer = FactorizedInteraction(2, 3, factors=1, activation="sigmoid")
    torch.testing.assert_close(layer(X), layer.linear(X))
