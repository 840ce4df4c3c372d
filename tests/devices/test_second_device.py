"""The second device of tests is one: what would fail on a GPU fails there."""

import pytest
import torch


def test_tensors_of_the_cpu_cannot_mix(device):
    x = torch.arange(6.0).view(2, 3).to(device)
    for mix in (
        lambda: x + torch.ones(3),
        lambda: torch.ones(2, 3) * x,
        lambda: torch.cat([x, torch.ones(1, 3)]),
        lambda: x.index_select(0, torch.tensor([0])),
        lambda: torch.nn.Linear(3, 2)(x),
    ):
        with pytest.raises(RuntimeError, match=r"device|expected all tensors"):
            mix()
    with pytest.raises((RuntimeError, TypeError), match="numpy"):
        x.numpy()
