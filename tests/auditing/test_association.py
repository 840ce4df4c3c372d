"""Separations against scikit-learn and SciPy, and the family-wise rate on noise."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from fieldwise.auditing.association import (
    FOLDS,
    PRIOR_ROWS,
    Reading,
    Scorer,
    Target,
    false_discovery_rates,
    permuted_within,
    random_folds,
    separations,
)

RNG = np.random.default_rng(1)
ROWS = 300
Y = RNG.integers(0, 2, ROWS).astype(float)


def test_an_ordered_reading_has_the_auc_of_scikit_learn():
    codes = (Y * 2 + RNG.integers(0, 5, ROWS)).astype(np.int64)
    scorer = Scorer(Reading("x", "order", codes, True), random_folds(ROWS, 0))
    target = Target(Y, binary=True)
    assert scorer.separation(target.values, target) == pytest.approx(roc_auc_score(Y, codes))
    # the other way round it separates as well
    turned = Scorer(Reading("x", "order", -codes + codes.max(), True), random_folds(ROWS, 0))
    assert turned.separation(target.values, target) == pytest.approx(roc_auc_score(Y, codes))


def test_a_category_has_the_auc_of_its_encoding_out_of_fold():
    codes = RNG.integers(0, 40, ROWS)
    folds = random_folds(ROWS, 3)
    target = Target(Y, binary=True)
    scorer = Scorer(Reading("x", "value", codes, False), folds)
    expected = np.empty(ROWS)
    for row in range(ROWS):
        others = (codes == codes[row]) & (folds != folds[row])
        expected[row] = (Y[others].sum() + PRIOR_ROWS * Y.mean()) / (others.sum() + PRIOR_ROWS)
    auc = roc_auc_score(Y, expected.round(12))
    assert scorer.separation(target.values, target) == pytest.approx(auc)
    assert roc_auc_score(Y, scorer.scores(target.values, target)) == pytest.approx(auc)
    assert len(set(folds.tolist())) == FOLDS


def test_of_numbers_it_is_half_of_spearman():
    y = RNG.normal(size=ROWS)
    codes = np.argsort(np.argsort(y + RNG.normal(size=ROWS)))
    target = Target(y, binary=False)
    scorer = Scorer(Reading("x", "order", codes, True), random_folds(ROWS, 0))
    expected = 0.5 + spearmanr(codes, y).statistic / 2
    value = scorer.separation(target.values, target)
    assert value == pytest.approx(expected)
    interval = target.interval(value)
    assert interval.low < value < interval.high < 1


def test_a_permutation_keeps_each_stratum():
    strata = RNG.integers(0, 30, ROWS)
    permuted = permuted_within(Y, strata, RNG)
    for stratum in range(30):
        inside = strata == stratum
        assert sorted(permuted[inside]) == sorted(Y[inside])
    assert (permuted != Y).any()


def test_false_discovery_rates_are_those_of_scipy():
    from scipy.stats import false_discovery_control

    p = RNG.random(20) ** 3
    assert false_discovery_rates(p) == pytest.approx(false_discovery_control(p))


def test_what_follows_from_strata_is_no_excess():
    """The rate of a stratum predicts the label, and says nothing within it."""
    strata = np.repeat(np.arange(20), ROWS // 20)
    y = (RNG.random(ROWS) < (strata % 2) * 0.6 + 0.2).astype(float)
    scorer = Scorer(Reading("x", "value", strata % 2, False), random_folds(ROWS, 0))
    target = Target(y, binary=True)
    free = separations([scorer], target, permutations=99, seed=0, strata=None)
    within = separations([scorer], target, permutations=99, seed=0, strata=strata)
    assert free.values[0] > 0.7
    assert free.p_family[0] == pytest.approx(0.01)
    assert within.p_family[0] > 0.05


@pytest.mark.slow
def test_the_family_wise_rate_on_noise_is_at_most_what_is_stated():
    """In at most 5 % of tables of 30 columns of noise does any p-value lie below .05, but for chance (3 sigma)."""
    below = 0
    for table in range(200):
        rng = np.random.default_rng(table)
        folds = random_folds(200, table)
        scorers = []
        for column in range(30):
            codes = rng.integers(0, [3, 20, 150][column % 3], 200)
            scorers.append(Scorer(Reading("x", "value", codes, column % 2 == 0), folds))
        target = Target(rng.integers(0, 2, 200), binary=True)
        result = separations(scorers, target, permutations=39, seed=table, strata=None)
        below += bool((result.p_family <= 0.05).any())
    assert below <= 200 * 0.05 + 3 * (200 * 0.05 * 0.95) ** 0.5
