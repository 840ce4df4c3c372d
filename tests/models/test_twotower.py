"""What every two-tower model must do: representations that can be stored and scored later."""

import pytest
import torch
from parity.reference import FIRST, hardest

from fieldwise import DSSM
from fieldwise.models.twotower import Similarity, unit_vectors

NAMES = ("dssm", "dat", "inttower")


@pytest.mark.parametrize("name", NAMES)
def test_any_user_meets_any_item(lab, name):
    """Users of one batch scored with the stored items of another are the joint pass over the pairs."""
    layout = lab.layouts[hardest(name)]
    network = lab.randomized(FIRST[name].build(layout), seed=1)
    batch, other = lab.batch(layout, 8), lab.batch(layout, 8, seed=1)
    items = [i for i, field in enumerate(layout.fields) if field.role == "item"]
    pairs = lab.with_fields_of(layout, batch, other, items)
    torch.testing.assert_close(
        network.score(network.user(batch), network.item(other)), network(pairs)
    )
    assert torch.equal(network.user(pairs), network.user(batch))
    assert torch.equal(network.item(pairs), network.item(other))
    assert not torch.equal(network.user(pairs), network.user(other))
    assert not torch.equal(network.item(pairs), network.item(batch))


def test_a_row_of_zeros_sends_no_giant_gradient_back():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    (unit_vectors(x) @ torch.tensor([1.0, 2.0])).sum().backward()
    # d/dx of (x . c) / |x| at (3, 4): (c - (u . c) u) / |x| with u = (.6, .8), u . c = 2.2.
    torch.testing.assert_close(x.grad, torch.tensor([[-0.064, 0.048], [1.0, 2.0]]))


def test_the_bare_cosine_cannot_leave_a_narrow_band_and_the_similarity_can():
    user = torch.nn.functional.normalize(
        torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), dim=1
    )
    ends = (
        torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
        torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]),
    )
    bare = Similarity("cosine", temperature=1.0)
    probability = torch.sigmoid(bare(user, user.flip(0)))
    assert 0.268 < probability.min() < probability.max() < 0.732
    learned = Similarity("cosine", temperature=0.2)
    high, low = torch.sigmoid(learned(*ends)).tolist()
    assert (high, low) == pytest.approx(
        (1 / (1 + 2.718281828**-5), 1 / (1 + 2.718281828**5)), rel=1e-6
    )
    learned(*ends).sum().backward()
    assert learned.bias.grad == 2
    assert learned.log_scale.grad == 0  # 5 cos(u, v) of the two rows, which cancel here


def test_empty_bags_on_a_fresh_network_do_not_explode(lab):
    """All biases are 0 then, so that both towers give zeros, of which no direction can be known."""
    layout = lab.layouts["bags"]
    network = DSSM(embedding_dim=4, hidden=(6,), output_dim=4).build(layout)
    empty = torch.empty(0)
    batch = lab.batch(layout, 3)._replace(
        bag_ids=empty.long(), bag_segments=empty.long(), bag_weights=empty
    )
    torch.nn.functional.binary_cross_entropy_with_logits(network(batch), torch.ones(3)).backward()
    assert max(float(p.grad.abs().max()) for p in network.parameters()) < 1.0
