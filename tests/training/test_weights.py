"""Weights of rows in the loss: equal to repeated rows, and to scikit-learn's."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, r2_score, roc_auc_score

from fieldwise import (
    FM,
    LR,
    Categorical,
    ConfigError,
    DataError,
    Encoder,
    Label,
    NegativeSampling,
    Recommender,
    Schema,
    TrainingSettings,
    simulate,
)
from fieldwise.data.table import EncodedTable
from fieldwise.models.build import build_network
from fieldwise.scoring.batches import score_batches
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective

FIELDS = (
    Categorical("user_id"),
    Categorical("device"),
    Categorical("release_decade"),
    Categorical("age_group"),
)
SCHEMA = Schema(fields=FIELDS, label=Label("liked"))
REGRESSION = Schema(fields=FIELDS, label=Label("true_probability", task="regression"))
LOG = simulate(1500, users=20, items=30)
WEIGHT = np.random.default_rng(0).gamma(1.0, size=LOG.height)
QUICK = TrainingSettings(epochs=2, batch_size=128, learning_rate=0.01)
BOTH = Objective(more={"stars": Objective(task="regression", weight=0.5)})


@pytest.mark.parametrize(
    "objective", [Objective(), Objective(task="regression"), BOTH], ids=["yes", "number", "both"]
)
def test_integer_weights_equal_repeated_rows(objective: Objective) -> None:
    rng = np.random.default_rng(1)
    times = torch.from_numpy(rng.integers(0, 4, 60))
    shape = (60, 2) if objective.more else (60,)
    y = torch.from_numpy(rng.integers(0, 2, shape)).double()
    gradients, losses = [], []
    for repeat in (True, False):
        logit = torch.from_numpy(np.random.default_rng(2).normal(size=shape)).requires_grad_()
        if repeat:
            loss = objective.loss(logit.repeat_interleave(times, 0), y.repeat_interleave(times, 0))
        else:
            loss = objective.loss(logit, y, times / times.double().mean())
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(logit.grad)
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("schema", [SCHEMA, REGRESSION], ids=["yes", "number"])
def test_equal_weights_change_no_bit(schema: Schema) -> None:
    log, weight = LOG[:500], WEIGHT[:500]

    def scores(sample_weight: np.ndarray | None) -> np.ndarray:
        training = dataclasses.replace(QUICK, epochs=1)
        fitted = Recommender(schema, FM(embedding_dim=4), training=training).fit(
            log, sample_weight=sample_weight
        )
        return fitted.bundle_.score(log)

    np.testing.assert_array_equal(scores(np.full(500, 0.1)), scores(None))
    assert not np.array_equal(scores(weight), scores(None))
    np.testing.assert_array_equal(scores(weight * 1024), scores(weight))


def _encoded(weight: np.ndarray) -> EncodedTable:
    table = Encoder.fit(LOG, SCHEMA).transform(LOG, y=LOG["liked"].to_numpy())
    return dataclasses.replace(table, weight=weight.astype(np.float32))


def test_a_logistic_regression_is_scikit_learns() -> None:
    table = _encoded(WEIGHT)
    network = build_network(LR(), table.layout, 0)
    often = {"epochs": 300, "patience": 300, "monitor": "logloss", "plateau_factor": 1.0}
    whole = TrainingSettings(optimizer="adam", learning_rate=0.05, batch_size=10_000, **often)
    result = Training(network, table, table, settings=whole, objective=Objective(), seed=0).run()
    ours = score_batches(network, table.batches(2048))
    one_hot = (
        LOG.select(f.name for f in FIELDS)
        .with_columns(pl.all().cast(pl.String))
        .to_dummies()
        .to_numpy()
    )
    theirs = LogisticRegression(C=np.inf, max_iter=5000, tol=1e-10).fit(
        one_hot, LOG["liked"], sample_weight=WEIGHT
    )
    unweighted = LogisticRegression(C=np.inf, max_iter=5000).fit(one_hot, LOG["liked"])
    expected = theirs.decision_function(one_hot)
    np.testing.assert_allclose(ours, expected, atol=0.02)
    assert np.abs(unweighted.decision_function(one_hot) - expected).max() > 0.3
    loss = log_loss(LOG["liked"], theirs.predict_proba(one_hot), sample_weight=WEIGHT)
    assert result.best.metrics["logloss"] == pytest.approx(loss, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.* were trained on")
def test_validation_rows_are_measured_by_their_weights() -> None:
    fitted = Recommender(SCHEMA, LR(), training=QUICK).fit(LOG, sample_weight=WEIGHT)
    result = fitted.evaluate(LOG, sample_weight=WEIGHT)
    assert result["auc"] == pytest.approx(
        roc_auc_score(LOG["liked"], fitted.decision_function(LOG), sample_weight=WEIGHT)
    )
    assert fitted.score(LOG, LOG["liked"], WEIGHT) == result["auc"] != fitted.score(LOG)
    mostly_yes = np.where(LOG["liked"] == 1, 9.0, 1.0)
    weighted = Recommender(SCHEMA, LR(), training=QUICK).fit(LOG, sample_weight=mostly_yes)
    share = LOG["liked"].mean()
    expected = 9 * share / (9 * share + 1 - share)
    assert weighted.history_.best.metrics["positive_rate"] == pytest.approx(expected, abs=0.02)
    regression = Recommender(REGRESSION, LR(), training=QUICK).fit(LOG, sample_weight=WEIGHT)
    r2 = r2_score(LOG["true_probability"], regression.predict(LOG), sample_weight=WEIGHT)
    assert regression.score(LOG, sample_weight=WEIGHT) == pytest.approx(r2, abs=1e-6)


def test_weights_stay_beside_their_rows_where_the_labels_rule_drops_some() -> None:
    label = Label("release_decade", positive_values=("1990s", "2000s"), drop_values=("1980s",))
    schema = Schema(fields=FIELDS[:2], label=label)
    weight = np.where(LOG["release_decade"] == "1980s", 1e6, WEIGHT)
    training = dataclasses.replace(QUICK, epochs=1)
    dropped = Recommender(schema, LR(), training=training).fit(LOG, sample_weight=weight)
    rest = LOG.filter(pl.col("release_decade") != "1980s")
    alone = Recommender(schema, LR(), training=training).fit(
        rest, sample_weight=WEIGHT[(LOG["release_decade"] != "1980s").to_numpy()]
    )
    np.testing.assert_array_equal(dropped.bundle_.score(rest), alone.bundle_.score(rest))


def test_wrong_weights_are_a_sentence(subtests):
    for weight, message in [
        (np.r_[-1.0, WEIGHT[1:]], "sample_weight: weights must not be negative, found -1 in row 0"),
        (np.r_[WEIGHT[1:], np.nan], "sample_weight: weights must be finite, found nan in row 1499"),
        (WEIGHT[1:], "one number for each of 1500 rows"),
        (WEIGHT[:, None], "one number for each of 1500 rows"),
        (np.zeros(LOG.height), "the weights of all 1500 rows are zero"),
        (["much"] * LOG.height, "weights must be numbers"),
        ((LOG["liked"] == 1).to_numpy(), "the train rows must hold both classes"),
        (np.r_[1.0, np.zeros(1499)], "a weight above 0|both classes"),
    ]:
        with subtests.test(weight=weight, message=message), pytest.raises(DataError, match=message):
            Recommender(SCHEMA, LR(), training=QUICK).fit(LOG, sample_weight=weight)


def test_sampled_negatives_have_no_weight() -> None:
    ask = NegativeSampling(user="user_id", item="item_id")
    with pytest.raises(ConfigError, match="a sampled negative has no weight"):
        Recommender(SCHEMA, LR(), training=QUICK, negatives=ask).fit(LOG, sample_weight=WEIGHT)


def test_a_saved_table_keeps_its_weights(tmp_path) -> None:
    table = _encoded(WEIGHT)
    table.save(tmp_path / "t")
    np.testing.assert_array_equal(EncodedTable.open(tmp_path / "t").weight, table.weight)
