"""Multi-task training: the loss and the metrics by hand, and that each head learns its own label."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

from fieldwise import FM, LR, ConfigError, DataError, IntTower, Label, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.scoring.batches import score_batches
from fieldwise.training import schedule as module
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate

LIKED = Label("liked", weight=2.0)
STARS = Label("stars", task="regression", range=(1, 5), weight=0.5)
BOTH = Objective.of(LIKED, STARS)


def two(tables, seed=0):
    """The tables with two labels that depend on one field each: a yes by `user`, a number by `item`."""
    rng = np.random.default_rng(seed)

    def targets(table):
        offsets = [f.offset for f in table.layout.fields]
        user, item = table.ids[:, 0] - offsets[0], table.ids[:, 1] - offsets[1]
        stars = 3 + 0.5 * (item - item.mean()) + rng.normal(0, 0.05, len(table))
        return np.stack([user % 2, stars], axis=1).astype(np.float32)

    return SimpleNamespace(
        layout=tables.layout,
        train=dataclasses.replace(tables.train, y=targets(tables.train)),
        valid=dataclasses.replace(tables.valid, y=targets(tables.valid)),
    )


def single(tables, column):
    """One of the two labels alone."""
    parts = {name: getattr(tables, name) for name in ("train", "valid")}
    return {
        name: dataclasses.replace(t, y=np.ascontiguousarray(t.y[:, column]))
        for name, t in parts.items()
    }


def run(network, train, valid, objective, **settings):
    given = TrainingSettings(**{"batch_size": 32, "epochs": 1, "learning_rate": 0.1, **settings})
    return Training(network, train, valid, settings=given, objective=objective, seed=0).run()


# The loss and the metrics by hand


def test_the_loss_is_the_weighted_sum_of_the_labels_means():
    logit = torch.tensor([[0.0, 7.0], [math.log(3), 2.0]], requires_grad=True)
    y = torch.tensor([[1.0, 5.0], [0.0, 2.5]])
    # p = 1/2 for a positive and 3/4 for a negative: log 2 and log 4, mean 1.5 log 2. Squares: 2^2
    # (the 7 is beyond the range, but losses clip nothing) and .5^2, mean 2.125.
    expected = 2.0 * 1.5 * math.log(2) + 0.5 * 2.125
    loss = BOTH.loss(logit, y)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert BOTH.whole_loss(
        y.numpy().astype(float), logit.detach().numpy().astype(float)
    ) == pytest.approx(expected)
    loss.backward()
    # d/dz: weight * (p - y) / N, and weight * 2 (z - y) / N.
    np.testing.assert_allclose(
        logit.grad, [[2 * -0.5 / 2, 0.5 * 2 * 2 / 2], [2 * 0.75 / 2, 0.5 * 2 * -0.5 / 2]]
    )


def test_the_weight_of_one_label_scales_its_loss():
    logit, y = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0])
    plain, heavy = Objective(), Objective.of(LIKED)
    assert heavy.loss(logit, y).item() == 2 * plain.loss(logit, y).item()
    assert heavy.whole_loss(y.numpy(), logit.numpy()) == 2 * plain.whole_loss(
        y.numpy(), logit.numpy()
    )
    assert (
        plain.loss(logit, y).item()
        == torch.nn.functional.binary_cross_entropy_with_logits(logit, y).item()
    )


def test_the_loss_of_a_regression_is_in_units_of_its_scale():
    stars = Objective(task="regression", scale=10.0)
    y, z = torch.tensor([20.0, 30.0]), torch.tensor([1.0, 5.0])  # 1 and 2 off: a mean square of 2.5
    assert stars.loss(z, y).item() == stars.whole_loss(y.numpy(), z.numpy()) == 2.5
    both = Objective(more={"stars": stars})
    parts = torch.zeros(2), torch.ones(2)  # the main label: log 2
    pairs = [torch.stack(pair, 1) for pair in zip(parts, (z, y), strict=True)]
    assert both.whole_loss(pairs[1].numpy(), pairs[0].numpy()) == pytest.approx(2.5 + math.log(2))


def test_auxiliary_losses_have_their_labels_weights():
    assert BOTH.weighted(torch.tensor([3.0, 10.0])).item() == 2 * 3 + 0.5 * 10
    assert Objective.of(LIKED).weighted(torch.tensor(3.0)).item() == 6
    assert Objective().weighted(torch.tensor(3.0)).item() == 3


def test_the_main_labels_metrics_are_plain_and_the_others_prefixed():
    y = np.array([[1.0, 5.0], [0.0, 1.0], [1.0, 3.0], [0.0, 2.0]])
    score = np.array([[2.0, 7.0], [-1.0, 1.0], [-2.0, 3.0], [0.5, 4.0]])
    group = np.array([0, 0, 1, 1])
    result = BOTH.metrics(y, score, group)
    assert {name: result[name] for name in ("auc", "rows", "gauc")} == {
        "auc": 0.5,
        "rows": 4,
        "gauc": 0.5,
    }
    assert result["stars.rmse"] == 1.0  # 7 is clipped to 5, and one of four is off by 2
    assert result["stars.mae"] == 0.5
    # stars are grades: the second group's 3 and 2 are in the wrong order
    second = (3 + 7 / np.log2(3)) / (7 + 3 / np.log2(3))
    assert result == {
        **Objective.of(LIKED).metrics(y[:, 0], score[:, 0], group),
        "stars.rmse": 1.0,
        "stars.mae": 0.5,
        "stars.ndcg": pytest.approx((1 + second) / 2, abs=1e-12),
    }
    other = Objective.of(STARS, LIKED).metrics(y[:, ::-1], score[:, ::-1], group)
    assert (other["rmse"], other["liked.auc"], other["liked.gauc_groups"]) == (1.0, 0.5, 2)
    assert "liked.rows" not in other


def test_a_label_of_one_class_is_named():
    y, score = np.array([[3.0, 1.0], [4.0, 1.0]]), np.zeros((2, 2))
    with pytest.raises(
        DataError, match="label 'liked': evaluation of a binary label needs rows of both classes"
    ):
        Objective.of(STARS, LIKED).metrics(y, score)


# Training


def test_heads_that_share_nothing_train_as_single_networks_of_scaled_rates(tables):
    """LR has no shared table: a label's weight is then its step size alone."""
    both = two(tables)
    network = build_network(LR(), both.layout, 0, labels=2)
    full = {"batch_size": len(both.train), "optimizer": "sgd", "learning_rate": 0.04, "patience": 9}
    run(network, both.train, both.valid, BOTH, epochs=3, plateau_factor=1.0, **full)
    for t, label in enumerate((LIKED, STARS)):
        alone = build_network(LR(), both.layout, 0)
        rate = {**full, "learning_rate": 0.04 * label.weight}
        unweighted = Objective.of(dataclasses.replace(label, weight=1.0))
        run(alone, objective=unweighted, epochs=3, plateau_factor=1.0, **rate, **single(both, t))
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(
                network.heads[t].state_dict()[name], value, rtol=1e-4, atol=1e-7
            )


def test_each_head_learns_its_own_label(tables):
    both = two(tables)
    network = build_network(FM(embedding_dim=4), both.layout, 0, labels=2)
    # By the loss: the main label's AUC is 1 after an epoch, where the other has hardly begun.
    result = run(
        network,
        both.train,
        both.valid,
        BOTH,
        epochs=40,
        batch_size=16,
        learning_rate=0.05,
        monitor="loss",
    )
    results = evaluate(network, both.valid, BOTH, loss=True)
    assert results == pytest.approx(result.best.metrics, abs=1e-6)
    scores, y = score_batches(network, both.valid.batches(7)), both.valid.y
    assert scores.shape == y.shape
    assert results["auc"] == pytest.approx(roc_auc_score(y[:, 0], scores[:, 0]))
    assert results["auc"] > 0.99
    assert results["stars.rmse"] < 0.35 * y[:, 1].std()
    # What one head has learned says next to nothing of the other's label.
    assert abs(np.corrcoef(scores[:, 0], y[:, 1])[0, 1]) < 0.5
    assert abs(np.corrcoef(scores[:, 1], y[:, 0])[0, 1]) < 0.5


def test_the_auxiliary_losses_of_all_heads_are_trained_on_by_weight(tables):
    both = two(tables)
    for table in (both.train, both.valid):
        table.y[:, 1] = table.y[:, 1] > np.median(table.y[:, 1])  # CIR needs a yes or no
    labels = Objective(weight=2.0, more={"stars": Objective(weight=0.5)})
    settings = IntTower(
        embedding_dim=4, hidden=(6,), user_heads=1, item_heads=1, head_dim=3, dropout=0.0
    )
    network = build_network(settings, both.layout, 0, labels=2).train()
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    batch, y = both.train.batch(
        torch.randperm(len(both.train), generator=torch.Generator().manual_seed(0))
    )
    logit, auxiliary = network.forward_with_auxiliary(batch, y)
    assert (auxiliary > 0).all()
    total = labels.loss(logit, y) + 2.0 * auxiliary[0] + 0.5 * auxiliary[1]
    gradient = torch.autograd.grad(total, list(network.parameters()), allow_unused=True)
    fresh = build_network(settings, both.layout, 0, labels=2)
    result = run(
        fresh,
        both.train,
        both.valid,
        labels,
        optimizer="sgd",
        batch_size=len(both.train),
        learning_rate=0.01,
    )
    for (name, p), g in zip(fresh.named_parameters(), gradient, strict=True):
        step = torch.zeros_like(p) if g is None else -0.01 * g
        torch.testing.assert_close(p.detach() - before[name], step, rtol=1e-3, atol=1e-6, msg=name)
    assert result.evaluations[0].train_loss == pytest.approx(labels.loss(logit, y).item(), rel=1e-5)


# How the epoch is chosen


def test_the_loss_of_all_labels_can_decide(tables):
    both = two(tables)
    network = build_network(FM(embedding_dim=4), both.layout, 0, labels=2)
    result = run(
        network,
        both.train,
        both.valid,
        BOTH,
        epochs=12,
        patience=12,
        learning_rate=0.3,
        monitor="loss",
    )
    losses = [one.metrics["loss"] for one in result.evaluations]
    assert result.monitor == "loss"
    assert result.best.metrics["loss"] == min(losses)
    scores, y = score_batches(network, both.valid.batches(100)), both.valid.y.astype(np.float64)
    yes, squared = (
        log_loss(y[:, 0], 1 / (1 + np.exp(-scores[:, 0]))),
        mean_squared_error(y[:, 1], scores[:, 1]),
    )
    assert min(losses) == pytest.approx(2.0 * yes + 0.5 * squared, rel=1e-6)
    assert "loss" not in evaluate(network, both.valid, BOTH)


@pytest.mark.parametrize(
    ("label", "metric"), [(Label("y"), "logloss"), (Label("y", task="regression"), "rmse")]
)
def test_with_one_label_the_loss_is_its_own(tables, label, metric):
    network = build_network(LR(), tables.layout, 0)
    result = run(
        network,
        tables.train,
        tables.valid,
        Objective.of(label),
        monitor="loss",
        epochs=3,
        patience=9,
    )
    for one in result.evaluations:
        assert one.metrics["loss"] == pytest.approx(
            one.metrics[metric] ** (1 if metric == "logloss" else 2), rel=1e-9
        )
    assert result.best.metrics["loss"] == min(one.metrics["loss"] for one in result.evaluations)


def test_the_main_label_decides_and_a_lower_loss_is_better(tables, monkeypatch):
    both = two(tables)
    evaluations = [{"auc": 0.8, "loss": 0.5}, {"auc": 0.7, "loss": 0.3}, {"auc": 0.6, "loss": 0.4}]
    for monitor, best in ((None, 1.0), ("loss", 2.0)):
        left = iter(evaluations)
        monkeypatch.setattr(module, "evaluate", lambda *_, left=left, **__: next(left))
        network = build_network(LR(), both.layout, 0, labels=2)
        assert (
            run(
                network, both.train, both.valid, BOTH, epochs=3, monitor=monitor, patience=9
            ).best.epoch
            == best
        )


def test_l2_names_the_shared_table_and_heads_by_a_pattern(tables):
    both = two(tables)
    l2 = {"embedding.weight": 0.1, "heads.*.first_order.embedding.weight": 0.2}
    run(
        build_network(FM(embedding_dim=2), both.layout, 0, labels=2),
        both.train,
        both.valid,
        BOTH,
        l2=l2,
    )
    network = build_network(FM(embedding_dim=2), both.layout, 0, labels=2)
    with pytest.raises(
        ConfigError,
        match=r"'first_order.bias', which the model does not have: did you mean 'heads.\d.first",
    ):
        run(network, both.train, both.valid, BOTH, l2={"first_order.bias": 1.0})
