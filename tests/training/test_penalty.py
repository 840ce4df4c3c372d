import dataclasses

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import (
    AFM,
    DIN,
    FM,
    LR,
    Batch,
    Categorical,
    ConfigError,
    Encoder,
    Label,
    Schema,
    Sequence,
    TrainingSettings,
)
from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.models.build import build_network
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.step import Step


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
    tables = {
        name: afm.get_parameter(name)
        for name in ("embedding.weight", "first_order.embedding.weight")
    }
    result = added(
        afm,
        {"*embedding.weight": 0.3},
        "touched",
        batch_of([[0, 4, 7], [0, 5, 7]], bag_ids=[5, 11]),
    )
    assert_close(
        result,
        {n: torch.zeros_like(p).index_copy(0, rows, 0.3 * p[rows]) for n, p in tables.items()},
    )


def test_touched_leaves_what_is_no_table_whole(afm, layout):
    assert_close(added(afm, {"p": 2.0}, "touched"), {"p": 2.0 * afm.p})
    # of a table's size
    network = build_network(AFM(embedding_dim=3, attention_dim=layout.num_rows), layout, 0)
    assert_close(
        added(network, {"attention.W": 2.0}, "touched"), {"attention.W": 2.0 * network.attention.W}
    )


def test_the_first_pattern_that_fits_counts(afm):
    result = added(afm, {"attention.W": 0.0, "attention.*": 1.0}, "all")
    assert_close(result, {"attention.b": afm.attention.b, "attention.h": afm.attention.h})


def test_nothing_named_is_nothing_to_add(layout):
    network = build_network(LR(), layout, 0)
    for strengths, rows in [({}, "all"), ({"*": 0.0}, "touched")]:
        RunOptimizer(network, TrainingSettings(l2=strengths, l2_rows=rows)).add_l2(
            batch_of([[0, 4, 7]])
        )
    assert all(p.grad is None for p in network.parameters())


def test_an_unknown_pattern_names_the_nearest_parameter(afm):
    with pytest.raises(ConfigError, match=r"'first_ordr.bias'.*did you mean 'first_order\.bias'\?"):
        RunOptimizer(afm, TrainingSettings(l2={"first_ordr.bias": 1.0}))


# L2 over all rows of lazily updated tables

LAZY = {"embedding_update": "lazy", "optimizer": "sgd", "learning_rate": 0.5}


def pairs_table(ids):
    none = np.zeros((len(ids), 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    y = (np.arange(len(ids)) % 2).astype(np.float32)
    return EncodedTable(Layout.of_sizes([3, 3]), np.array(ids, np.int32), *none, y=y[:, None])


def penalized(rows, batch_size, **settings):
    """The weights of an LR, and the gradients of L2 of strength 0.3 batch by batch, in the order of the rows."""
    network = build_network(LR(), rows.layout, 0)
    with torch.no_grad():
        network.first_order.embedding.weight.copy_(
            torch.arange(1.0, rows.layout.num_rows + 1)[:, None]
        )
    before = network.first_order.embedding.weight.detach().clone()
    of = TrainingSettings(
        l2={"first_order.embedding.weight": 0.3}, batch_size=batch_size, **settings
    )
    step = Step(network, rows, of, Objective(), 0)
    added = []
    for first in range(0, len(rows), batch_size):
        batch, _ = rows.batch(slice(first, first + batch_size))
        network.zero_grad(set_to_none=True)
        network(batch).sum().mul(0.0).backward()
        step.optimizer.add_l2(batch)
        step.optimizer.step()
        weight = network.first_order.embedding.weight
        added.append((before - weight.detach()) / of.learning_rate)
        with torch.no_grad():
            weight.copy_(before)
    return before, torch.stack(added)


def test_l2_of_all_rows_in_lazy_tables_is_that_of_dense_ones_over_an_epoch():
    """Row 0 occurs 7 times in four batches, row 1 once, rows 2 and 5 never; worked by hand."""
    rows = pairs_table([[0, 3], [0, 3], [0, 4], [0, 3], [0, 4], [0, 4], [0, 3], [1, 4]])
    before, added = penalized(rows, 2, **LAZY)
    _, dense = penalized(rows, 2, optimizer="sgd", learning_rate=0.5)
    seen = [0, 1, 3, 4]
    torch.testing.assert_close(added.sum(0)[seen], dense.sum(0)[seen])
    torch.testing.assert_close(dense.sum(0), 4 * 0.3 * before)
    assert added.sum(0)[[2, 5]].tolist() == [[0.0], [0.0]]
    # 7 occurrences of row 0 share 4 batches' L2; the only one of row 1 takes all of it.
    torch.testing.assert_close(
        added[:, 0, 0], 0.3 * 1.0 * torch.tensor([2.0, 2.0, 2.0, 1.0]) * 4 / 7
    )
    torch.testing.assert_close(added[:, 1, 0], torch.tensor([0.0, 0.0, 0.0, 4 * 0.3 * 2.0]))


def test_where_each_batch_has_each_row_equally_often_lazy_steps_are_dense_steps():
    rows, weights = pairs_table([[0, 3], [1, 4], [2, 5]] * 8), []
    for update in ("dense", "lazy"):
        network = build_network(FM(embedding_dim=2, embedding_std=0.5), rows.layout, 0)
        of = TrainingSettings(
            l2={"*embedding.weight": 0.3}, batch_size=6, embedding_update=update, learning_rate=0.1
        )
        step = Step(network, rows, of, Objective(), 0)
        for first in range(0, len(rows), 6):
            batch, y = rows.batch(slice(first, first + 6))
            step(batch, y, None)
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    torch.testing.assert_close(weights[1], weights[0])


def test_l2_of_all_rows_counts_what_unknown_values_take():
    """A value that is replaced half of the time is expected half as often: its occurrences have twice the L2."""
    field = dataclasses.replace(Layout.of_sizes([4]).fields[0], unknown=True)
    rows = dataclasses.replace(pairs_table([[2, 3]] * 3 + [[2, 3]]), layout=Layout((field,)))
    rows = dataclasses.replace(rows, ids=np.array([[2], [2], [2], [3]], np.int32))
    before, added = penalized(rows, 4, unknown_share=1.0, **LAZY)
    # Value 2 is expected 3 - 3/4 times, value 3 1 - 1/2 times, in the only batch.
    torch.testing.assert_close(
        added[0, 2:, 0], 0.3 * before[2:, 0] * torch.tensor([3 / 2.25, 1 / 0.5])
    )


@pytest.mark.parametrize(
    ("model", "labels"),
    [
        (FM(embedding_dim=2, embedding_std=0.5), 1),
        (FM(embedding_dim=2, embedding_std=0.5), 2),
        (DIN(embedding_dim=2, embedding_std=0.5), 1),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, 1e-3])
def test_l2_of_all_rows_counts_occurrences_in_the_batch_however_often_a_row_is_read(
    model, labels, clip_norm
):
    """One lazy step on all rows is a dense step, though PyTorch merges some equal ids of several lookups."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 6, 40), rng.integers(0, 8, 40)
    history = [
        "|".join(str(item) for item in rng.integers(0, 8, rng.integers(0, 4))) for _ in range(40)
    ]
    frame = pl.DataFrame({"user": users, "item": items, "history": history})
    fields = Categorical("user"), Categorical("item"), Sequence("history", shares="item")
    encoder = Encoder.fit(frame, Schema(fields=fields, label=Label("y")))
    rows = encoder.transform(frame, y=np.zeros((40, labels)))
    moved = {}
    for update in ("dense", "lazy"):
        network = build_network(model, rows.layout, 0, labels=labels).eval()
        before = network.embedding.weight.detach().clone()
        l2 = {"embedding.weight": 0.3}
        settings = TrainingSettings(
            l2=l2,
            batch_size=40,
            optimizer="sgd",
            learning_rate=1.0,
            embedding_update=update,
            clip_norm=clip_norm,
        )
        step = Step(network, rows, settings, Objective(), 0)
        batch, _ = rows.batch(slice(None))
        network(batch).sum().mul(0.0).backward()
        step.optimizer.add_l2(batch)
        step.optimizer.step()
        moved[update] = before - network.embedding.weight.detach()
    seen = torch.unique(torch.cat([batch.ids.flatten(), batch.bag_ids])).long()
    if clip_norm is None:
        torch.testing.assert_close(moved["lazy"][seen], moved["dense"][seen])
    else:
        assert moved["lazy"].norm() == pytest.approx(1e-3, rel=1e-3)
