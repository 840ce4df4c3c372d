"""Parts of a table against NumPy, scikit-learn and theory."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import log_loss, roc_auc_score, root_mean_squared_error

from fieldwise import DataError
from fieldwise.evaluation import delong, sigmoid
from fieldwise.evaluation.slices import (
    Slice,
    binary_slices,
    by_code,
    by_quantile,
    regression_slices,
)

Z = float(norm.ppf(0.975))


def rows(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=n)
    return (rng.random(n) < sigmoid(z)).astype(int), z


def test_every_figure_is_that_of_the_slices_own_rows():
    y, z = rows()
    part = np.arange(500, 900)
    (result,) = binary_slices(y, z, [Slice("part", part)])
    own_y, own_p = y[part], sigmoid(z[part])
    assert result.rows == 400
    expected = {
        "auc": roc_auc_score(own_y, own_p),
        "logloss": log_loss(own_y, own_p),
        "positive_rate": own_y.mean(),
        "mean_prediction": own_p.mean(),
        "off": own_p.mean() - own_y.mean(),
    }
    assert {name: m.value for name, m in result.metrics.items()} == pytest.approx(
        expected, abs=1e-9
    )
    off = own_p - own_y
    reach = Z * off.std(ddof=1) / 20
    assert (result.metrics["off"].low, result.metrics["off"].high) == pytest.approx(
        (off.mean() - reach, off.mean() + reach)
    )


def test_the_interval_of_auc_has_delongs_width_on_the_scale_of_logits():
    y, z = rows()
    metrics = binary_slices(y, z, [Slice("all", np.arange(2000))])[0].metrics["auc"]
    error = delong(y, z, np.zeros(2000)).standard_error  # scores of chance vary with nothing
    logit = np.log(metrics.value / (1 - metrics.value))
    reach = Z * error / (metrics.value * (1 - metrics.value))
    assert metrics.low == pytest.approx(sigmoid(logit - reach), rel=1e-9)
    assert metrics.high == pytest.approx(sigmoid(logit + reach), rel=1e-9)


def test_small_slices_have_no_figures_that_they_are_too_small_for():
    y, z = rows()
    ones, zeros = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    slices = [
        Slice("29", np.arange(29)),
        Slice("30", zeros[:30]),
        Slice("9 of a class", np.r_[ones[:9], zeros[:200]]),
        Slice("10 of a class", np.r_[ones[:10], zeros[:10]]),
        Slice("none", np.zeros(0, np.int64)),
    ]
    results = {one.name: sorted(one.metrics) for one in binary_slices(y, z, slices)}
    assert results["29"] == (
        ["auc", "positive_rate"]
        if min(y[:29].sum(), 29 - y[:29].sum()) >= 10
        else ["positive_rate"]
    )
    assert results["30"] == ["logloss", "mean_prediction", "off", "positive_rate"]
    assert results["9 of a class"] == ["logloss", "mean_prediction", "off", "positive_rate"]
    assert results["10 of a class"] == ["auc", "positive_rate"]
    assert results["none"] == []


def test_an_auc_of_one_is_not_certain():
    y, z = np.arange(40) % 2, np.arange(40) % 2 - 0.5
    result = binary_slices(y, z, [Slice("all", np.arange(40))])[0].metrics["auc"]
    assert (result.value, result.low, result.high) == (1.0, pytest.approx(0.85), 1.0)
    result = binary_slices(1 - y, z, [Slice("all", np.arange(40))])[0].metrics["auc"]
    assert (result.value, result.low, result.high) == (0.0, 0.0, pytest.approx(0.15))
    # the rule of three goes by the smaller class
    for y in (np.repeat([0, 1], [30, 10]), np.repeat([0, 1], [10, 30])):
        result = binary_slices(y, y - 0.5, [Slice("all", np.arange(40))])[0].metrics["auc"]
        assert (result.value, result.low, result.high) == (1.0, pytest.approx(0.7), 1.0)


def test_figures_of_a_number():
    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, 300)
    predicted = y + rng.normal(0.5, 1, 300)
    part, few = np.arange(100), np.arange(29)
    result, small = regression_slices(y, predicted, [Slice("part", part), Slice("few", few)])
    assert small.metrics == {}
    assert result.metrics["rmse"].value == pytest.approx(
        root_mean_squared_error(y[:100], predicted[:100])
    )
    assert result.metrics["mae"].value == pytest.approx(np.abs(predicted - y)[:100].mean())
    assert result.metrics["off"].value == pytest.approx((predicted - y)[:100].mean())
    assert result.metrics["rmse"].low < result.metrics["rmse"].value < result.metrics["rmse"].high


def test_values_by_their_rows_and_the_others_together():
    codes = np.array([0] * 3 + [1] * 5 + [2] * 5 + [3] * 1 + [4] * 1 + [5] * 2)
    result = by_code(codes, ["c", "b", "a", "d", "e"], most=2)
    assert [(one.name, len(one.rows)) for one in result] == [
        ("a", 5),
        ("b", 5),
        ("3 others", 5),
        ("(absent)", 2),
    ]
    assert sorted(np.concatenate([one.rows for one in result])) == list(range(17))
    assert [one.name for one in by_code([0, 1, 2], ["a", "b", "c"], most=2)] == ["a", "b", "c"], (
        "one other is itself"
    )


def test_bins_never_part_equal_numbers():
    numbers = np.array([1.0] * 50 + [2.0] * 10 + [3.0] * 40)
    result = by_quantile(numbers, bins=5)
    assert sorted(np.concatenate([one.rows for one in result])) == list(range(100))
    assert [one.name for one in result] == ["1", "2", "3"]
    even = by_quantile(np.random.default_rng(0).permutation(100), bins=5)
    assert [len(one.rows) for one in even] == [20] * 5
    assert [one.name for one in even][:2] == ["0 to 19", "20 to 39"]
    assert by_quantile([np.nan, np.nan])[0].name == "(absent)"


def test_what_is_no_metrics_input_is_refused():
    with pytest.raises(DataError, match="must be 0 or 1"):
        binary_slices([0, 2], [0.0, 1.0], [])
    with pytest.raises(DataError, match="found 1 for 2 labels"):
        regression_slices([0.0, 1.0], [0.0], [])
