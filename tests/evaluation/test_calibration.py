"""Calibration maps against scipy and scikit-learn, reliability against bins by hand."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binomtest, rankdata
from sklearn.calibration import calibration_curve
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import log_loss

from fieldwise import DataError
from fieldwise.evaluation import logloss_from_logits, sigmoid
from fieldwise.evaluation.calibration import (
    METHODS,
    Isotonic,
    Platt,
    calibration_error,
    fit_isotonic,
    fit_platt,
    reliability,
    wilson,
)


def rows(n=4000, slope=0.4, intercept=-1.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=n)
    return (rng.random(n) < sigmoid(slope * z + intercept)).astype(int), z


def targets(y):
    ones = y.sum()
    return np.where(y == 1, (ones + 1) / (ones + 2), 1 / (len(y) - ones + 2))


@pytest.mark.parametrize(
    ("n", "slope", "intercept"), [(4000, 0.4, -1.0), (60, 2.0, 3.0), (5000, 1.0, -5.0)]
)
def test_platt_is_where_the_likelihood_of_its_targets_is_highest(n, slope, intercept):
    y, z = rows(n, slope, intercept, seed=1)
    t = targets(y)
    free = minimize(
        lambda w: np.sum(np.logaddexp(0, w[0] * z + w[1]) - t * (w[0] * z + w[1])),
        [1, 0],
        tol=1e-12,
    )
    result = fit_platt(y, z)
    assert (result.slope, result.intercept) == pytest.approx(tuple(free.x), rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_platt_does_not_depend_on_the_unit_of_scores(scale):
    y, z = rows(500)
    one, other = fit_platt(y, z), fit_platt(y, z * scale + 3 * scale)
    np.testing.assert_allclose(
        other.logit(z * scale + 3 * scale), one.logit(z), rtol=1e-5, atol=1e-6
    )


def test_scores_that_part_the_classes_give_a_finite_line():
    result = fit_platt([0, 0, 0, 1, 1], [-3.0, -2.0, -1.0, 1.0, 2.0])
    p = sigmoid(result.logit([-3.0, 2.0]))
    assert 0.05 < p[0] < 0.35  # Platt's target of three negatives is .2
    assert 0.65 < p[1] < 0.95  # of two positives .75


def test_isotonic_is_scikit_learns_on_platts_targets():
    y, z = rows(3000)
    z = z.round(1)  # ties
    plain = IsotonicRegression(out_of_bounds="clip").fit(z, targets(y))
    probe = np.linspace(-12, 12, 999)
    result = fit_isotonic(y, z)
    np.testing.assert_allclose(sigmoid(result.logit(probe)), plain.predict(probe), atol=1e-12)
    assert (np.diff(result.logit(np.sort(probe))) >= 0).all()
    assert 0 < result.probability[0] < result.probability[-1] < 1


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_calibrating_repairs_what_is_known_to_be_wrong(method):
    y, z = rows(20_000, seed=2)
    new_y, new_z = rows(20_000, seed=3)
    after = METHODS[method](y, z).logit(new_z)
    best = logloss_from_logits(new_y, 0.4 * new_z - 1)
    assert logloss_from_logits(new_y, new_z) > best + 0.1
    assert logloss_from_logits(new_y, after) == pytest.approx(best, abs=0.002)
    assert calibration_error(new_y, sigmoid(new_z)) > 0.15
    assert calibration_error(new_y, sigmoid(after)) < 0.02
    assert sigmoid(after).mean() == pytest.approx(new_y.mean(), abs=0.015)


def test_what_no_calibration_can_be_fitted_to():
    for fit in (fit_platt, fit_isotonic):
        with pytest.raises(DataError, match="both classes, but all 3 rows have label 1"):
            fit([1, 1, 1], [0.0, 1.0, 2.0])
        with pytest.raises(DataError, match=r"scores that differ, but all 3 rows have 0\.5"):
            fit([0, 1, 1], [0.5, 0.5, 0.5])
        with pytest.raises(DataError, match="logits must be finite"):
            fit([0, 1], [0.0, np.nan])
    with pytest.raises(DataError, match="increase with the label, found a slope of -"):
        fit_platt([1, 1, 0, 0], [0.0, 1.0, 2.0, 3.0])
    assert set(fit_isotonic([1, 1, 0, 0], [0.0, 1.0, 2.0, 3.0]).probability) == {0.5}


def test_maps_that_are_no_calibration():
    for slope, intercept in ((0.0, 1.0), (-1.0, 0.0), (np.nan, 0.0), (1.0, np.inf)):
        with pytest.raises(DataError, match="slope above 0"):
            Platt(slope=slope, intercept=intercept)
    for at, p in (
        ((), ()),
        ((0.0,), (0.0,)),
        ((0.0, 0.0), (0.1, 0.2)),
        ((0.0, 1.0), (0.5, 0.4)),
        ((0.0,), (0.1, 0.2)),
    ):
        with pytest.raises(DataError, match="increasing logits"):
            Isotonic(at=at, probability=p)


@pytest.mark.parametrize(("binning", "strategy"), [("width", "uniform"), ("count", "quantile")])
def test_bins_are_scikit_learns(binning, strategy):
    y, z = rows(3001)
    p = sigmoid(z)
    observed, predicted = calibration_curve(y, p, n_bins=10, strategy=strategy)
    result = reliability(y, p, bins=10, binning=binning)
    assert result.rows.sum() == 3001
    if binning == "width":
        np.testing.assert_allclose(result.observed, observed)
        np.testing.assert_allclose(result.predicted, predicted)
    else:  # cuts between the same rows, give or take one
        assert result.rows.max() - result.rows.min() <= 1
        np.testing.assert_allclose(result.observed, observed, atol=0.01)


def test_equal_probabilities_share_a_bin():
    result = reliability([0, 1, 0, 1, 1, 1], [0.2, 0.2, 0.2, 0.2, 0.2, 0.9], bins=3)
    assert result.rows.tolist() == [5, 1]
    assert result.observed.tolist() == [0.6, 1.0]
    assert reliability([0, 1], [0.5, 0.5]).rows.tolist() == [2]
    assert reliability([1, 1], [1.0, 1.0], binning="width").observed.tolist() == [1.0]


def test_the_expected_calibration_error_is_that_of_ranks(subtests):
    """The definition, bin by bin, with scipy's mean ranks as the place of equal probabilities."""
    for bins in [1, 7, 15]:
        for decimals in [1, 2, 12]:
            with subtests.test(bins=bins, decimals=decimals):
                y, z = rows(701)
                p = sigmoid(z).round(decimals)
                place = np.floor((rankdata(p) - 0.5) / len(p) * bins)
                gaps = [abs(p[place == b].sum() - y[place == b].sum()) for b in range(bins)]
                assert calibration_error(y, p, bins=bins) == pytest.approx(
                    sum(gaps) / len(p), rel=1e-12
                )


def test_the_interval_of_a_share_is_scipys():
    for k, n in ((0, 7), (7, 7), (3, 10), (500, 1000)):
        expected = binomtest(k, n).proportion_ci(method="wilson")
        low, high = wilson(k, n)
        assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_logloss_of_an_isotonic_map_stays_finite():
    y, z = rows(200)
    result = fit_isotonic(y, z)
    assert np.isfinite(result.logit([-1e9, 1e9])).all()
    assert log_loss([1, 0], sigmoid(result.logit([-1e9, 1e9]))) < 8
