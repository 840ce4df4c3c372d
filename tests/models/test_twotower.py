"""What every two-tower model must do: representations that can be stored and scored later."""

import pytest
import torch
from parity.reference import FIRST, REFERENCES, hardest, layouts_of

from fieldwise.models.twotower import Similarity, TwoTower, unit_vectors

NAMES = ("dssm", "dat", "inttower")


def with_items_of(layout, batch, other):
    """The batch's users and contexts with the other batch's items, row by row."""
    singles = [f for f in layout.fields if f.kind != "bag"]
    bags = [f for f in layout.fields if f.kind == "bag"]
    item = torch.tensor([f.role == "item" for f in singles], dtype=torch.bool)
    number = torch.tensor([f.role == "item" for f in singles if f.kind == "value"], dtype=torch.bool)
    if not bags:
        return batch._replace(
            ids=torch.where(item, other.ids, batch.ids), values=torch.where(number, other.values, batch.values)
        )
    bag = torch.tensor([f.role == "item" for f in bags])
    own, theirs = ~bag[batch.bag_segments % len(bags)], bag[other.bag_segments % len(bags)]
    segments = torch.cat([batch.bag_segments[own], other.bag_segments[theirs]])
    order = torch.argsort(segments, stable=True)
    return batch._replace(
        ids=torch.where(item, other.ids, batch.ids),
        values=torch.where(number, other.values, batch.values),
        bag_ids=torch.cat([batch.bag_ids[own], other.bag_ids[theirs]])[order],
        bag_segments=segments[order],
        bag_weights=torch.cat([batch.bag_weights[own], other.bag_weights[theirs]])[order],
    )


def test_only_these_models_are_two_towers():
    """COLD among the others: one tower over all fields, without representations."""
    for name, reference in REFERENCES.items():
        network = FIRST[name].build(next(iter(layouts_of(reference).values())))
        assert isinstance(network, TwoTower) == (name in NAMES), name


@pytest.mark.parametrize("name", NAMES)
def test_stored_representations_score_as_the_joint_pass(lab, name, subtests):
    layout = lab.layouts[hardest(name)]
    for case, settings in REFERENCES[name].CASES.items():
        with subtests.test(case=case):
            network, batch = settings.build(layout).eval(), lab.batch(layout, 9)
            user, item = network.user(batch), network.item(batch)
            assert torch.equal(network.score(user, item), network(batch))


@pytest.mark.parametrize("name", NAMES)
def test_any_user_meets_any_item(lab, name):
    """Users of one batch scored with the stored items of another are the joint pass over the pairs."""
    layout = lab.layouts[hardest(name)]
    network = lab.randomized(FIRST[name].build(layout), seed=1)
    batch, other = lab.batch(layout, 8), lab.batch(layout, 8, seed=1)
    pairs = with_items_of(layout, batch, other)
    torch.testing.assert_close(network.score(network.user(batch), network.item(other)), network(pairs))
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
    user = torch.nn.functional.normalize(torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    ends = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    bare = Similarity("cosine", temperature=1.0)
    probability = torch.sigmoid(bare(user, user.flip(0)))
    assert 0.268 < probability.min() < probability.max() < 0.732
    learned = Similarity("cosine", temperature=0.2)
    high, low = torch.sigmoid(learned(*ends)).tolist()
    assert (high, low) == pytest.approx((1 / (1 + 2.718281828**-5), 1 / (1 + 2.718281828**5)), rel=1e-6)
    learned(*ends).sum().backward()
    assert learned.bias.grad == 2
    assert learned.log_scale.grad == 0  # 5 cos(u, v) of the two rows, which cancel here
