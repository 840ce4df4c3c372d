"""Bootstrap confidence intervals of metrics, for other rows and other seeds.

Letters: N rows, R replicates, K columns of scores, S seeds, T runs of ties.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from fieldwise.errors import DataError
from fieldwise.evaluation.binary import (
    finite_column,
    labels_of,
    require_both_classes,
    row_losses,
    sigmoid,
)
from fieldwise.evaluation.calibration import BINS, mass_bins
from fieldwise.evaluation.ranking import values_by_group

__all__ = ["Estimate", "MetricName", "estimate", "resampled", "resampled_gauc", "resampled_means"]

MetricName = Literal["auc", "average_precision", "logloss", "brier", "ece", "rmse", "mae"]
RANKS = ("auc", "average_precision")
NUMBERS = ("rmse", "mae")
MAX_RETRIES = 100
"""Consecutive resamples with only one class before giving up."""
MAX_DEGREES_OF_FREEDOM = 1e9
"""Instead of infinitely many."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, with its uncertainty.

    Args:
        value: the measured value.
        low: the lower end of its 95 % interval.
        high: the upper end.
        standard_error: for other rows and, with several seeds, other seeds.
        p: two-sided p-value of the hypothesis that the value is 0, for differences.
    """

    value: float
    low: float
    high: float
    standard_error: float
    p: float


def estimate(by_seed: ArrayLike, replicates: ArrayLike, *, least: float = -math.inf) -> Estimate:
    """The mean over seeds with a 95 % interval for both sources of variance.

    The variance is that of the replicates (other rows, these seeds) plus s^2 / S, with s^2 the
    variance over seeds on these rows. The interval uses Student's t with Satterthwaite's degrees of
    freedom (Biometrics Bulletin 2(6), 1946), since s^2 is uncertain with few seeds. With one seed,
    the variance over seeds is unknown and not included. There is no correction for few rows: with
    100 to 300 rows, intervals of one seed cover the true value in about 94 of 100 cases, not 95.

    Args:
        by_seed: the metric, or the difference of two models', per seed, [S].
        replicates: bootstrap replicates of its mean over the seeds, [R], as from `resampled`.
        least: lower bound of the value, which also bounds the interval.

    >>> result = estimate([1.0, 2.0, 3.0], [1.9, 2.1])
    >>> round(result.value, 3), round(result.standard_error, 3), round(result.low, 3), round(result.high, 3)
    (2.0, 0.594, -0.306, 4.306)
    """
    values = np.asarray(by_seed, dtype=np.float64)
    drawn = np.asarray(replicates, dtype=np.float64)
    seeds = len(values)
    value = float(values.mean())
    variance_of_rows = float(drawn.var(ddof=1))
    variance_of_seeds = 0.0
    if seeds > 1:
        variance_of_seeds = float(values.var(ddof=1)) / seeds
    variance = variance_of_rows + variance_of_seeds
    error = math.sqrt(variance)

    freedom = math.inf
    if variance_of_seeds > 0:
        freedom = variance**2 / variance_of_seeds**2 * (seeds - 1)
    freedom = min(freedom, MAX_DEGREES_OF_FREEDOM)
    reach = float(stdtrit(freedom, 0.975)) * error
    p = 1.0 if value == 0 else 0.0
    if error > 0:
        p = 2 * float(stdtr(freedom, -abs(value) / error))
    return Estimate(
        value=value, low=max(least, value - reach), high=value + reach, standard_error=error, p=p
    )


def resampled(
    y: ArrayLike, scores: ArrayLike, metric: MetricName, *, replicates: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Bootstrap replicates of a metric for several scores of the same rows (Efron, 1979).

    Every replicate draws N rows with replacement, once for all scores, so that differences between
    them are paired.

    Args:
        y: labels 0 and 1, or numbers (`rmse`, `mae`), [N].
        scores: finite logits, or predictions (`rmse`, `mae`), [K, N].
        metric: the metric's name.
        replicates: R.
        seed: random seed; the same seed and N give the same rows.

    Shape:
        returns [R, K].

    Errors:
        DataError: only one class (`auc`, `average_precision`), no row, lengths that differ, NaN or
            infinity.

    >>> resampled([0, 1], [[-1.0, 1.0]], "auc", replicates=3).tolist()
    [[1.0], [1.0], [1.0]]
    """
    columns = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    measure = _measure(y, columns, metric)
    positive = labels_of(y) if metric in RANKS else None
    rng = np.random.default_rng(seed)
    results = np.empty((replicates, len(columns)))
    for r in range(replicates):
        results[r] = measure(_drawn_counts(rng, columns.shape[1], positive))
    return results


def _drawn_counts(
    rng: np.random.Generator, rows: int, positive: NDArray[np.bool_] | None
) -> NDArray[np.int64]:
    """How often each row is drawn, of as many draws as rows; from both classes, where `positive` is given."""
    for _ in range(MAX_RETRIES):
        counts = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        if positive is None or 0 < int(counts[positive].sum()) < rows:
            return counts
    raise DataError(
        f"AUC's interval needs rows of both classes, but {MAX_RETRIES} resamples of {rows} rows held only one: use "
        "more rows"
    )


Measure = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""A function from each row's count [N] to the metric of each column [K]."""


def _measure(y: ArrayLike, columns: NDArray[np.float64], metric: MetricName) -> Measure:
    """The metric of scores [K, N], after a check of them."""
    target = finite_column(y, "labels")
    if columns.shape[1:] != target.shape:
        raise DataError(
            f"scores must be as many as the labels, found {columns.shape[1]} for {len(target)} labels: score the same "
            "rows"
        )
    for column in columns:
        finite_column(column, "scores")
    positive = target == 1 if metric in NUMBERS else labels_of(y)

    if metric == "mae":
        return _mean_of(np.abs(columns - target))
    if metric == "rmse":
        return _root_mean_of(np.square(columns - target))
    if metric == "logloss":
        return _mean_of(row_losses(positive, columns))
    if metric == "brier":
        return _mean_of(np.square(sigmoid(columns) - positive))
    if metric == "ece":
        gaps = [_SortedRows.of(p, p - positive) for p in sigmoid(columns)]
        return lambda counts: np.array([rows.calibration_error(counts) for rows in gaps])

    assert metric in RANKS, metric
    require_both_classes(positive, "AUC")
    ranked = [_SortedRows.of(column, positive) for column in columns]
    if metric == "auc":
        return lambda counts: np.array([rows.auc(counts) for rows in ranked])
    return lambda counts: np.array([rows.average_precision(counts) for rows in ranked])


def _mean_of(values_KN: NDArray[np.float64]) -> Measure:
    return lambda counts: values_KN @ counts / counts.sum()


def _root_mean_of(values_KN: NDArray[np.float64]) -> Measure:
    return lambda counts: np.sqrt(values_KN @ counts / counts.sum())


@dataclass(frozen=True, eq=False)
class _SortedRows:
    """The rows from the lowest score to the highest, for metrics of resamples without sorting each of them.

    Args:
        order: the rows' numbers, [N].
        ties: where runs of equal scores begin, [T].
        values: what is summed in each run, [N], in this order.
    """

    order: NDArray[np.int64]
    ties: NDArray[np.int64]
    values: NDArray[Any]

    @classmethod
    def of(cls, score: NDArray[np.float64], values: NDArray[Any]) -> "_SortedRows":
        """Sort the values [N] by a score [N]."""
        order = np.argsort(score, kind="stable")
        ties = np.flatnonzero(np.diff(score[order], prepend=np.nan))
        return cls(order, ties, values[order])

    def _sums(self, counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The number of drawn rows in each run, and the sum of their values, [T] each."""
        drawn = counts[self.order]
        return np.add.reduceat(drawn, self.ties), np.add.reduceat(drawn * self.values, self.ties)

    def calibration_error(self, counts: NDArray[np.int64]) -> float:
        """ECE, of values that are each row's probability minus its label."""
        rows, gaps = self._sums(counts)
        gap_of_bin = np.bincount(mass_bins(rows, BINS), gaps)
        return float(np.abs(gap_of_bin).sum() / counts.sum())

    def auc(self, counts: NDArray[np.int64]) -> float:
        """AUC, of values that say which rows are positive; pairs are counted in integers, as in `ranking.auc`."""
        rows, positives = self._sums(counts)
        negatives = rows - positives
        below = np.cumsum(negatives) - negatives
        wins = int((positives * (2 * below + negatives)).sum())
        return wins / (2 * int(positives.sum()) * int(negatives.sum()))

    def average_precision(self, counts: NDArray[np.int64]) -> float:
        """The mean over positives of the precision among rows with at least their score."""
        rows, positives = self._sums(counts)
        positives = positives[::-1]
        rows = rows[::-1]
        precision = np.cumsum(positives) / np.maximum(np.cumsum(rows), 1)
        return float((positives * precision).sum() / positives.sum())


def resampled_gauc(
    y: ArrayLike, score: ArrayLike, group: ArrayLike, *, replicates: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Bootstrap replicates of group AUC, [R]: whole groups are sampled, so a user's rows stay together.

    Errors:
        DataError: as for `group_auc`.

    >>> resampled_gauc([0, 1, 0, 1], [1, 2, 1, 2], ["a", "a", "b", "b"], replicates=2).tolist()
    [1.0, 1.0]
    """
    _, rows, positives, _, values = values_by_group(y, score, group)
    mixed = (positives > 0) & (positives < rows)
    values = values[mixed]
    rows = rows[mixed]
    if not len(values):
        raise DataError(
            "group AUC needs a group with rows of both classes, found none; omit the group"
        )
    rng = np.random.default_rng(seed)
    results = np.empty(replicates)
    for r in range(replicates):
        drawn = rng.integers(0, len(values), len(values))
        results[r] = (values[drawn] * rows[drawn]).sum() / rows[drawn].sum()
    return results


def resampled_means(
    values: ArrayLike, *, replicates: int = 1000, seed: int = 0
) -> NDArray[np.float64]:
    """Bootstrap replicates of the means of several columns, such as users' metrics.

    Every replicate draws once for all columns, so that differences between them are paired.

    Args:
        values: [K, N].
        replicates: R.
        seed: random seed; the same seed and N give the same entries.

    Shape:
        returns [R, K].

    >>> resampled_means([[1.0, 1.0], [2.0, 2.0]], replicates=2).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    columns = np.atleast_2d(np.asarray(values, dtype=np.float64))
    count = columns.shape[1]
    rng = np.random.default_rng(seed)
    results = np.empty((replicates, len(columns)))
    for r in range(replicates):
        times = np.bincount(rng.integers(0, count, count), minlength=count)
        results[r] = columns @ times / count
    return results
