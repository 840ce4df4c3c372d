"""`auto` beside tuned trees: the search finds a planted effect and keeps its time; the differences."""

import itertools
import json

import numpy as np
import pytest
from benchmarks import auto_beside_trees as command
from scipy.stats import ttest_rel
from sklearn.metrics import log_loss, roc_auc_score

from fieldwise.evaluation import sigmoid


@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_a_search_keeps_its_time_and_scores_the_test_rows(tmp_path, monkeypatch, library):
    pytest.importorskip(library, reason=f"pip install 'fieldwise[{library}]'")
    rng = np.random.default_rng(0)
    logit = {}
    arrays = {}
    for part, rows in (("train", 2_000), ("valid", 500), ("test", 2_000)):
        category = rng.integers(0, 5, rows)
        number = rng.normal(size=rows)
        logit[part] = 3.0 * (category % 2) * np.sign(number)
        arrays[f"{part}_x"] = np.column_stack([number, category]).astype(np.float64)
        arrays[f"{part}_y"] = (rng.random(rows) < sigmoid(logit[part])).astype(np.float64)
    np.savez(tmp_path / "columns.npz", categories=np.array([1]), **arrays)
    ticks = itertools.count()  # a tick for each tree
    monkeypatch.setattr(command.time, "monotonic", lambda: float(next(ticks)))
    command.tune(library, tmp_path, 1500.0)
    assert 700 < next(ticks) < 1600
    best = roc_auc_score(arrays["test_y"], logit["test"])
    auc = roc_auc_score(arrays["test_y"], np.load(tmp_path / f"{library}.npy"))
    assert best - 0.03 < auc < best + 0.01
    assert json.loads((tmp_path / f"{library}.json").read_text())["trials"] > 1


def test_differences_are_paired_and_their_intervals_are_those_of_the_mean():
    rng = np.random.default_rng(0)
    y = (rng.random(3_000) < 0.3).astype(float)
    better = 2 * y + rng.normal(size=3_000)
    scores = {"auto": better, "lightgbm": better, "catboost": rng.normal(size=3_000)}
    found = command.figures(y, scores)
    assert found["lightgbm"]["auc_gain"][0] == found["lightgbm"]["logloss_gain"][0] == 0.0
    other = found["catboost"]
    auc, half = other["auc_gain"]
    assert auc == pytest.approx(roc_auc_score(y, better) - roc_auc_score(y, scores["catboost"]))
    assert 0 < half < auc
    loss = log_loss(y, sigmoid(better)) - log_loss(y, sigmoid(scores["catboost"]))
    assert other["logloss_gain"][0] == pytest.approx(loss)
    losses = [np.log1p(np.exp(-(2 * y - 1) * score)) for score in (better, scores["catboost"])]
    low, high = ttest_rel(*losses).confidence_interval()
    assert other["logloss_gain"][1] == pytest.approx((high - low) / 2, rel=1e-3)
    found |= {"rows": 9, "minutes": 3, "cpu_seconds": {"auto": 1.0}}
    assert (
        command.line("t", found).count("**") == 4
    )  # better than CatBoost by both, not than itself
