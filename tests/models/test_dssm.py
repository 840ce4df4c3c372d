import pytest
import torch
from torch.nn import functional as F

from fieldwise.layout import Layout
from fieldwise.models import DSSM

PAIR = Layout.of_sizes([2, 2], ["user", "item"])


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_probabilities_leave_the_band_of_the_bare_cosine(lab, similarity):
    """Two users of opposite taste: a cosine into a sigmoid ends at .73 and .27, whatever it is trained on."""
    torch.manual_seed(0)
    network = DSSM(embedding_dim=4, hidden=(8,), output_dim=4, similarity=similarity, embedding_std=0.3).build(PAIR)
    batch = lab.batch(PAIR, 4)._replace(ids=torch.tensor([[0, 2], [0, 3], [1, 2], [1, 3]]))
    label = torch.tensor([1.0, 0.0, 0.0, 1.0])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(batch), label).backward()
        optimizer.step()
    probability = torch.sigmoid(network(batch)).tolist()
    assert min(probability[0], probability[3]) > 0.95
    assert max(probability[1], probability[2]) < 0.05


def test_empty_bags_on_a_fresh_network_do_not_explode(lab):
    """All biases are 0 then, so that both towers give zeros, of which no direction can be known."""
    layout = lab.layouts["bags"]
    network = DSSM(embedding_dim=4, hidden=(6,), output_dim=4).build(layout)
    empty = torch.empty(0)
    batch = lab.batch(layout, 3)._replace(bag_ids=empty.long(), bag_segments=empty.long(), bag_weights=empty)
    F.binary_cross_entropy_with_logits(network(batch), torch.ones(3)).backward()
    assert max(float(p.grad.abs().max()) for p in network.parameters()) < 1.0
