"""Replicates against the metrics of the resampled rows, and intervals against theory."""

import numpy as np
import pytest
from scipy.stats import t as student
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    mean_absolute_error,
    roc_auc_score,
    root_mean_squared_error,
)

from fieldwise import DataError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.bootstrap import estimate, resampled, resampled_groups
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.evaluation.ranking import mixed_group_values, values_by_group


def log(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    return y, np.stack([(y * gain + rng.normal(size=rows)).round(1) for gain in (1.0, 0.6)])


MEASURES = {
    "auc": roc_auc_score,
    "logloss": lambda y, z: log_loss(y, sigmoid(z), labels=[0, 1]),
    "average_precision": average_precision_score,
    "brier": lambda y, z: brier_score_loss(y, sigmoid(z)),
    "ece": lambda y, z: calibration_error(y, sigmoid(z)),
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
}


def test_a_replicate_is_the_metric_of_rows_sampled_with_replacement(subtests):
    for metric in MEASURES:
        with subtests.test(metric=metric):
            y, scores = log()
            result = resampled(y, scores, metric, replicates=5, seed=7)
            # the documented draw: N of N rows, once a replicate for all scores
            rng = np.random.default_rng(7)
            for r in range(5):
                rows = rng.integers(0, len(y), len(y))
                expected = [MEASURES[metric](y[rows], score[rows]) for score in scores]
                np.testing.assert_allclose(result[r], expected, rtol=1e-12)


def test_groups_are_sampled_whole():
    y, scores = log(400)
    group = np.arange(400) // 10
    values, rows = mixed_group_values(y, scores[0], group)
    result = resampled_groups(values, rows, replicates=3, seed=5)
    mixed = [g for g in range(40) if 0 < y[group == g].sum() < 10]
    values = np.array([roc_auc_score(y[group == g], scores[0][group == g]) for g in mixed])
    rng = np.random.default_rng(5)
    for value in result:
        assert value == pytest.approx(values[rng.integers(0, len(mixed), len(mixed))].mean())
    with pytest.raises(DataError, match="both classes, found none"):
        mixed_group_values([0, 0], [1.0, 2.0], ["a", "b"])


def test_replicates_of_group_auc_are_sums_in_the_order_of_the_draw():
    """Bits count: the figures of stored reports repeat."""
    y, scores = log(500)
    group = np.random.default_rng(1).integers(0, 40, 500)
    _, rows, positives, _, values = values_by_group(y, scores[0], group)
    mixed = (positives > 0) & (positives < rows)
    values, rows = values[mixed], rows[mixed]
    rng, expected = np.random.default_rng(3), []
    for _ in range(200):
        one = rng.integers(0, len(values), len(values))
        expected.append(float((values[one] * rows[one]).sum() / rows[one].sum()))
    drawn = resampled_groups(*mixed_group_values(y, scores[0], group), replicates=200, seed=3)
    assert drawn.tolist() == expected


def test_intervals_hold_the_true_value_as_often_as_they_say():
    """Mean squared error of unit noise is 1: of 95 % intervals some 95 % hold it."""
    held = 0
    for seed in range(200):
        y = np.random.default_rng([seed, 5]).normal(size=300)
        drawn = resampled(y, np.zeros((1, 300)), "rmse", replicates=200, seed=seed)[:, 0]
        result = estimate([np.sqrt(np.mean(y**2))], drawn)
        held += result.low <= 1.0 <= result.high
    assert 0.88 < held / 200 < 0.99


def test_equal_models_differ_significantly_no_more_often_than_by_chance(subtests):
    """Differences of two equal models: one part by the rows, shared by all seeds, another by each seed."""
    for seeds, seed_deviation in [(1, 0.0), (2, 0.0), (3, 1.0), (3, 4.0), (5, 2.0)]:
        with subtests.test(seeds=seeds, seed_deviation=seed_deviation):
            rng = np.random.default_rng(11)
            p = []
            for _ in range(1000):
                by_seed = rng.normal() + seed_deviation * rng.normal(size=seeds)
                # of variance 1
                p.append(estimate(by_seed, by_seed.mean() + np.array([-1.0, 1.0]) / np.sqrt(2)).p)
            assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09


def test_a_mean_over_seeds_adds_both_variances():
    result = estimate([1.0, 2.0, 4.0], [0.0, 1.0, 2.0, 3.0])
    rows, of_seeds = np.var([0, 1, 2, 3], ddof=1), np.var([1, 2, 4], ddof=1) / 3
    freedom = (rows + of_seeds) ** 2 / (of_seeds**2 / 2)
    assert result.value == pytest.approx(7 / 3)
    assert result.standard_error == pytest.approx(np.sqrt(rows + of_seeds))
    assert result.high - result.value == pytest.approx(
        student.ppf(0.975, freedom) * result.standard_error
    )
    assert result.p == pytest.approx(2 * student.sf(result.value / result.standard_error, freedom))


def test_an_interval_ends_where_values_do():
    assert estimate([0.1], [0.0, 0.2]).low < 0
    assert estimate([0.1], [0.0, 0.2], least=0.0).low == 0
    assert estimate([0.9], [0.7, 1.1], most=1.0).high == 1


def test_values_without_variance_are_certain():
    assert estimate([0.0, 0.0], [0.0, 0.0]).p == 1.0
    assert estimate([1.0, 1.0], [1.0, 1.0]).p == 0.0


def test_both_classes_are_in_every_draw_of_auc():
    y = np.zeros(12, dtype=int)
    y[0] = 1
    assert np.isfinite(resampled(y, np.arange(12.0)[None], "auc", replicates=50)).all()


def test_what_cannot_be_measured_is_refused(subtests):
    for y, scores, sentence in [
        ([1, 1], [[1.0, 2.0]], "both classes"),
        ([1, 0], [[1.0, np.inf]], "finite"),
        ([1, 0], [[1.0, 2.0, 3.0]], "found 3 for 2 labels"),
    ]:
        with (
            subtests.test(y=y, scores=scores, sentence=sentence),
            pytest.raises(DataError, match=sentence),
        ):
            resampled(y, scores, "auc", replicates=1)
