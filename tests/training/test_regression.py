"""LR solved exactly, against scikit-learn; models that start from it, and that end as a mean with it."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from counted_steps import Ends
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge

from fieldwise import AFM, FM, LR, AutoIntPlus, ConfigError, IntTower, Layout, TrainingSettings
from fieldwise.data.table import EncodedTable
from fieldwise.models.mean_with_lr import network_share, part_of_mean
from fieldwise.scoring.batches import score_batches
from fieldwise.training.callbacks import OutOfTime
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate

EXACT = TrainingSettings(optimizer="lbfgs")
FIRST = "first_order.embedding.weight"


def scores_of(network, table):
    return score_batches(network, table.batches(1000)).astype(np.float64)


def exactly(table, valid, settings=EXACT, objective=None, repeats=None):
    network = LR().build(table.layout)
    objective = objective or Objective()
    result = Training(
        network, table, valid, settings=settings, objective=objective, seed=0, repeats=repeats
    ).run()
    return network, result


def plain_matrix(table):
    """The rows [N, R] as the network itself reads them: the change of its score with each weight."""
    network, columns = LR().build(table.layout), []
    for row in range(table.layout.num_rows):
        with torch.no_grad():
            network.first_order.bias.zero_()
            network.first_order.embedding.weight.zero_()[row] = 1.0
        columns.append(scores_of(network, table))
    return csr_matrix(np.stack(columns, axis=1))


def one_hot(table):
    """Rows of categories [N, R]."""
    rows, fields = table.ids.shape
    ends = np.arange(0, rows * fields + 1, fields)
    return csr_matrix(
        (np.ones(rows * fields), table.ids.ravel(), ends), shape=(rows, table.layout.num_rows)
    )


def test_lr_at_a_given_strength_is_scikit_learn_s_with_that_c(bagged):
    table, c = bagged.train, 0.7
    settings = dataclasses.replace(EXACT, l2={FIRST: 1 / (c * float(table.weight.sum()))})
    network, result = exactly(table, bagged.valid, settings)
    x = plain_matrix(table)
    other = LogisticRegression(C=c, tol=1e-8, max_iter=5_000).fit(
        x, table.y, sample_weight=table.weight
    )
    assert scores_of(network, table) == pytest.approx(other.decision_function(x), abs=2e-3)
    assert (result.stopped, result.priors) == ("converged", {"given": 1.0})


def test_a_regression_label_has_scikit_learn_s_ridge(tables):
    rng = np.random.default_rng(0)
    table = dataclasses.replace(
        tables.train, y=rng.normal(3, 20, len(tables.train)).astype(np.float32)
    )
    settings = dataclasses.replace(EXACT, l2={FIRST: 0.05})
    network, _ = exactly(table, table, settings, Objective(task="regression", scale=10.0))
    x = plain_matrix(table)
    other = Ridge(alpha=0.05 * len(table) / 2).fit(x, table.y / 10)
    assert scores_of(network, table) == pytest.approx(other.predict(x), abs=2e-3)


def planted(rows, seed, *, noise_fields=6, binary=True):
    """Rows of two fields that matter, of 40 values each, and fields of 200 values that do not."""
    rng = np.random.default_rng(seed)
    effects = np.random.default_rng(7).normal(0, 1, (2, 40))
    sizes = [40, 40] + [200] * noise_fields
    ids = np.stack([rng.integers(0, n, rows) for n in sizes], axis=1)
    logit = effects[0, ids[:, 0]] + effects[1, ids[:, 1]]
    y = rng.random(rows) < 1 / (1 + np.exp(-logit)) if binary else logit + rng.normal(0, 1, rows)
    layout = Layout.of_sizes(sizes)
    ids += np.array([f.offset for f in layout.fields])
    empty = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    return EncodedTable(layout, ids.astype(np.int32), *empty, y=y.astype(np.float32))


def test_fields_that_matter_get_weaker_priors_than_one_c_for_all_can_give():
    train, valid, test = planted(2_000, 0), planted(500, 1), planted(10_000, 2)
    network, result = exactly(train, valid)
    x, held, scored = map(one_hot, (train, valid, test))

    def loss(model, rows, table):
        z, y = model.decision_function(rows), table.y
        return float(np.mean(np.logaddexp(0, z) - y * z))

    models = [
        LogisticRegression(C=c, max_iter=1_000).fit(x, train.y)
        for c in 10.0 ** np.arange(-3, 1.5, 0.5)
    ]
    best = min(models, key=lambda model: loss(model, held, valid))
    assert evaluate(network, test, Objective())["logloss"] < loss(best, scored, test) - 0.003
    assert sum(result.priors.values()) == pytest.approx(1.0)
    assert any(name.startswith("fields") for name in result.priors)


def test_a_regression_label_learns_what_is_planted():
    train, valid, test = (planted(2_000, seed, binary=False) for seed in range(3))
    network, _ = exactly(train, valid, objective=Objective(task="regression"))
    assert evaluate(network, test, Objective(task="regression"))["rmse"] < 1.15  # 1 is the noise


def test_the_second_training_takes_the_shares_of_the_first(tables):
    _, first = exactly(tables.train, tables.valid)
    again, result = exactly(tables.train, None, repeats=first)
    same, _ = exactly(tables.train, tables.valid)
    assert scores_of(again, tables.valid) == pytest.approx(scores_of(same, tables.valid), abs=1e-2)
    assert result.priors == first.priors


def test_validation_labels_weigh_and_test_labels_are_not_read(tables):
    turned = dataclasses.replace(tables.valid, y=1 - tables.valid.y)
    shares = [exactly(tables.train, valid)[1].priors for valid in (tables.valid, turned)]
    assert shares[0] != shares[1]


@pytest.mark.parametrize("steps", [0, 60, 100])
def test_a_time_limit_leaves_the_mean_so_far(tables, steps):
    network = LR().build(tables.layout)
    result = Training(
        network, tables.train, tables.valid, settings=EXACT, objective=Objective(), seed=0,
        callbacks=[Ends(step=steps + 1, how=OutOfTime)],
    ).run()  # fmt: skip
    assert result.stopped == "time"
    assert (
        result.best.metrics["logloss"]
        == evaluate(network, tables.valid, Objective())["logloss"]
        < 0.72
    )


def test_a_time_limit_ends_an_evaluation_of_the_loss_of_many_rows(tables, monkeypatch):
    whole, _ = exactly(tables.train, tables.valid)
    monkeypatch.setattr("fieldwise.training.regression.CHUNK_ROWS", 100)
    chunked, _ = exactly(dataclasses.replace(tables.train), tables.valid)
    torch.testing.assert_close(
        scores_of(chunked, tables.valid), scores_of(whole, tables.valid), rtol=1e-3, atol=1e-3
    )
    started = TrainingSettings(epochs=1, batch_size=60, mean_with_lr=True)
    for model, settings in ((LR(), EXACT), (FM(embedding_dim=4), started)):
        ends = _EndsWithin()
        network, table = model.build(tables.train.layout), dataclasses.replace(tables.train)
        given = {"settings": settings, "objective": Objective(), "seed": 0, "callbacks": [ends]}
        assert Training(network, table, tables.valid, **given).run().stopped == "time"
        assert ends.steps == 0, "before the first loss is known"


class _EndsWithin(Ends):
    """Ends a run at the first part of a step."""

    def on_part(self):
        raise OutOfTime


class _Counts(Ends):
    """Notes what it is called with, in order."""

    def __init__(self, steps):
        super().__init__(step=steps + 1, how=OutOfTime)
        self.heard = []

    def on_start(self, start):
        self.heard.append("start")

    def on_step(self, step):
        self.heard.append(step.rows)
        self.loss = step.loss.item()
        super().on_step(step)


@pytest.mark.parametrize(("steps", "average"), [(0, None), (0, 0.9), (60, 0.9), (10_000, 0.9)])
def test_a_run_begins_before_its_regression_which_a_callback_can_end(tables, steps, average):
    counts = _Counts(steps)
    table = dataclasses.replace(tables.train)  # no earlier run has solved it
    first = {"start_from_lr": True, "mean_with_lr": True}
    settings = TrainingSettings(
        epochs=1, batch_size=60, average=average, learning_rate=0.01, **first
    )
    network = FM(embedding_dim=4).build(table.layout)
    given = {"settings": settings, "objective": Objective(), "seed": 0, "callbacks": [counts]}
    training = Training(network, table, tables.valid, **given)
    result = training.run()
    assert counts.heard[:2] == ["start", 0]
    assert (result.stopped, len(counts.heard) - 2 == steps) == (
        ("time", True) if steps < 10_000 else ("epochs", False)
    )
    assert (sum(counts.heard[1:]) == len(table)) == (steps == 10_000)
    loss = evaluate(training.network, tables.valid, Objective())["logloss"]
    assert loss == result.best.metrics["logloss"] < 0.72
    # the one evaluation is of the regression so far: a constant, beside interactions near 0
    if steps == 0:
        p = (table.y.sum() + 0.5) / (len(table) + 1)
        expected = float(-np.log(np.where(tables.valid.y == 1, p, 1 - p)).mean())
        assert abs(expected - np.log(2)) > 2e-3
        assert result.evaluations[0].metrics["logloss"] == pytest.approx(expected, abs=5e-4)


def trained(tables, model, repeats=None, **more):
    """A training that ends as a mean with LR, and its history."""
    settings = TrainingSettings(
        epochs=3, batch_size=32, monitor="logloss", mean_with_lr=True, **more
    )
    torch.manual_seed(0)
    network = model.build(tables.layout)
    given = {"settings": settings, "objective": Objective(), "seed": 0}
    training = Training(network, tables.train, tables.valid, repeats=repeats, **given)
    return training, training.run()


def logloss(z, y):
    return float(np.mean(np.logaddexp(0, z) - y * z))


PLUS = AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(6,))


@pytest.mark.parametrize(
    "model", [FM(embedding_dim=4), AFM(embedding_dim=4, attention_dim=4), PLUS]
)
@pytest.mark.parametrize("rate", [0.005, 0.3])
def test_the_share_in_the_mean_with_lr_is_weighed_by_the_likelihood_of_the_validation_rows(
    tables, model, rate
):
    training, result = trained(tables, model, learning_rate=rate)
    lr, exact = exactly(tables.train, tables.valid)
    y, of_lr = tables.valid.y, scores_of(lr, tables.valid)
    of_network = scores_of(part_of_mean(training.network), tables.valid)
    shares = np.linspace(0, 1, 1001)
    losses = np.array([logloss(s * of_network + (1 - s) * of_lr, y) for s in shares])
    likelihoods = np.exp(-len(y) * (losses - losses.min()))
    share = float(shares @ likelihoods / likelihoods.sum())
    loss = logloss(share * of_network + (1 - share) * of_lr, y)
    if loss >= losses[-1]:
        share, loss = 1.0, losses[-1]
    assert result.network_share == network_share(training.network) == pytest.approx(share, abs=0.02)
    assert result.best.metrics["logloss"] == pytest.approx(loss, abs=1e-3)
    assert (
        evaluate(training.network, tables.valid, Objective())["logloss"]
        == result.best.metrics["logloss"]
    )
    assert result.priors == exact.priors


def paired(rows, seed):
    """Rows of two fields, whose label is whether both have the same parity, in nine of ten rows."""
    rng = np.random.default_rng(seed)
    layout = Layout.of_sizes([6, 6])
    ids = rng.integers(0, 6, (rows, 2))
    y = (ids.sum(1) % 2 == 0) ^ (rng.random(rows) < 0.1)
    ids += np.array([f.offset for f in layout.fields])
    empty = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    return EncodedTable(layout, ids.astype(np.int32), *empty, y=y.astype(np.float32))


def noise(rows, seed):
    """Rows of `planted` whose label depends on nothing."""
    y = np.random.default_rng([seed, 1]).integers(0, 2, rows)
    return dataclasses.replace(planted(rows, seed), y=y.astype(np.float32))


@pytest.mark.parametrize(
    ("rows_of", "rate", "least", "most"),
    [(planted, 0.02, 0.0, 0.25), (noise, 0.05, 0.0, 0.3), (paired, 0.02, 0.9, 1.0)],
)
def test_the_share_is_near_the_best_on_many_new_rows(rows_of, rate, least, most):
    """Labels of LR, of nothing, and of a pair of fields alone: LR belongs to the first two, the network to the last."""
    tables = SimpleNamespace(
        train=rows_of(1_000, 0), valid=rows_of(1_000, 1), layout=rows_of(1, 0).layout
    )
    new = rows_of(20_000, 2)
    training, result = trained(tables, PLUS, learning_rate=rate)
    lr, _ = exactly(tables.train, tables.valid)
    of_network, of_lr = scores_of(part_of_mean(training.network), new), scores_of(lr, new)
    losses = np.array(
        [logloss(s * of_network + (1 - s) * of_lr, new.y) for s in np.linspace(0, 1, 101)]
    )
    assert losses[50] > losses.min() + 0.0025  # half of each is wrong for all three
    assert least <= result.network_share <= most
    loss = logloss(scores_of(training.network, new), new.y)
    assert loss < losses.min() + 0.001


def test_a_network_that_no_mean_improves_stays_as_it_is():
    """Labels by a pair of fields, of which LR can learn nothing, and a network that is not sure enough of them yet."""
    tables = SimpleNamespace(
        train=paired(1_500, 0), valid=paired(800, 1), layout=paired(1, 0).layout
    )
    model = FM(embedding_dim=4, embedding_std=0.3)
    training, result = trained(tables, model, learning_rate=0.006)
    assert isinstance(training.network, type(model.build(tables.layout)))
    assert (result.network_share, network_share(training.network)) == (1.0, 1.0)
    assert result.best in result.evaluations
    assert result.best.metrics["auc"] > 0.8
    again, second = trained(tables, model, result, learning_rate=0.006)
    assert second.network_share == network_share(again.network) == 1.0


def test_a_second_training_takes_the_share_of_the_first(tables):
    first, result = trained(tables, PLUS, learning_rate=0.02)
    again, second = trained(tables, PLUS, result, learning_rate=0.02)
    assert 0 < result.network_share < 1
    assert second.network_share == network_share(again.network) == result.network_share
    assert scores_of(again.network, tables.valid) == pytest.approx(
        scores_of(first.network, tables.valid), abs=1e-2
    )


def test_what_no_regression_can_do_is_refused(tables):
    given = {"objective": Objective(), "seed": 0}
    with pytest.raises(
        ConfigError, match="optimizer = 'lbfgs' solves a regression, found FMNetwork"
    ):
        Training(
            FM().build(tables.layout), tables.train, tables.valid, settings=EXACT, **given
        ).run()
    start = TrainingSettings(start_from_lr=True)
    with pytest.raises(
        ConfigError, match="first-order weights and a bias, which AutoIntNetwork has not"
    ):
        Training(
            PLUS.build(tables.layout), tables.train, tables.valid, settings=start, **given
        ).run()
    layout = Layout.of_sizes([3, 4], ["user", "item"])
    towers = IntTower(embedding_dim=4, hidden=(8,), user_heads=2, item_heads=1, head_dim=3).build(
        layout
    )
    mean = TrainingSettings(mean_with_lr=True)
    with pytest.raises(
        ConfigError,
        match="IntTowerNetwork has two towers, whose stored vectors have no place for LR",
    ):
        Training(towers, tables.train, tables.valid, settings=mean, **given).run()
