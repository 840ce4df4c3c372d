"""Dice against PyTorch's batch normalization and numbers by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from fieldwise.layers.attention import Dice


def filled(size=3, momentum=0.1):
    layer = Dice(size, momentum=momentum).double()
    with torch.no_grad():
        layer.alpha.uniform_(-1, 1)
    return layer


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_by_hand_in_training_and_evaluation():
    layer = Dice(1, eps=0.0, momentum=0.5).double()
    with torch.no_grad():
        layer.alpha.fill_(0.5)
    s = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    # Mean 2, variance 1: the two normalized inputs are -1 and 1.
    low, high = sigmoid(-1), sigmoid(1)
    expected = [low * 1 + (1 - low) * 0.5 * 1, high * 3 + (1 - high) * 0.5 * 3]
    assert layer(s).flatten().tolist() == pytest.approx(expected, abs=1e-12)
    # Half of the batch's: mean 0 -> 1, variance 1 -> (1 + 2) / 2, as the unbiased variance of 1 and 3 is 2.
    assert (layer.running_mean.item(), layer.running_var.item()) == (1.0, 1.5)
    p = sigmoid((3 - 1) / math.sqrt(1.5))
    assert layer.eval()(s)[1].item() == pytest.approx(p * 3 + (1 - p) * 1.5, abs=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_its_statistics_are_those_of_batch_normalization(training):
    torch.manual_seed(0)
    layer, s = filled().train(training), torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    p = torch.sigmoid(F.batch_norm(s, mean, var, training=training, momentum=0.1, eps=1e-8))
    expected = p * s + (1 - p) * layer.alpha * s
    torch.testing.assert_close(layer(s), expected)
    torch.testing.assert_close((layer.running_mean, layer.running_var), (mean, var))
    result, reference = (
        torch.autograd.grad(out.square().sum(), s, retain_graph=True)[0] for out in (layer(s), expected)
    )
    torch.testing.assert_close(result, reference)


def test_rows_that_are_not_counted_leave_no_trace():
    torch.manual_seed(0)
    s, counted = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 3 > 0
    alone, among = filled(), filled()
    among.load_state_dict(alone.state_dict())
    torch.testing.assert_close(among(s, counted)[counted], alone(s[counted]))
    torch.testing.assert_close(among.state_dict(), alone.state_dict())


def test_without_a_spread_it_is_prelu():
    """The paper: with E = 0 and Var = 0 Dice degenerates into PReLU."""
    layer = filled().eval()
    layer.running_var.zero_()
    s = torch.randn(40, 3, dtype=torch.float64)
    torch.testing.assert_close(layer(s), torch.where(s > 0, s, layer.alpha * s))


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_move_no_average_and_give_finite_gradients(rows):
    layer, s = filled(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    out = layer(s, torch.arange(4) < rows)[:rows]
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(s.grad).all()
    assert (layer.running_mean == 0).all()
    assert (layer.running_var == 1).all()
