import math

import pytest
import torch

from fieldwise import Batch, FinalNet, Layout

SMALL = {"embedding_dim": 4, "block1_hidden": (6, 8), "block2_hidden": (6,)}


def made_by_hand():
    """x = (2, -1) of one field; the first block's logit is 1, the second's -3."""
    layout = Layout.of_sizes([1])
    options = {"block1_hidden": (2,), "block2_hidden": (2,), "batch_norm": False}
    network = FinalNet(embedding_dim=2, **options).build(layout).double()
    state = {
        "embedding.weight": [[2.0, -1.0]],
        "field_gate.linear.weight": [[0.5]],
        "field_gate.linear.bias": [1.0],  # gates (2, 0.5): the first block reads (2, -1, 4, -0.5)
        "block1.0.0.linear.weight": [[0.0, 0.0, 1.0, 2.0], [1.0, 1.0, 0.0, 0.0]],
        "block1.0.0.linear.bias": [0.0, -2.0],  # z = 3, -1: h = (3, -3), after ReLU (3, 0)
        "head1.weight": [[1.0, 7.0]],
        "head1.bias": [-2.0],
        "block2.0.0.linear.weight": [[0.0, -1.0], [1.0, 0.0]],
        "block2.0.0.linear.bias": [0.0, 0.0],  # z = 1, 2: h = (1, 2)
        "head2.weight": [[-1.0, -1.0]],
        "head2.bias": [0.0],
    }
    network.load_state_dict(
        {name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()}
    )
    return layout, network


def test_self_distillation_worked_by_hand(lab):
    """Cross-entropy of either block with the mean's probability as its target, through which no gradient passes."""
    layout, network = made_by_hand()
    logit, auxiliary = network.forward_with_auxiliary(lab.batch(layout, 1), torch.ones(1))
    p = 1 / (1 + math.e)
    softplus = [math.log1p(math.exp(y)) for y in (1.0, -3.0)]
    assert logit.item() == -1.0
    assert auxiliary.item() == pytest.approx(sum(softplus) - p * (1.0 - 3.0))
    auxiliary.backward()
    pulls = [1 / (1 + math.exp(-y)) - p for y in (1.0, -3.0)]
    assert network.head1.bias.grad.item() == pytest.approx(pulls[0])
    assert network.head2.bias.grad.item() == pytest.approx(pulls[1])
    network.distillation_weight = 0.5
    half = network.forward_with_auxiliary(lab.batch(layout, 1), torch.ones(1))[1]
    assert half.item() == pytest.approx(0.5 * auxiliary.item())


@pytest.mark.parametrize("options", [{"blocks": "1B"}, {"distillation_weight": 0.0}])
def test_without_distillation_nothing_is_added(lab, options):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 6)
    network = lab.randomized(FinalNet(**SMALL, **options).build(layout))
    logit, auxiliary = network.forward_with_auxiliary(batch, torch.zeros(6))
    assert auxiliary.item() == 0
    assert network.binary_settings == (), "a regression label is no error"
    torch.testing.assert_close(logit, network(batch))


@pytest.mark.parametrize(
    "options",
    [
        {"block1_hidden": (5,), "residual": "sum"},
        {"blocks": "1B", "block1_hidden": (6,), "factors": 3},
    ],
)
def test_only_sizes_that_are_divided_need_a_divisor(options):
    """Summed factors are not joined, and the second block's sizes do not count where there is one block."""
    network = FinalNet(**options).build(Layout.of_sizes([3])).eval()
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(torch.tensor([[0], [2]]), torch.empty(2, 0), none, none, torch.empty(0))
    assert torch.isfinite(network(batch)).tolist() == [True, True]
