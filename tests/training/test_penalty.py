import pytest
import torch

from fieldwise import AFM, LR, Batch, ConfigError, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.training.optimizers import RunOptimizer


def batch_of(ids, bag_ids=()):
    bags, ids = torch.tensor(bag_ids, dtype=torch.int32), torch.tensor(ids, dtype=torch.int32)
    return Batch(ids, torch.empty(len(ids), 0), bags, torch.zeros(len(bags)), torch.ones(len(bags)))


@pytest.fixture
def afm(layout):
    network = build_network(AFM(embedding_dim=3, attention_dim=2), layout, 0)
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    return network


def added(network, strengths, rows, batch=None):
    """What a penalty adds to the gradients, by parameter; half of them have one before."""
    named = dict(network.named_parameters())
    before = {name: torch.randn_like(p) for k, (name, p) in enumerate(named.items()) if k % 2}
    for name, p in named.items():
        p.grad = before[name].clone() if name in before else None
    settings = TrainingSettings(l2=strengths, l2_rows=rows)
    RunOptimizer(network, settings).add_l2(batch or batch_of([[0, 4, 7]]))
    changes = {n: p.grad - before.get(n, 0.0) for n, p in named.items() if p.grad is not None}
    return {name: change for name, change in changes.items() if change.count_nonzero()}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["embedding.weight", "attention.W"])
def test_a_named_part_counts_as_a_whole(afm, name):
    weight = afm.get_parameter(name)
    assert_close(added(afm, {name: 0.3}, "all"), {name: 0.3 * weight})


def test_touched_rows_counts_each_row_of_the_batch_once(afm):
    rows = torch.tensor([0, 4, 5, 7, 11])
    tables = {name: afm.get_parameter(name) for name in ("embedding.weight", "first_order.embedding.weight")}
    result = added(afm, {"*embedding.weight": 0.3}, "touched", batch_of([[0, 4, 7], [0, 5, 7]], bag_ids=[5, 11]))
    assert_close(result, {n: torch.zeros_like(p).index_copy(0, rows, 0.3 * p[rows]) for n, p in tables.items()})


def test_touched_leaves_what_is_no_table_whole(afm, layout):
    assert_close(added(afm, {"p": 2.0}, "touched"), {"p": 2.0 * afm.p})
    network = build_network(AFM(embedding_dim=3, attention_dim=layout.num_rows), layout, 0)  # of a table's size
    assert_close(added(network, {"attention.W": 2.0}, "touched"), {"attention.W": 2.0 * network.attention.W})


def test_the_first_pattern_that_fits_counts(afm):
    result = added(afm, {"attention.W": 0.0, "attention.*": 1.0}, "all")
    assert_close(result, {"attention.b": afm.attention.b, "attention.h": afm.attention.h})


def test_nothing_named_is_nothing_to_add(layout):
    network = build_network(LR(), layout, 0)
    for strengths, rows in [({}, "all"), ({"*": 0.0}, "touched")]:
        RunOptimizer(network, TrainingSettings(l2=strengths, l2_rows=rows)).add_l2(batch_of([[0, 4, 7]]))
    assert all(p.grad is None for p in network.parameters())


def test_an_unknown_pattern_names_the_nearest_parameter(afm):
    with pytest.raises(ConfigError, match=r"'first_ordr.bias'.*did you mean 'first_order\.bias'\?"):
        RunOptimizer(afm, TrainingSettings(l2={"first_ordr.bias": 1.0}))
