"""Whole recipes by task: the AFM paper's squared loss by hand on a tiny table, and two labels of one log."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fieldwise import Bundle, load_recipe, prepare_recipe, simulate, train_recipe
from fieldwise.training.objective import Objective, evaluate

SMALL = [
    "data.rows=3000",
    "data.users=60",
    "data.items=40",
    "training.epochs=2",
    "training.batch_size=256",
]
BOUGHT = 'schema.more_labels=[{column="bought", weight=0.5}, {column="minutes", task="regression", range=[0, 2]}]'


def frappe_like() -> pl.DataFrame:
    """Rows of Frappe's columns, their labels -1 and 1; each user has a value of its own in all fields."""
    contexts = ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
    parts = ("train", "valid", "test")
    rows = [
        (u, i, 1 if (u + i) % 2 else -1, part) for part in parts for u in range(4) for i in range(2)
    ]
    frame = pl.DataFrame(rows, schema=["user", "item", "label", "split"], orient="row")
    return frame.with_columns(pl.col("user").alias(name) for name in contexts)


def test_the_afm_papers_task_by_hand():
    """Squared loss of the scores as they are, on targets -1 and 1; clipped to [-1, 1] for RMSE alone."""
    recipe = load_recipe("frappe/afm-squared", ["training.batch_size=8", "training.epochs=1"])
    assert recipe.schema.label.range == (-1.0, 1.0)
    prepared = prepare_recipe(recipe, Path(), frappe_like())
    assert set(prepared.train.main.tolist()) == {-1.0, 1.0}
    run = train_recipe(recipe, prepared)
    network, objective = run.bundle.network, Objective.of(recipe.schema.label)
    with torch.no_grad():  # scores of each user alone, half of them far outside the range
        for parameter in network.parameters():
            parameter.zero_()
        users = prepared.encoder.fitted[0].values
        for user, score in zip(users, (0.5, -0.25, 3.0, -4.0), strict=True):
            network.first_order.embedding.weight[2 + users.index(user)] = score
    table = prepared.test.table
    batch, y = table.batch(slice(0, len(table)))
    # Each user has one target of 1 and one of -1. Of a score s they cost (s - 1)^2 and (s + 1)^2: 2
    # s^2 + 2 in all.
    expected = sum(2 * s**2 + 2 for s in (0.5, -0.25, 3.0, -4.0)) / 8
    assert objective.loss(network(batch), y).item() == pytest.approx(expected, rel=1e-6)
    clipped = sum(2 * s**2 + 2 for s in (0.5, -0.25, 1.0, -1.0)) / 8
    result = evaluate(network, table, objective, loss=True)
    assert result["rmse"] == pytest.approx(clipped**0.5, rel=1e-6)
    assert result["loss"] == pytest.approx(expected, rel=1e-6)
    scores = run.bundle.score(prepared.test.frame)
    assert sorted(set(scores.tolist())) == [-4.0, -0.25, 0.5, 3.0]
    np.testing.assert_array_equal(run.bundle.predict(prepared.test.frame), scores.clip(-1, 1))


def two_labels(seed: int = 0) -> pl.DataFrame:
    """The simulated log with a purchase that the film decides, and minutes that the user decides."""
    frame, rng = simulate(3000, users=60, items=40), np.random.default_rng(seed)
    item = frame["item_id"].str.slice(1).cast(pl.Int64).to_numpy()
    user = frame["user_id"].str.slice(1).cast(pl.Int64).to_numpy()
    return frame.with_columns(
        bought=(item % 3 == 0).astype(np.int8), minutes=user % 7 / 6 + rng.random(3000)
    )


def test_several_labels_from_recipe_to_bundle(tmp_path):
    recipe = load_recipe(
        "simulated/afm", [*SMALL, BOUGHT, "training.learning_rate=0.02", "training.monitor=loss"]
    )
    prepared = prepare_recipe(recipe, Path(), two_labels())
    run = train_recipe(recipe, prepared)
    run.bundle.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    frame, y = prepared.test.frame, prepared.test.y
    score, p = loaded.score(frame), loaded.predict(frame)
    np.testing.assert_array_equal(score, run.bundle.score(frame))
    assert run.test["auc"] == pytest.approx(roc_auc_score(y[:, 0], score[:, 0]), abs=1e-6)
    assert run.test["bought.auc"] == pytest.approx(roc_auc_score(y[:, 1], score[:, 1]), abs=1e-6)
    assert run.test["minutes.rmse"] == pytest.approx(
        float(np.sqrt(np.mean((p[:, 2] - y[:, 2]) ** 2))), rel=1e-5
    )
    assert run.test["bought.auc"] > 0.9
    loss = (
        run.test["logloss"]
        + 0.5 * run.test["bought.logloss"]
        + float(np.mean((score[:, 2] - y[:, 2]) ** 2))
    )
    assert run.test["loss"] == pytest.approx(loss, rel=1e-5)
    assert run.history.monitor == "loss"
    assert "loss" in run.valid
    assert run.best_possible is not None
    reference = frame.get_column("true_probability").to_numpy()
    assert run.best_possible["auc"] == pytest.approx(roc_auc_score(y[:, 0], reference))
    record = run.record()
    assert {"auc", "bought.auc", "minutes.rmse"} <= record["test"].keys() & record["valid"].keys()
    assert loaded.about.run["test"] == pytest.approx(dict(run.test))
