"""Bootstrap confidence intervals of metrics, for other rows and other seeds.

Letters: N rows, R replicates, K columns of scores, S seeds, G groups.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit

from fieldwise.errors import DataError
from fieldwise.evaluation.binary import (
    finite_column,
    labels_of,
    require_both_classes,
    weight_column,
)
from fieldwise.evaluation.interval import Interval
from fieldwise.evaluation.metrics import METRICS, Metric, ScoredRows
from fieldwise.evaluation.resampling import MetricOfCounts

__all__ = [
    "Estimate",
    "estimate",
    "percentile_interval",
    "resampled",
    "resampled_groups",
    "resampled_means",
]

MAX_RETRIES = 100
"""Consecutive resamples with only one class before giving up."""
MAX_DEGREES_OF_FREEDOM = 1e9
"""Instead of infinitely many."""


@dataclass(frozen=True, kw_only=True)
class Estimate(Interval):
    """A mean over seeds with its interval, and its standard error.

    Args:
        standard_error: for other rows and, with several seeds, other seeds.
        p: two-sided p-value of the hypothesis that the value is 0, for differences.
    """

    standard_error: float
    p: float


def estimate(
    by_seed: ArrayLike,
    replicates: ArrayLike,
    *,
    least: float = -math.inf,
    most: float = math.inf,
) -> Estimate:
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
        most: upper bound, likewise.

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
        value=value,
        low=max(least, value - reach),
        high=min(most, value + reach),
        standard_error=error,
        p=p,
    )


def resampled(
    y: ArrayLike,
    scores: ArrayLike,
    metric: str,
    *,
    weight: ArrayLike | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Bootstrap replicates of a metric for several scores of the same rows (Efron, 1979).

    Every replicate draws N rows with replacement, once for all scores, so that differences between
    them are paired.

    Args:
        y: labels 0 and 1, or numbers for a metric of regression (`rmse`, `mae`), [N].
        scores: finite logits, or predictions of numbers, [K, N].
        metric: the metric's name.
        weight: row weights, [N]; rows are drawn equally often whatever they weigh.
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
    target = finite_column(y, "labels")
    columns = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if columns.shape[1:] != target.shape:
        raise DataError(
            f"scores must be as many as the labels, found {columns.shape[1]} for {len(target)} labels: score the same "
            "rows"
        )
    for column in columns:
        finite_column(column, "scores")
    resampled_metric = METRICS[metric]
    if "binary" in resampled_metric.tasks:
        positive = labels_of(y)
        if resampled_metric.both_classes:
            require_both_classes(positive, resampled_metric.title)

    mass = weight_column(weight, len(target))
    value_of_counts = _value_of_counts(resampled_metric, target, columns, mass)
    rng = np.random.default_rng(seed)
    results = np.empty((replicates, len(columns)))
    for r in range(replicates):
        results[r] = value_of_counts(_drawn_counts(rng, target, resampled_metric))
    return results


def _value_of_counts(
    metric: Metric,
    y: NDArray[np.float64],
    columns: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
) -> MetricOfCounts:
    """The metric of each column [K, N] by counts; NaN where it is undefined for the drawn rows."""
    by_mass: MetricOfCounts | None = None
    if metric.resampling is not None:
        by_mass = metric.resampling(y, columns)
    elif metric.row_values is not None:
        values_KN = metric.row_values(ScoredRows(y=y, score=columns))

        def by_mass(mass: NDArray[Any]) -> NDArray[np.float64]:
            means: NDArray[np.float64] = metric.of_mean(values_KN @ mass / mass.sum())
            return means

    if by_mass is not None:
        if weight is None:
            return by_mass
        return lambda counts: by_mass(counts * weight)

    def values_of_counts(counts: NDArray[Any]) -> NDArray[np.float64]:
        drawn = np.repeat(np.arange(len(y)), counts)
        mass = None if weight is None else weight[drawn]
        values = [
            metric.of(ScoredRows(y=y[drawn], score=column[drawn], weight=mass))
            for column in columns
        ]
        return np.array(values, dtype=np.float64)

    return values_of_counts


def _drawn_counts(
    rng: np.random.Generator, y: NDArray[np.float64], metric: Metric
) -> NDArray[np.int64]:
    """How often each row is drawn, of as many draws as rows; from both classes, where the metric needs them."""
    rows = len(y)
    for _ in range(MAX_RETRIES):
        counts = np.bincount(rng.integers(0, rows, rows), minlength=rows)
        if not metric.both_classes or 0 < int(counts[y == 1].sum()) < rows:
            return counts
    raise DataError(
        f"{metric.title}'s interval needs rows of both classes, but {MAX_RETRIES} resamples of {rows} rows held only "
        "one: use more rows"
    )


def resampled_groups(
    values: NDArray[np.float64],
    weights: NDArray[Any],
    *,
    replicates: int = 1000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Bootstrap replicates of a weighted mean over groups, [R], of their values and weights [G], as of group AUC.

    Whole groups are sampled, so a user's rows stay together.

    >>> resampled_groups(np.array([1.0, 1.0]), np.array([2, 3]), replicates=2).tolist()
    [1.0, 1.0]
    """
    rng = np.random.default_rng(seed)
    results = np.empty(replicates)
    for r in range(replicates):
        drawn = rng.integers(0, len(values), len(values))
        results[r] = (values[drawn] * weights[drawn]).sum() / weights[drawn].sum()
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


def percentile_interval(
    values: ArrayLike, *, replicates: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Both ends of the 95 % interval of the mean of values [N], such as users' differences of two rankings.

    >>> percentile_interval([0.5, 0.5], replicates=10)
    (0.5, 0.5)
    """
    drawn = np.random.default_rng(seed).choice(values, (replicates, len(np.asarray(values))))
    low, high = np.quantile(drawn.mean(1), (0.025, 0.975))
    return float(low), float(high)
