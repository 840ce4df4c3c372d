import numpy as np
import torch

from fieldwise.layout import Layout
from fieldwise.models import LR, parameter_count


def test_forward_is_the_sum_of_weights(lab, layout):
    network, batch = lab.randomized(LR().build(layout)), lab.batch(layout, 7)
    w = lab.weights(network)
    truth = lab.first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    np.testing.assert_allclose(network(batch).detach(), truth, atol=1e-10)


def test_starts_at_zero_and_counts_one_weight_a_row():
    network = LR().build(Layout.of_sizes([3, 4]))
    assert parameter_count(network) == 8
    assert all(torch.equal(p, torch.zeros_like(p)) for p in network.parameters())
