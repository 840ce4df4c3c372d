"""Weights of rows by the schema, rows of several trials, and samples of a log."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from torch.nn import functional

from fieldwise import (
    LR,
    AutoInt,
    Bundle,
    Categorical,
    Label,
    LightGBM,
    Recommender,
    Sampled,
    Schema,
    TrainingSettings,
    simulate,
)
from fieldwise.bundle.calibrate import calibrate
from fieldwise.data.prepare.labels import labelled_rows
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.evaluation.calibration import reliability
from fieldwise.storage.scratch import NO_LIMIT
from fieldwise.training.objective import Objective

LOG = simulate(1200, users=20, items=15, seed=3)
FIELDS = (Categorical("user_id", role="user"), Categorical("item_id", role="item"))
PLAIN = Schema(fields=FIELDS, label=Label("liked"))
QUICK = TrainingSettings(epochs=1)
WEIGHTS = np.random.default_rng(0).integers(1, 4, len(LOG))


def fitted(schema, log, model=None, **settings):
    if isinstance(model, LightGBM):
        return Recommender(schema, model).fit(log)
    return Recommender(schema, model or LR(), training=TrainingSettings(epochs=1, **settings)).fit(
        log
    )


def test_a_weight_column_trains_and_measures_as_sample_weight_does():
    weighted = LOG.with_columns(seen=pl.Series(WEIGHTS))
    schema = Schema(fields=FIELDS, label=Label("liked"), weight="seen")
    ours = fitted(schema, weighted)
    given = Recommender(PLAIN, LR(), training=QUICK).fit(LOG, sample_weight=WEIGHTS)
    assert np.array_equal(ours.decision_function(LOG), given.decision_function(LOG))
    metrics = ours.evaluate(weighted)
    score = ours.predict_proba(LOG)[:, 1]
    expected = roc_auc_score(LOG["liked"], score, sample_weight=WEIGHTS)
    assert metrics["auc"] == pytest.approx(expected, abs=1e-9)
    loss = log_loss(LOG["liked"], score.astype(np.float64), sample_weight=WEIGHTS)
    assert metrics["logloss"] == pytest.approx(loss, abs=1e-6)


def test_weight_two_equals_the_row_twice():
    double = LOG.with_columns(w=pl.lit(2.0))
    rows = labelled_rows(
        double, Schema(fields=FIELDS, label=Label("liked"), weight="w"), budget=NO_LIMIT
    )
    logit = torch.randn(len(LOG), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logit.requires_grad_()
    objective = Objective()
    weight = torch.from_numpy(rows.weight)
    y = torch.from_numpy(rows.main.astype(np.float64))
    loss = objective.loss(logit, y, weight / weight.mean())
    loss.backward()
    gradient = logit.grad.clone()
    logit.grad = None
    of_twice = objective.loss(torch.cat([logit, logit]), torch.cat([y, y]))
    of_twice.backward()
    assert loss.item() == pytest.approx(of_twice.item(), abs=1e-12)
    assert torch.allclose(gradient, logit.grad, atol=1e-12)
    score = logit.detach().numpy()
    once = objective.metrics(rows.main.astype(np.float64), score, weight=rows.weight)
    both = objective.metrics(np.tile(rows.main, 2).astype(np.float64), np.tile(score, 2))
    for name in ("auc", "logloss", "ece", "accuracy", "precision", "recall"):
        assert once[name] == pytest.approx(both[name], abs=1e-6), name


def test_rows_of_trials_train_as_the_log_of_single_trials_does():
    by_pair = LOG.group_by("user_id", "item_id", maintain_order=True)
    clicks = by_pair.agg(clicks=pl.col("liked").sum(), shown=pl.len())
    schema = Schema(fields=FIELDS, label=Label("clicks", trials="shown"))
    rows = labelled_rows(clicks, schema, budget=NO_LIMIT)
    assert rows.weight[rows.main == 1].sum() == pytest.approx(LOG["liked"].sum(), abs=1e-4)
    assert rows.weight.sum() == pytest.approx(len(LOG), abs=1e-4)
    # a whole-table optimizer sees the same loss
    exact = TrainingSettings(optimizer="lbfgs", l2={"first_order.embedding.weight": 1e-3})
    counted = Recommender(schema, LR(), training=exact).fit(clicks, eval_set=clicks)
    single = Recommender(PLAIN, LR(), training=exact).fit(LOG, eval_set=LOG)
    assert counted.decision_function(LOG) == pytest.approx(single.decision_function(LOG), abs=2e-3)


@pytest.mark.parametrize("model", [LR(), AutoInt(embedding_dim=4), LightGBM(max_trees=5)])
def test_a_sample_of_the_negatives_is_corrected_by_log_odds(model, tmp_path):
    kept = LOG.filter((pl.col("liked") == 1) | (pl.int_range(pl.len()) % 4 == 0))
    schema = Schema(fields=FIELDS, label=Label("liked", sampled=Sampled(negatives=0.25)))
    # its share in a mean with LR depends on metrics of the validation rows
    alone = (
        {} if not isinstance(model, AutoInt) else {"mean_with_lr": False, "start_from_lr": False}
    )
    corrected = fitted(schema, kept, model, **alone)
    uncorrected = fitted(PLAIN, kept, model, **alone)
    shift = math.log(0.25)
    assert corrected.decision_function(kept) == pytest.approx(
        uncorrected.decision_function(kept) + shift, abs=1e-4
    )
    corrected.bundle_.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    assert np.array_equal(loaded.predict(kept), corrected.bundle_.predict(kept))
    rows = labelled_rows(kept, schema, budget=NO_LIMIT)
    metrics = loaded.metrics(rows)
    weight = np.where(kept["liked"] == 1, 1.0, 4.0)
    expected = log_loss(
        kept["liked"], loaded.predict(kept).astype(np.float64), sample_weight=weight
    )
    assert metrics["logloss"] == pytest.approx(expected, abs=1e-6)


def test_the_loss_of_a_sample_is_that_of_its_log_odds():
    objective = Objective(sampled=Sampled(positives=0.5, negatives=0.1))
    z = torch.tensor([0.3, -1.0])
    y = torch.tensor([1.0, 0.0])
    expected = functional.binary_cross_entropy_with_logits(z + math.log(5.0), y)
    assert objective.loss(z, y).item() == pytest.approx(expected.item(), abs=1e-7)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_a_calibration_counts_weights_as_repeated_rows(method):
    model = fitted(PLAIN, LOG[:600])
    later = LOG[600:].with_columns(w=pl.Series(WEIGHTS[600:]))
    weighted = Schema(fields=FIELDS, label=Label("liked"), weight="w")
    repeated = later.select(pl.all().repeat_by("w").explode())
    bundle = model.bundle_
    by_weight = Bundle(weighted, bundle.encoder, bundle.settings, bundle.network, bundle.samples)
    ours = calibrate(by_weight, {"later": later}, method)
    theirs = calibrate(bundle, {"later": repeated}, method)
    assert ours.predict(LOG) == pytest.approx(theirs.predict(LOG), abs=1e-5)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([1.0, 0.0, 2.0], "a row's weight must be a number above 0: column 'w' holds 0.0 in row 1"),
        ([1.0, -2.0, 2.0], "holds -2.0 in row 1"),
        ([1.0, None, 2.0], "holds nothing in row 1"),
        ([1.0, 2.0, 0.0], "holds 0.0 in row 2 "),
        (["1", "x", "2"], "only numbers are allowed: column 'w' holds the text 'x' in row 1"),
    ],
)
def test_a_weight_that_is_none_is_refused_in_a_sentence(cells, words):
    table = LOG[:3].with_columns(w=pl.Series(cells))
    with pytest.raises(DataError, match=words):
        labelled_rows(
            table, Schema(fields=FIELDS, label=Label("liked"), weight="w"), budget=NO_LIMIT
        )


def test_a_row_of_trials_is_positive_if_one_of_them_is():
    schema = Schema(
        fields=FIELDS, label=Label("clicks", trials="shown"), user="user_id", item="item_id"
    )
    clicks = LOG.group_by("user_id", "item_id", maintain_order=True).agg(
        clicks=pl.col("liked").sum(), shown=pl.len()
    )
    model = Recommender(schema, LR(), training=QUICK).fit(clicks)
    lists = model.recommend(clicks, n=len(clicks))
    liked = LOG.filter(liked=1).select("user_id", "item_id").unique()
    assert lists.join(liked, on=["user_id", "item_id"]).is_empty()
    assert lists.height + liked.height == LOG["user_id"].n_unique() * LOG["item_id"].n_unique()
    assert model.classes_.tolist() == [0, 1]
    single_clicks = clicks.with_columns(clicks=pl.lit(1), shown=pl.lit(2))
    assert Recommender(schema, LR(), training=QUICK).fit(single_clicks).classes_.tolist() == [0, 1]


def test_plots_count_weights_as_evaluate_does():
    schema = Schema(fields=FIELDS, label=Label("liked"), weight="seen")
    weighted = LOG.with_columns(seen=pl.Series(WEIGHTS))
    model = fitted(schema, weighted)
    roc = model.plot("roc", weighted)
    assert f"AUC {model.evaluate(weighted)['auc']:.4f}" in str(roc)
    expected = reliability(LOG["liked"], model.predict_proba(LOG)[:, 1], weight=WEIGHTS)
    assert str(model.plot("calibration", weighted)) == str(expected.plot())


def test_more_positives_than_trials_are_refused():
    schema = Schema(fields=FIELDS, label=Label("liked", trials="shown"))
    table = LOG[:3].with_columns(liked=pl.Series([1, 5, 0]), shown=pl.Series([2, 4, 9]))
    with pytest.raises(DataError, match="between 0 and its trials: column 'liked' holds 5 of 4"):
        labelled_rows(table, schema, budget=NO_LIMIT)


def test_a_table_without_its_weights_is_refused():
    with pytest.raises(DataError, match="no column 'w'"):
        labelled_rows(LOG, Schema(fields=FIELDS, label=Label("liked"), weight="w"), budget=NO_LIMIT)


def test_weights_of_the_schema_and_of_the_call_exclude_each_other():
    schema = Schema(fields=FIELDS, label=Label("liked"), weight="w")
    table = LOG.with_columns(w=pl.lit(1.0))
    with pytest.raises(ConfigError, match="leave out sample_weight"):
        Recommender(schema, LR(), training=QUICK).fit(table, sample_weight=WEIGHTS)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (lambda: Label("y", trials="y"), "another column"),
        (lambda: Label("y", trials="n", positive_above=1), "counts the positive ones itself"),
        (lambda: Label("y", trials="n", task="regression"), "takes no trials"),
        (lambda: Label("y", sampled=Sampled(), task="regression"), "takes no sampled"),
        (lambda: Label("y", sampled=Sampled(negatives=1.5)), "at most 1, found 1.5"),
        (lambda: Label("y", sampled=Sampled(positives=0.0)), "above 0 and at most 1, found 0"),
    ],
)
def test_contradictions_are_refused(label, words):
    with pytest.raises(SchemaError, match=words):
        label()


def test_a_field_must_not_read_the_weights():
    with pytest.raises(SchemaError, match="reads the weights' column 'w'"):
        Schema(fields=(Categorical("w"),), label=Label("liked"), weight="w")


def test_toml_has_weights_trials_and_samples():
    schema = Schema(
        fields=FIELDS,
        label=Label("liked", sampled=Sampled(negatives=0.1)),
        weight="w",
    )
    assert Schema.from_toml(schema.to_toml()) == schema


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_trees_of_a_sample_are_measured_on_one_scale(library):
    pytest.importorskip(library)
    log = simulate(4000, users=40, items=20, seed=5)
    kept = log.filter((pl.col("liked") == 1) | (pl.int_range(pl.len()) % 4 == 0))
    schema = Schema(fields=FIELDS, label=Label("liked", sampled=Sampled(negatives=0.25)))
    training = TrainingSettings(monitor="logloss")
    fitted_trees = Recommender(schema, library, training=training).fit(
        kept[:2000], eval_set=kept[2000:]
    )
    losses = [evaluation.metrics["logloss"] for evaluation in fitted_trees.history_.evaluations]
    rows = labelled_rows(kept[2000:], schema, budget=NO_LIMIT)
    best = fitted_trees.bundle_.metrics(rows)["logloss"]
    assert min(losses) == pytest.approx(best, abs=2e-3)
    assert max(losses) < 1.5 * best
