import numpy as np
import pytest
import torch
from parity.lab import make_layout

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, FwFM, parameter_count
from fieldwise.ops import pair_indices

LINEAR = ["weights", "feature_vectors", "field_vectors"]


def by_hand(lab, linear):
    """Vectors (1, 2), (3, -1), (0, 4) of three fields: products 1, 8, -4, of strengths 2, -1, 0.5: -8 in all."""
    layout = Layout.of_sizes([1, 1, 1])
    network = FwFM(embedding_dim=2, linear=linear).build(layout)
    network.embedding.weight.data = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0]])
    network.r.data = torch.tensor([2.0, -1.0, 0.5])
    return network, lab.batch(layout, 1)


def test_one_weight_a_feature_worked_by_hand(lab):
    network, batch = by_hand(lab, "weights")
    network.first_order.embedding.weight.data = torch.tensor([[0.5], [1.0], [-2.0]])
    network.first_order.bias.data = torch.tensor(10.0)
    assert network(batch).item() == 10 + (0.5 + 1 - 2) - 8


@pytest.mark.parametrize("linear", ["feature_vectors", "field_vectors"])
def test_linear_terms_of_vectors_worked_by_hand(lab, linear):
    """One row a field, so that a second vector of the feature and one of the field give the same."""
    network, batch = by_hand(lab, linear)
    second = getattr(network.feature_vectors, "weight", network.field_vectors)
    second.data = torch.tensor([[2.0, 1.0], [1.0, 1.0], [7.0, -0.5]])
    network.bias.data = torch.tensor(10.0)
    assert network(batch).item() == 10 + (2 + 2) + (3 - 1) + (0 - 2) - 8


def test_linear_terms_of_vectors_differ_in_what_shares_a_vector(lab):
    """Two features of one field: each its own second vector, or one for both."""
    layout = Layout.of_sizes([2, 1])
    assert FwFM(linear="feature_vectors").build(layout).feature_vectors.weight.shape == (3, 16)
    assert FwFM(linear="field_vectors").build(layout).field_vectors.shape == (2, 16)


def test_strengths_of_one_are_an_fm(lab, layout):
    """And they start so."""
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    fwfm = FwFM(embedding_dim=3, linear="weights").build(layout).double()
    assert fwfm.load_state_dict(fm.state_dict(), strict=False).missing_keys == ["r"]
    torch.testing.assert_close(fwfm(batch), fm(batch), atol=1e-12, rtol=1e-12)


def test_every_strength_is_of_its_pair(lab):
    layout = lab.layouts["categorical"]
    network, batch = lab.randomized(FwFM(embedding_dim=3, linear="weights").build(layout)), lab.batch(layout, 4)
    x = lab.fields(layout, batch, network.embedding.weight.detach())
    for p, (i, j) in enumerate(torch.stack(pair_indices(4), 1).tolist()):
        network.r.data = torch.eye(6, dtype=torch.float64)[p]
        pairs = (network(batch) - network.first_order(batch)).detach()
        np.testing.assert_allclose(pairs, (x[:, i] * x[:, j]).sum(1), atol=1e-12)


def test_a_number_counts_once_in_the_linear_term(subtests, lab):
    """Twice the value is twice the linear term, not four times, also where two vectors are multiplied."""
    for linear in LINEAR:
        with subtests.test(linear=linear):
            layout = make_layout(("value", "user", 1), ("value", "item", 1))
            network, batch = lab.randomized(FwFM(embedding_dim=3, linear=linear).build(layout)), lab.batch(layout, 4)
            network.r.data.zero_()
            bias = network.first_order.bias if linear == "weights" else network.bias
            doubled = batch._replace(values=batch.values * 2)
            torch.testing.assert_close(network(doubled) - bias, 2 * (network(batch) - bias))


def test_a_bag_is_one_feature_of_pooled_vectors(lab):
    """NOTE[DIFF]: its linear term is the product of two means, not the mean of products; and no pair is within it."""
    layout = make_layout(("bag", "item", 2, "mean"), ("id", "user", 1))
    network = FwFM(embedding_dim=1, linear="feature_vectors").build(layout)
    network.embedding.weight.data = torch.tensor([[1.0], [3.0], [0.0]])
    network.feature_vectors.weight.data = torch.tensor([[2.0], [6.0], [0.0]])
    batch = lab.batch(layout, 1)._replace(
        ids=torch.tensor([[2]]),
        bag_ids=torch.tensor([0, 1]),
        bag_segments=torch.tensor([0, 0]),
        bag_weights=torch.tensor([0.5, 0.5]),
    )
    assert network(batch).item() == 2 * 4  # the mean of products would be 10


def test_parameter_count_is_the_formula(subtests):
    for linear, per_row, others in [("weights", 6 + 1, 0), ("feature_vectors", 2 * 6, 0), ("field_vectors", 6, 4 * 6)]:
        with subtests.test(linear=linear, per_row=per_row, others=others):
            network = FwFM(embedding_dim=6, linear=linear).build(Layout.of_sizes([30, 12, 5, 3]))
            assert parameter_count(network) == 50 * per_row + others + 6 + 1


def test_pairs_need_two_fields():
    with pytest.raises(ConfigError, match="FwFM weighs pairs of fields and needs at least 2 fields, found none"):
        FwFM().build(Layout.of_sizes([]))


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"linear": "LW"}, "linear must be one of 'weights', 'feature_vectors', 'field_vectors', found 'LW'"),
        ({"embedding_std": float("inf")}, "embedding_std must be above 0 and finite, found inf"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            FwFM(**settings)
