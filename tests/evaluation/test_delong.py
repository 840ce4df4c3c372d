"""DeLong's test against its definition, and against what other draws of the rows do."""

import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fieldwise import DataError
from fieldwise.evaluation import delong
from fieldwise.evaluation.ranking import auc_parts


def log(rows=400, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    good, bad = (y * gain + rng.normal(size=rows) for gain in (1.0, 0.6))
    return (y, good.round(1), bad.round(1)) if ties else (y, good, bad)


def by_definition(y, first, second):
    """Every pair of a positive and a negative, as the paper's formulas have it."""

    def psi(score):
        high, low = score[y == 1], score[y == 0]
        return (high[:, None] > low).astype(float) + 0.5 * (high[:, None] == low)

    a, b = psi(first), psi(second)
    tens, ones = np.stack([a.mean(1), b.mean(1)]), np.stack([a.mean(0), b.mean(0)])
    covariance = np.cov(tens) / tens.shape[1] + np.cov(ones) / ones.shape[1]
    error = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    return a.mean() - b.mean(), error


@pytest.mark.parametrize("ties", [True, False])
def test_it_is_the_papers_formula(ties):
    y, first, second = log(ties=ties)
    result = delong(y, first, second)
    difference, error = by_definition(y, first, second)
    assert result.first == pytest.approx(roc_auc_score(y, first), abs=1e-12)
    assert result.second == pytest.approx(roc_auc_score(y, second), abs=1e-12)
    assert result.difference == pytest.approx(difference, abs=1e-12)
    assert result.standard_error == pytest.approx(error, rel=1e-10)
    assert result.p == pytest.approx(2 * norm.sf(abs(difference) / error), rel=1e-9)


def test_several_seeds_are_their_mean():
    y, first, second = log()
    both = delong(y, np.stack([first, second]), second)
    parts = [np.mean([auc_parts(y, s)[k] for s in (first, second)], axis=0) for k in range(2)]
    assert both.first == pytest.approx(parts[0].mean(), abs=1e-12)
    assert both.difference == pytest.approx(delong(y, first, second).difference / 2, abs=1e-12)
    assert both.standard_error == pytest.approx(
        delong(y, first, second).standard_error / 2, rel=1e-10
    )


def test_scores_that_order_alike_do_not_differ():
    y, first, _ = log()
    assert delong(y, first, 3 * first + 1).p == 1.0


def test_what_cannot_be_tested_is_refused(subtests):
    for y, score, sentence in [
        ([1, 0, 0], [1, 2, 3], "two rows of each class, found 1 positive and 2 negative"),
        ([1, 1, 0, 0], [1, 2, 3, math.nan], "finite"),
        ([1, 1, 0, 0], [1, 2, 3], "as many as the labels"),
        ([1, 1, 0, 2], [1, 2, 3, 4], "0 or 1"),
    ]:
        with (
            subtests.test(y=y, score=score, sentence=sentence),
            pytest.raises(DataError, match=sentence),
        ):
            delong(y, score, score)
