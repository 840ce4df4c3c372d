import torch
from parity.lab import make_layout

from fieldwise.layout import Layout
from fieldwise.models import LR


def test_a_case_worked_by_hand(lab):
    """A category of weight 2, a number 3 of weight -0.5, a bag of the mean of 1 and 4, and a bias of 10."""
    layout = make_layout(("id", "user", 2), ("value", "user", 1), ("bag", "item", 2))
    network = LR().build(layout)
    network.first_order.embedding.weight.data = torch.tensor([[7.0], [2.0], [-0.5], [1.0], [4.0]])
    network.first_order.bias.data = torch.tensor(10.0)
    batch = lab.batch(layout, 1)._replace(
        ids=torch.tensor([[1, 2]]),
        values=torch.tensor([[3.0]]),
        bag_ids=torch.tensor([3, 4]),
        bag_segments=torch.tensor([0, 0]),
        bag_weights=torch.tensor([0.5, 0.5]),
    )
    assert network(batch).item() == 10 + 2 - 1.5 + 2.5


def test_starts_at_zero():
    assert all(torch.equal(p, torch.zeros_like(p)) for p in LR().build(Layout.of_sizes([3, 4])).parameters())
