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
