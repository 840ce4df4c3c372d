"""Weighted metrics against scikit-learn's, and against rows that stand there so many times."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn import metrics

from fieldwise import DataError
from fieldwise.evaluation import (
    auc,
    binary_metrics,
    group_auc,
    logloss_from_logits,
    mae,
    normalized_entropy_from_logits,
    regression_metrics,
    rmse,
    sigmoid,
)
from fieldwise.evaluation.bootstrap import resampled
from fieldwise.evaluation.calibration import calibration_error, reliability
from fieldwise.evaluation.metrics import METRICS, scored_rows
from fieldwise.evaluation.slices import Slice, binary_slices, share_interval

RNG = np.random.default_rng(0)
ROWS = 400
Y = RNG.integers(0, 2, ROWS)
Z = np.round(RNG.normal(Y, 1.5), 1)  # with ties
P = sigmoid(Z)
GROUP = RNG.integers(0, 30, ROWS)
WEIGHT = RNG.gamma(1.0, size=ROWS)
COUNT = RNG.integers(0, 4, ROWS)


def test_as_scikit_learn(subtests):
    result = binary_metrics(Y, Z, weight=WEIGHT)
    for ours, theirs in [
        (auc(Y, Z, weight=WEIGHT), metrics.roc_auc_score(Y, Z, sample_weight=WEIGHT)),
        (logloss_from_logits(Y, Z, weight=WEIGHT), metrics.log_loss(Y, P, sample_weight=WEIGHT)),
        (result["accuracy"], metrics.accuracy_score(Y, P >= 0.5, sample_weight=WEIGHT)),
        (result["precision"], metrics.precision_score(Y, P >= 0.5, sample_weight=WEIGHT)),
        (result["recall"], metrics.recall_score(Y, P >= 0.5, sample_weight=WEIGHT)),
        (result["f1"], metrics.f1_score(Y, P >= 0.5, sample_weight=WEIGHT)),
        (rmse(Y, Z, weight=WEIGHT), metrics.root_mean_squared_error(Y, Z, sample_weight=WEIGHT)),
        (mae(Y, Z, weight=WEIGHT), metrics.mean_absolute_error(Y, Z, sample_weight=WEIGHT)),
    ]:
        with subtests.test(ours=ours, theirs=theirs):
            assert ours == pytest.approx(theirs, rel=1e-12)


OURS: dict[str, Callable[..., float]] = {
    "auc": lambda y, z, _, **w: auc(y, z, **w),
    "gauc": lambda y, z, g, **w: group_auc(y, z, g, **w).value,
    "half": lambda y, z, g, **w: group_auc(y, z, g, one_class="half", **w).value,
    "entropy of logits": lambda y, z, _, **w: normalized_entropy_from_logits(y, z, **w),
    "ece": lambda y, z, _, **w: calibration_error(y, sigmoid(z), **w),
    "ece by width": lambda y, z, _, **w: calibration_error(y, sigmoid(z), binning="width", **w),
}


def test_a_weight_of_n_is_n_equal_rows(subtests):
    for name in OURS:
        with subtests.test(name=name):
            there = COUNT > 0
            often = np.repeat(np.arange(ROWS), COUNT)
            repeated = OURS[name](Y[often], Z[often], GROUP[often])
            weighted = OURS[name](Y[there], Z[there], GROUP[there], weight=COUNT[there])
            assert weighted == pytest.approx(repeated, rel=1e-12)
            assert OURS[name](Y, Z, GROUP, weight=np.full(ROWS, 0.3)) == pytest.approx(
                OURS[name](Y, Z, GROUP), rel=1e-12
            )


def test_all_metrics_at_once_leave_out_rows_of_no_weight() -> None:
    often = np.repeat(np.arange(ROWS), COUNT)
    expected = binary_metrics(Y[often], Z[often], group=GROUP[often])
    result = binary_metrics(Y, Z, group=GROUP, weight=COUNT)
    same = expected.keys() - {"rows", "gauc_skipped_rows"}
    assert {k: result[k] for k in same} == pytest.approx({k: expected[k] for k in same}, rel=1e-12)
    assert result["rows"] == (COUNT > 0).sum()
    numbers = regression_metrics(Y, Z, weight=COUNT)
    assert numbers["rmse"] == pytest.approx(rmse(Y[often], Z[often]))
    assert numbers["rows"] == (COUNT > 0).sum()


def test_wrong_weights_are_a_sentence(subtests):
    for weight, message in [
        ([-1.0] + [1.0] * (ROWS - 1), "weights must not be negative, found -1 in row 0"),
        ([1.0, np.nan] + [1.0] * (ROWS - 2), "weights must be finite, found nan in row 1"),
        ([1.0], r"one number for each of 400 rows, found shape \(1,\)"),
        ([0] * ROWS, "the weights of all 400 rows are zero"),
        (["a"] * ROWS, "weights must be numbers"),
        (Y, "rows of both classes"),
    ]:
        with subtests.test(weight=weight, message=message):
            for measure in (auc, binary_metrics, normalized_entropy_from_logits):
                with pytest.raises(DataError, match=message):
                    measure(Y, Z, weight=weight)


@pytest.mark.parametrize("metric", ["auc", "logloss", "average_precision", "brier", "ece"])
def test_replicates_by_weights_are_the_metrics_of_drawn_rows_with_their_weights(metric) -> None:
    replicates = resampled(Y, Z[None], metric, weight=WEIGHT, replicates=3, seed=4)[:, 0]
    rng = np.random.default_rng(4)
    for replicate in replicates:
        drawn = rng.integers(0, len(Y), len(Y))
        rows = scored_rows(Y[drawn], Z[drawn], "binary", weight=WEIGHT[drawn])
        assert replicate == pytest.approx(METRICS[metric].value(rows), abs=1e-9)


def test_equal_weights_change_no_interval() -> None:
    plain = resampled(Y, Z[None], "auc", replicates=5)
    assert resampled(Y, Z[None], "auc", weight=np.full(len(Y), 2.0), replicates=5) == pytest.approx(
        plain, abs=1e-12
    )
    slices = [Slice("all", np.arange(len(Y)))]
    (by_rows,) = binary_slices(Y, Z, slices)
    (by_weight,) = binary_slices(Y, Z, slices, np.full(len(Y), 3.0))
    for name, interval in by_rows.metrics.items():
        weighted = by_weight.metrics[name]
        assert (weighted.value, weighted.low, weighted.high) == pytest.approx(
            (interval.value, interval.low, interval.high), abs=1e-9
        ), name
    bins = reliability(Y, P)
    same = reliability(Y, P, weight=np.full(len(Y), 3.0))
    assert np.array_equal(bins.rows, same.rows)
    assert same.low == pytest.approx(bins.low, abs=1e-12)


def test_slices_and_bins_are_those_of_scikit_learn_with_weights() -> None:
    (part,) = binary_slices(Y, Z, [Slice("all", np.arange(len(Y)))], WEIGHT)
    expected = metrics.roc_auc_score(Y, Z, sample_weight=WEIGHT)
    assert part.metrics["auc"].value == pytest.approx(expected, abs=1e-12)
    rate = np.average(Y, weights=WEIGHT)
    assert part.metrics["positive_rate"].value == pytest.approx(rate, abs=1e-12)
    bins = reliability(Y, P, bins=1, weight=WEIGHT)
    assert bins.observed[0] == pytest.approx(rate, abs=1e-12)
    assert bins.predicted[0] == pytest.approx(np.average(P, weights=WEIGHT), abs=1e-12)


def test_r2_is_weighted() -> None:
    rows = scored_rows(Y, P, "regression", weight=WEIGHT)
    expected = metrics.r2_score(Y, P, sample_weight=WEIGHT)
    assert METRICS["r2"].of(rows) == pytest.approx(expected, rel=1e-12)


def test_a_share_of_rows_has_an_interval_around_its_weighted_value() -> None:
    share = share_interval(Y == 1, np.where(Y == 1, 0.1, 1.0))
    assert share.value == pytest.approx(0.1 * Y.sum() / (0.1 * Y.sum() + (1 - Y).sum()))
    assert share.low < share.value < share.high
