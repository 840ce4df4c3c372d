"""Faults of published code, each shown to be absent. The docstrings describe the effect of each fault."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from parity import lab
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from fieldwise import (
    AFM,
    FM,
    AutoInt,
    AutoIntPlus,
    Categorical,
    Encoder,
    Label,
    Numeric,
    Schema,
    TrainingSettings,
)
from fieldwise.layers import PairAttention
from fieldwise.training import objective as objective_module
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate

SETTINGS = {
    "fm": FM(embedding_dim=4),
    "afm": AFM(embedding_dim=4, attention_dim=5),
    "autoint": AutoInt(embedding_dim=4, layers=2, heads=2, attention_dim=6),
    "autoint+": AutoIntPlus(embedding_dim=4, layers=1, heads=2, attention_dim=6, hidden=(5,)),
}
each_model = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def encoded(frame, *fields):
    """The layout that the encoder makes of a table, and all its rows as one batch."""
    encoder = Encoder.fit(frame, Schema(fields=fields, label=Label("y")))
    return encoder.layout, encoder.transform(frame).batch(slice(0, frame.height))[0]


# AFM's attention


def test_the_softmax_is_over_the_pairs():
    """AFM's authors since 2018 and others: over an axis of one, so that every weight is 1 and W, b, h learn nothing."""
    layout = lab.LAYOUTS["categorical"]
    network, batch = (
        lab.randomized(AFM(embedding_dim=3, attention_dim=5).build(layout)),
        lab.random_batch(layout, 6),
    )
    # b learns where a unit is on for some pairs and off for others: the products must be large
    # enough for that.
    network.embedding.weight.data.mul_(4)
    weights = network.logit_terms(batch)[1]["attention"]
    assert weights.shape == (6, 6)
    torch.testing.assert_close(weights.sum(1), torch.ones(6, dtype=torch.float64))
    assert (weights.std(1) > 1e-3).all()
    network(batch).square().sum().backward()
    for parameter in (network.attention.W, network.attention.b, network.attention.h, network.p):
        assert parameter.grad.abs().max() > 1e-6


def test_the_attention_sees_pairs_not_their_sum():
    """Attention on the pooled vector would give equal results for rows with equal sums but different pairs."""
    torch.manual_seed(0)
    attention = PairAttention(3, 2, 4).double()
    # Products of row one: (2, 0), (0, 2), (0, 0); of row two: three times (2/3, 2/3).
    rows = torch.tensor([[[1.0, 1], [2, 0], [0, 2]], [[1, 1], [1, 1], [1, 1]]], dtype=torch.float64)
    rows[1] *= (2 / 3) ** 0.5
    sums = [sum(x[i] * x[j] for i, j in ((0, 1), (0, 2), (1, 2))) for x in rows]
    torch.testing.assert_close(sums[0], sums[1])
    pooled, weights = attention(rows), attention.weights(rows)
    assert not torch.allclose(weights[0], weights[1])
    torch.testing.assert_close(weights[1], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert not torch.allclose(pooled[0], pooled[1])


# From raw values to vectors


@each_model
def test_equal_values_of_two_fields_have_rows_of_their_own(settings):
    """Without an offset a field, user 7 and item 7 share one vector."""
    frame = pl.DataFrame({"user": [7, 8, 9], "item": [7, 8, 9]})
    layout, batch = encoded(
        frame, Categorical("user", role="user"), Categorical("item", role="item")
    )
    assert not set(batch.ids[:, 0].tolist()) & set(batch.ids[:, 1].tolist())
    network = lab.randomized(settings.build(layout))
    user, item = network.embedding(batch).unbind(1)
    assert not torch.isclose(user, item).any()
    network(batch).sum().backward()
    learning = network.embedding.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert learning == sorted(batch.ids.flatten().tolist())


@each_model
def test_numbers_reach_every_model(settings):
    """Numeric fields are dropped or refused, or taken for categories, by some."""
    frame = pl.DataFrame(
        {
            "user": ["a", "b", "c", "d"],
            "price": [0.5, 1.0, -2.0, None],
            "stock": [3.0, 0.0, 1.0, 2.0],
        }
    )
    layout, batch = encoded(
        frame, Categorical("user"), *(Numeric(n, transform="none") for n in ("price", "stock"))
    )
    assert [f.kind for f in layout.fields] == ["id", "value", "value"]
    network = lab.randomized(settings.build(layout))
    x, rows = network.embedding(batch), network.embedding.weight[batch.ids]
    # The number times the field's vector: signs kept, zero for zero, and a missing number adds
    # nothing.
    torch.testing.assert_close(
        x[:, 1:], rows[:, 1:] * torch.tensor([[0.5, 3], [1, 0], [-2, 1], [0, 2]]).unsqueeze(2)
    )
    doubled = network(batch._replace(values=batch.values * 2))
    assert not torch.isclose(doubled, network(batch)).any()


def test_ids_above_two_to_the_24_stay_apart():
    """Carried as float32, as in DeepCTR-Torch, such ids collide with their neighbours."""
    frame = pl.DataFrame({"big": ["x"] * 4, "small": ["a", "b", "c", "d"]})
    layout, batch = encoded(frame, Categorical("big", hash_buckets=2**24 + 2), Categorical("small"))
    ids, first = batch.ids[:, 1], 2**24 + 5
    assert ids.tolist() == [first, first + 1, first + 2, first + 3]
    assert len(set(ids.float().tolist())) < 4, "as float32 these would not be four ids"
    network = AFM(embedding_dim=1, attention_dim=1, embedding_std=1.0).build(layout)
    vectors = network.embedding(batch)[:, 1, 0]
    assert torch.equal(vectors, network.embedding.weight[first : first + 4, 0])
    assert len(set(vectors.tolist())) == 4
    assert len(set(network(batch).tolist())) == 4


# Training and evaluation


@pytest.fixture
def tables():
    """Encoded training and validation rows whose label depends on both fields."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 8, 160), rng.integers(0, 6, 160)
    effect = np.linspace(-2, 2, 8)[user] + np.linspace(2, -2, 6)[item]
    y = (rng.random(160) < 1 / (1 + np.exp(-effect))).astype(np.float32)
    frame = pl.DataFrame({"user": user, "item": item})
    schema = Schema(fields=(Categorical("user"), Categorical("item")), label=Label("y"))
    encoder = Encoder.fit(frame[:120], schema)
    return SimpleNamespace(
        layout=encoder.layout,
        train=encoder.transform(frame[:120], y=y[:120]),
        valid=encoder.transform(frame[120:], y=y[120:]),
    )


def run(tables, network, **settings):
    given = TrainingSettings(**{"epochs": 3, "patience": 9, **settings})
    return Training(
        network, tables.train, tables.valid, settings=given, objective=Objective(), seed=0
    ).run()


@pytest.mark.parametrize(
    "settings", [AFM(dropout=0.5, embedding_std=1.0), AutoIntPlus(mlp_dropout=0.5, hidden=(8,))]
)
def test_dropout_acts_from_the_second_epoch_on_too(tables, settings):
    """DeepCTR-Torch and IntTower's code call `train()` once, and the first evaluation turns dropout off for good.

    Without learning, and with all rows in one batch, the scores of two epochs differ only by
    dropout.
    """
    network, logits = settings.build(tables.layout), []
    network.register_forward_hook(
        lambda net, _, out: logits.append(out.detach().sort().values) if net.training else None
    )
    run(tables, network, batch_size=len(tables.train), optimizer="sgd", learning_rate=1e-30)
    assert len(logits) == 3
    assert not torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[1], logits[2])


def test_batch_norm_learns_from_the_second_epoch_on_too(tables):
    """The same fault: its statistics would stand still after the first evaluation."""
    network = AutoIntPlus(embedding_dim=4, attention_dim=4, hidden=(8,), batch_norm=True).build(
        tables.layout
    )
    (norm,) = (module for module in network.modules() if isinstance(module, nn.BatchNorm1d))
    seen = []
    network.register_forward_hook(
        lambda net, *_: (
            None
            if net.training
            else seen.append((int(norm.num_batches_tracked), norm.running_mean.clone()))
        )
    )
    run(tables, network, batch_size=30, learning_rate=0.01)
    assert [batches for batches, _ in seen] == [4, 8, 12]
    assert not torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[1][1], seen[2][1])


def test_metrics_are_over_the_whole_split_not_averaged_over_batches(tables, monkeypatch):
    """A mean of batches' AUC does not compare rows of different batches, and fails if a batch has one class."""
    network = SETTINGS["afm"].build(tables.layout)
    result = run(tables, network, learning_rate=0.1)
    y = tables.valid.targets[:, 0]
    # the last bits of a logit depend on the batch's size
    slices = [slice(k, k + 7) for k in range(0, len(y), 7)]
    logit = np.concatenate(
        [network(tables.valid.batch(rows)[0]).detach().double().numpy() for rows in slices]
    )
    monkeypatch.setattr(objective_module, "SCORING_BATCH", 7)
    results = evaluate(network, tables.valid, Objective())
    assert results["auc"] == pytest.approx(roc_auc_score(y, logit), abs=1e-9)
    assert results["logloss"] == pytest.approx(log_loss(y, 1 / (1 + np.exp(-logit))), abs=1e-6)
    assert results["rows"] == len(y)
    ordered = {name for name in results if "auc" in name}  # ties depend on the last bits
    rest = {name: value for name, value in results.items() if name not in ordered}
    assert rest == pytest.approx({name: result.best.metrics[name] for name in rest}, abs=1e-6)
    assert results.keys() == result.best.metrics.keys()
    assert any(len(set(y[rows].tolist())) == 1 for rows in slices), (
        "so that a mean over batches would have failed"
    )
