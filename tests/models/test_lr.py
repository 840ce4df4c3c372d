import torch

from fieldwise.layout import Layout
from fieldwise.models import LR


def test_starts_at_zero():
    assert all(torch.equal(p, torch.zeros_like(p)) for p in LR().build(Layout.of_sizes([3, 4])).parameters())
