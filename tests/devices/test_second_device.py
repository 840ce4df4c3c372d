"""The second device of tests is one: what would fail on a GPU fails there."""

import pytest
import torch
from torch import nn


@pytest.fixture
def x(device):
    return torch.arange(6.0).view(2, 3).to(device)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.ones(1, 3)]),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: nn.Linear(3, 2)(x),
        lambda x: torch.ones(2, 3) * x,
    ],
    ids=["sum", "cat", "index", "weights", "from the CPU"],
)
def test_tensors_of_the_cpu_cannot_mix(x, mix):
    with pytest.raises(RuntimeError, match=r"device|expected all tensors"):
        mix(x)


def test_nothing_is_read_as_numpy(x):
    with pytest.raises((RuntimeError, TypeError), match="numpy"):
        x.numpy()


def test_a_copy_to_the_cpu_has_the_numbers(x, device):
    assert x.device == device
    assert torch.equal(x.cpu(), torch.arange(6.0).view(2, 3))
    assert (x * 2).sum().item() == 30


def test_gradients_views_and_changes_in_place_stay_there(device):
    layer = nn.Linear(3, 1, bias=False).to(device)
    x = torch.ones(4, 3, device=device)
    x[1:, 0] = 5.0
    layer(x).sum().backward()
    assert layer.weight.grad.device == device
    assert layer.weight.grad.tolist() == [[16.0, 4.0, 4.0]]
