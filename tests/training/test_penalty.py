import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.models import AFM, LR
from fieldwise.models.build import build_network
from fieldwise.training.penalty import L2Penalty


def batch_of(ids, bag_ids=()):
    bags = torch.tensor(bag_ids, dtype=torch.int32)
    return Batch(
        torch.tensor(ids, dtype=torch.int32),
        torch.empty(len(ids), 0),
        bags,
        torch.zeros(len(bags)),
        torch.ones(len(bags)),
    )


@pytest.fixture
def afm(layout):
    network = build_network(AFM(embedding_dim=3, attention_dim=2), layout, 0)
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    return network


def gradients(network, value):
    network.zero_grad()
    value.backward()
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in network.named_parameters()}


def test_all_rows_counts_the_whole_table(afm, layout):
    penalty = L2Penalty(afm, {"embedding.weight": 0.3}, "all")
    value = penalty(batch_of([[0, 4, 7]]))
    weight = afm.embedding.weight.detach().numpy()
    assert value.item() == pytest.approx(0.15 * (weight**2).sum(), rel=1e-6)
    found = gradients(afm, value)
    np.testing.assert_allclose(found.pop("embedding.weight"), 0.3 * weight, rtol=1e-6)
    assert all(g is None for g in found.values())


def test_touched_rows_counts_each_row_of_the_batch_once(afm, layout):
    penalty = L2Penalty(afm, {"*embedding.weight": 0.3}, "touched")
    value = penalty(batch_of([[0, 4, 7], [0, 5, 7]], bag_ids=[5, 11]))
    rows = [0, 4, 5, 7, 11]
    tables = {
        "embedding.weight": afm.embedding.weight,
        "first_order.embedding.weight": afm.first_order.embedding.weight,
    }
    expected = sum((p.detach().numpy()[rows] ** 2).sum() for p in tables.values())
    assert value.item() == pytest.approx(0.15 * expected, rel=1e-6)
    found = gradients(afm, value)
    for name, p in tables.items():
        by_hand = np.zeros(p.shape)
        by_hand[rows] = 0.3 * p.detach().numpy()[rows]
        np.testing.assert_allclose(found[name], by_hand, rtol=1e-6)


def test_touched_leaves_what_is_no_table_whole(afm):
    value = L2Penalty(afm, {"p": 2.0}, "touched")(batch_of([[0, 4, 7]]))
    assert value.item() == pytest.approx(float((afm.p.detach().numpy() ** 2).sum()), rel=1e-6)


def test_touched_knows_a_table_by_its_kind_not_by_its_size(layout):
    network = build_network(AFM(embedding_dim=3, attention_dim=layout.num_rows), layout, 0)
    value = L2Penalty(network, {"attention.W": 2.0}, "touched")(batch_of([[0, 4, 7]]))
    assert value.item() == pytest.approx(float((network.attention.W.detach().numpy() ** 2).sum()), rel=1e-6)


def test_a_named_part_alone_as_in_the_afm_paper(afm):
    value = L2Penalty(afm, {"attention.W": 4.0}, "all")(batch_of([[0, 4, 7]]))
    weight = afm.attention.W.detach().numpy()
    assert value.item() == pytest.approx(2.0 * (weight**2).sum(), rel=1e-6)
    found = gradients(afm, value)
    np.testing.assert_allclose(found.pop("attention.W"), 4.0 * weight, rtol=1e-6)
    assert all(g is None for g in found.values())


def test_the_first_pattern_that_fits_counts(afm):
    value = L2Penalty(afm, {"attention.W": 0.0, "attention.*": 1.0}, "all")(batch_of([[0, 4, 7]]))
    rest = [afm.attention.b, afm.attention.h]
    assert value.item() == pytest.approx(0.5 * sum(float(p.detach().square().sum()) for p in rest), rel=1e-6)


def test_nothing_named_is_nothing_to_add(layout):
    network = build_network(LR(), layout, 0)
    assert not L2Penalty(network, {}, "all")
    assert not L2Penalty(network, {"*": 0.0}, "touched")


def test_an_unknown_pattern_names_the_nearest_parameter(afm):
    with pytest.raises(ConfigError, match=r"'first_ordr.bias'.*did you mean 'first_order\.bias'\?"):
        L2Penalty(afm, {"first_ordr.bias": 1.0}, "all")
