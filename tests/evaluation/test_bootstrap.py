"""Replicates against the metrics themselves on rows that are drawn, and intervals against theory."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

from fieldwise.errors import DataError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.bootstrap import bootstrap, resampled, spread
from fieldwise.evaluation.delong import delong


def log(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    return y, np.stack([(y * gain + rng.normal(size=rows)).round(1) for gain in (1.0, 0.6)])


MEASURES = {
    "auc": roc_auc_score,
    "logloss": lambda y, z: log_loss(y, sigmoid(z), labels=[0, 1]),
    "rmse": root_mean_squared_error,
}


@pytest.mark.parametrize("metric", MEASURES)
def test_a_replicate_is_the_metric_of_rows_drawn_with_replacement(metric):
    y, scores = log()
    found = resampled(y, scores, metric, replicates=5, seed=7)
    rng = np.random.default_rng(7)  # the documented draw: N of N rows, once a replicate for all scores
    for r in range(5):
        rows = rng.integers(0, len(y), len(y))
        expected = [MEASURES[metric](y[rows], score[rows]) for score in scores]
        np.testing.assert_allclose(found[r], expected, rtol=1e-12)


def test_the_spread_of_paired_differences_is_delongs():
    y, scores = log(2000)
    found = resampled(y, scores, "auc", replicates=600)
    assert np.std(found[:, 0] - found[:, 1]) == pytest.approx(delong(y, *scores).standard_error, rel=0.1)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Mean squared error of unit noise is 1: of 95 % intervals some 95 % hold it."""
    held = 0
    for seed in range(200):
        y = np.random.default_rng([seed, 5]).normal(size=300)
        drawn = resampled(y, np.zeros((1, 300)), "rmse", replicates=200, seed=seed)[:, 0]
        found = spread(float(np.sqrt(np.mean(y**2))), drawn)
        held += found.low <= 1.0 <= found.high
    assert 0.88 < held / 200 < 0.99


def test_seeds_are_drawn_as_well_and_together():
    """Two models whose seeds differ by luck, the same luck in both: each mean is unsure, their difference is not."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    luck = np.array([0.0, 1.0, 2.0])[:, None]
    scores = np.stack([y + luck + 0.5, y + luck])  # rmse of seed s: s + 0.5 and s
    found = bootstrap(y, scores, "rmse", replicates=400)
    np.testing.assert_allclose(found[:, 0] - found[:, 1], 0.5, atol=1e-9)
    assert found[:, 1].std() == pytest.approx(np.std([0, 1, 2]) / np.sqrt(3), rel=0.15)
    assert set(np.round(found[:, 1] * 3)) <= set(range(7))


def test_both_classes_are_in_every_draw_of_auc():
    y = np.zeros(12, dtype=int)
    y[0] = 1
    assert np.isfinite(resampled(y, np.arange(12.0)[None], "auc", replicates=50)).all()


def test_the_same_seed_gives_the_same_and_another_does_not():
    y, scores = log()
    first, again, other = (resampled(y, scores, "auc", replicates=3, seed=s) for s in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("y", "scores", "sentence"),
    [
        ([1, 1], [[1.0, 2.0]], "both classes"),
        ([1, 0], [[1.0, np.inf]], "finite"),
        ([1, 0], [[1.0, 2.0, 3.0]], "found 3 for 2 labels"),
    ],
)
def test_what_cannot_be_measured_is_refused(y, scores, sentence):
    with pytest.raises(DataError, match=sentence):
        resampled(y, scores, "auc", replicates=1)
