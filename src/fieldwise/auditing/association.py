"""How well readings of columns predict a target out of fold, and how well they would by chance.

A reading gives each row an integer: the rank of its number, or the number of its category. The
score of a category is the mean target of its rows in the other folds, shrunk to the overall mean.
The separation is the AUC of a target of two classes; of numbers it is .5 + rho / 2, where rho is
Spearman's correlation; both are linear in the target once the scores are ranked. By chance: the
target is permuted, within strata where there are some, and categories are encoded again inside each
permutation. Westfall and Young, Resampling-Based Multiple Testing, 1993 (maximum over columns);
Benjamini and Hochberg, JRSS B 57(1), 1995.

Letters: N rows, K categories, F folds, C columns, B permutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, rankdata

from fieldwise.evaluation.interval import Interval, normal_interval
from fieldwise.evaluation.ranking import auc_standard_error

FOLDS = 5
PRIOR_ROWS = 2.0
"""Rows with the overall mean that are added to a category."""
_LEAST_DEVIATION = 1e-6


@dataclass(frozen=True, eq=False)
class Reading:
    """What a column says of each row, in one way of reading it.

    Args:
        column: the column's name.
        way: `value`, `order`, `absence`, `decimals`, `length` or `place`.
        codes: [N] int64: ranks if `is_ordered`, else numbers of categories.
        is_ordered: whether larger codes mean more.
    """

    column: str
    way: str
    codes: np.ndarray
    is_ordered: bool


class Target:
    """A target [N] of 0 and 1, or of numbers that count by their ranks."""

    def __init__(self, y: np.ndarray, *, binary: bool) -> None:
        self.is_binary = binary
        self.values = y.astype(np.float64) if binary else rankdata(y)
        self.mean = float(self.values.mean())

    def p_by_chance(self, value: float) -> float:
        """The normal tail of a separation by scores that know nothing of the target."""
        rows = len(self.values)
        if self.is_binary:
            variance = (rows + 1) / (12 * rows * rows * self.mean * (1 - self.mean))
        else:
            variance = 0.25 / (rows - 1)
        return float(norm.sf((value - 0.5) / variance**0.5))

    def separation(self, rank_sum: float, rank_deviation: float) -> float:
        """The separation from the sum of rank times target, and the standard deviation of the ranks."""
        rows = len(self.values)
        covariance = rank_sum - rows * self.mean * (rows + 1) / 2
        if self.is_binary:
            scale = rows * rows * self.mean * (1 - self.mean)
        else:
            scale = 2 * rows * rank_deviation * float(self.values.std())
        return 0.5 if scale <= 0 else 0.5 + covariance / scale

    def of_rows(self, rows: np.ndarray) -> "Target":
        """The target of some rows [M]."""
        return Target(self.values[rows], binary=self.is_binary)

    def of_scores(self, scores: np.ndarray) -> Interval:
        """The separation of the target by scores [N]."""
        ranks = rankdata(scores)
        return self.interval(self.separation(float(ranks @ self.values), float(ranks.std())))

    def interval(self, value: float) -> Interval:
        """The 95 % interval of a separation (Hanley and McNeil, Radiology 143(1), 1982; Fisher's z)."""
        rows = len(self.values)
        if not self.is_binary:
            rho = min(max(2 * value - 1, -0.999999), 0.999999)
            centre = np.arctanh(rho)
            reach = 1.96 * (1.06 / max(rows - 3, 1)) ** 0.5
            low = float(np.tanh(centre - reach))
            high = float(np.tanh(centre + reach))
            return Interval(value=value, low=0.5 + low / 2, high=0.5 + high / 2)
        positives = round(rows * self.mean)
        error = auc_standard_error(value, positives, rows - positives)
        return normal_interval(value, error, least=0.0, most=1.0)


class Scorer:
    """The separation of one reading, for any permutation of the target."""

    def __init__(self, reading: Reading, folds: np.ndarray) -> None:
        self.reading = reading
        if reading.is_ordered:
            self._ranks = rankdata(reading.codes)
            self._deviation = float(self._ranks.std())
            return
        categories = int(reading.codes.max()) + 1
        self._cells = reading.codes * FOLDS + folds
        self._shape = (categories, FOLDS)
        counts = np.bincount(self._cells, minlength=categories * FOLDS)
        self._counts = counts.reshape(self._shape).astype(np.float64)
        self._others = self._counts.sum(1, keepdims=True) - self._counts

    def separation(self, values: np.ndarray, target: Target) -> float:
        """The separation of a permutation of the target's values [N]."""
        if self.reading.is_ordered:
            value = target.separation(float(self._ranks @ values), self._deviation)
            return max(value, 1 - value)
        sums = np.bincount(self._cells, weights=values, minlength=self._counts.size)
        scores = self._encoded(sums.reshape(self._shape), target.mean)
        used = self._counts.ravel() > 0
        counts = self._counts.ravel()[used]
        distinct, inverse = np.unique(scores.ravel()[used], return_inverse=True)
        rows = np.bincount(inverse, weights=counts, minlength=len(distinct))
        ranks = np.cumsum(rows) - (rows - 1) / 2
        middle = (counts.sum() + 1) / 2
        deviation = float(np.sqrt((rows * np.square(ranks - middle)).sum() / counts.sum()))
        return target.separation(float(ranks[inverse] @ sums[used]), deviation)

    def scores(self, values: np.ndarray, target: Target) -> np.ndarray:
        """The score of each row [N], higher where the target is."""
        if self.reading.is_ordered:
            value = target.separation(float(self._ranks @ values), self._deviation)
            return np.asarray(self._ranks if value >= 0.5 else -self._ranks)
        sums = np.bincount(self._cells, weights=values, minlength=self._counts.size)
        encoded = self._encoded(sums.reshape(self._shape), target.mean).ravel()
        return np.asarray(encoded[self._cells])

    def _encoded(self, sums: np.ndarray, mean: float) -> np.ndarray:
        """The mean of each category over the other folds [K, F], rounded so that equal means tie."""
        others = sums.sum(1, keepdims=True) - sums
        means = (others + PRIOR_ROWS * mean) / (self._others + PRIOR_ROWS)
        return np.asarray(np.round(means, 12))


@dataclass(frozen=True, eq=False)
class Separations:
    """How well each of C readings predicts, and how likely that is by chance.

    Args:
        values: separation of each reading [C].
        z: how far that is above the mean of the permutations, in their standard deviations [C].
        p_family: probability by chance that any reading is as far above its mean, in its own
            standard deviations [C].
        q: the false discovery rate if this reading and all stronger ones are listed [C].
    """

    values: np.ndarray
    z: np.ndarray
    p_family: np.ndarray
    q: np.ndarray


def separations(
    scorers: Sequence[Scorer],
    target: Target,
    *,
    permutations: int,
    seed: int,
    strata: np.ndarray | None,
) -> Separations:
    """The separation of readings against permutations of the target, within strata [N] if they are given."""
    values = np.array([scorer.separation(target.values, target) for scorer in scorers])
    generator = np.random.default_rng(seed)
    drawn = np.empty((1 + permutations, len(scorers)))
    drawn[0] = values
    for b in range(permutations):
        permuted = permuted_within(target.values, strata, generator)
        drawn[1 + b] = [scorer.separation(permuted, target) for scorer in scorers]

    # The observed table is one of the permutations, so that all are exchangeable.
    deviation = np.maximum(drawn.std(0), _LEAST_DEVIATION)
    standardised = (drawn - drawn.mean(0)) / deviation
    z = standardised[0]
    highest = np.sort(standardised.max(1))
    p_family = 1 - np.searchsorted(highest, z) / len(highest)
    pooled = np.sort(standardised.ravel())
    p = 1 - np.searchsorted(pooled, z) / len(pooled)
    return Separations(values, z, p_family, false_discovery_rates(p))


def highest_separation(readings: Sequence[Reading], target: Target, folds: np.ndarray) -> float:
    """The highest separation of a target by some readings, .5 without any."""
    scorers = [Scorer(reading, folds) for reading in readings]
    return max([0.5, *(scorer.separation(target.values, target) for scorer in scorers)])


def permuted_within(
    values: np.ndarray, strata: np.ndarray | None, generator: np.random.Generator
) -> np.ndarray:
    """The values in random order, each within its stratum.

    >>> permuted_within(np.array([1, 2, 9]), np.array([0, 0, 1]), np.random.default_rng(0))[2]
    np.int64(9)
    """
    if strata is None:
        return generator.permutation(values)
    drawn = np.lexsort((generator.random(len(values)), strata))
    in_order = np.argsort(strata, kind="stable")
    permuted = np.empty_like(values)
    permuted[in_order] = values[drawn]
    return permuted


def false_discovery_rates(p: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p-values.

    >>> false_discovery_rates(np.array([0.01, 0.04, 0.5])).round(3).tolist()
    [0.03, 0.06, 0.5]
    """
    order = np.argsort(p)
    scaled = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1)
    return adjusted


def random_folds(rows: int, seed: int) -> np.ndarray:
    """A random fold of each row [N], of nearly equal sizes."""
    return np.random.default_rng(seed).permutation(rows) % FOLDS
