"""Dice against PyTorch's batch normalization and numbers by hand."""

import pytest
import torch
from torch.nn import functional as F

from fieldwise.layers.activations import Dice


def filled(size=3, momentum=0.1):
    layer = Dice(size, momentum=momentum).double()
    with torch.no_grad():
        layer.alpha.uniform_(-1, 1)
    return layer


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
        torch.autograd.grad(out.square().sum(), s, retain_graph=True)[0]
        for out in (layer(s), expected)
    )
    torch.testing.assert_close(result, reference)


def test_rows_that_are_not_counted_leave_no_trace():
    torch.manual_seed(0)
    s, counted = torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 3 > 0
    alone, among = filled(), filled()
    among.load_state_dict(alone.state_dict())
    torch.testing.assert_close(among(s, counted)[counted], alone(s[counted]))
    torch.testing.assert_close(among.state_dict(), alone.state_dict())


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_move_no_average_and_give_finite_gradients(rows):
    layer, s = filled(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    out = layer(s, torch.arange(4) < rows)[:rows]
    out.sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(s.grad).all()
    assert (layer.running_mean == 0).all()
    assert (layer.running_var == 1).all()
