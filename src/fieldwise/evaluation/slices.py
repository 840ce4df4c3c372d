"""Metrics of slices of a table: by value, by quantile, by frequency in the training rows.

Letters: N rows, K values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.binary import (
    labelled_column,
    paired_columns,
    row_losses,
    sigmoid,
    weight_column,
)
from fieldwise.evaluation.calibration import wilson
from fieldwise.evaluation.interval import NORMAL_975, Interval, normal_interval
from fieldwise.evaluation.ranking import auc_parts

LEAST_ROWS = 30
"""Of a slice, for means, whose intervals are normal."""
LEAST_OF_A_CLASS = 10
"""Rows of either class of a slice, for AUC."""
ABSENT = "(absent)"


@dataclass(frozen=True, eq=False)
class Slice:
    """A named set of rows: their row numbers, [n]. Slices may overlap."""

    name: str
    rows: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SliceMetrics:
    """The metrics of a slice, without those that it is too small for."""

    name: str
    rows: int
    metrics: Mapping[str, Interval]


def by_code(codes: ArrayLike, names: Sequence[str], *, most: int = 12) -> list[Slice]:
    """A slice for each of the `most` frequent values, one for all others, and one for rows without a value, code K.

    >>> [(s.name, s.rows.tolist()) for s in by_code([0, 1, 1, 2, 3], ["a", "b", "c"], most=1)]
    [('b', [1, 2]), ('2 others', [0, 3]), ('(absent)', [4])]
    """
    code = np.asarray(codes, dtype=np.int64)
    absent_code = len(names)
    counts = np.bincount(code, minlength=len(names) + 1)
    present_codes = np.flatnonzero(counts[:absent_code]).tolist()
    most_frequent = sorted(present_codes, key=lambda k: (-counts[k], names[k]))
    shown = most_frequent
    if len(most_frequent) > most + 1:
        shown = most_frequent[:most]

    slices = [Slice(names[k], np.flatnonzero(code == k)) for k in shown]
    others = len(most_frequent) - len(shown)
    if others:
        is_other = np.ones(len(names) + 1, dtype=bool)
        is_other[shown] = False
        is_other[absent_code] = False
        slices.append(Slice(f"{others:,} others", np.flatnonzero(is_other[code])))
    if counts[absent_code]:
        slices.append(Slice(ABSENT, np.flatnonzero(code == absent_code)))
    return slices


def by_quantile(
    numbers: ArrayLike, *, bins: int = 5, word: Callable[[float], str] = lambda x: f"{x:.6g}"
) -> list[Slice]:
    """Slices of similar size by increasing number, and one for rows without a number (NaN).

    Equal numbers are never split, so there may be fewer than `bins`; `word` writes a number in a
    name.

    >>> [(s.name, len(s.rows)) for s in by_quantile([1.0, 2.0, 3.0, 9.0, np.nan], bins=2)]
    [('1 to 2', 2), ('3 to 9', 2), ('(absent)', 1)]
    """
    x = np.asarray(numbers, dtype=np.float64)
    present = np.flatnonzero(~np.isnan(x))
    absent = np.flatnonzero(np.isnan(x))
    slices = []
    if len(present):
        from scipy.stats import rankdata  # imported here: takes half a second

        bin_of_row = ((rankdata(x[present]) - 0.5) * bins / len(present)).astype(np.int64)
        for k in np.unique(bin_of_row):
            rows = present[bin_of_row == k]
            name = word(float(x[rows].min()))
            highest = word(float(x[rows].max()))
            if highest != name:
                name = f"{name} to {highest}"
            slices.append(Slice(name, rows))
    if len(absent):
        slices.append(Slice(ABSENT, absent))
    return slices


def binary_slices(
    y: ArrayLike,
    logit: ArrayLike,
    slices: Sequence[Slice],
    weight: ArrayLike | None = None,
) -> list[SliceMetrics]:
    """Metrics of each slice for a binary label, by row weights [N] if there are some.

    `positive_rate` (Wilson's interval); with at least 30 rows `mean_prediction`, `logloss` and
    `off`, the mean prediction minus the positive rate (normal intervals of means); with at least 10
    rows of each class `auc` (DeLong's variance, interval on the logit scale; one-sided if all pairs
    are in order).
    """
    positive, z = labelled_column(y, logit, "logits")
    p = sigmoid(z)
    loss = row_losses(positive, z)
    all_weights = weight_column(weight, len(p))
    results = []
    for part in slices:
        rows = len(part.rows)
        is_positive = positive[part.rows]
        positives = int(is_positive.sum())
        mass = None if all_weights is None else all_weights[part.rows]
        metrics: dict[str, Interval] = {}
        if rows:
            metrics["positive_rate"] = share_interval(is_positive, mass)
        if rows >= LEAST_ROWS:
            metrics["mean_prediction"] = _mean(p[part.rows], mass)
            metrics["logloss"] = _mean(loss[part.rows], mass)
            metrics["off"] = _mean(p[part.rows] - is_positive, mass)
        if min(positives, rows - positives) >= LEAST_OF_A_CLASS:
            metrics["auc"] = _auc(is_positive, z[part.rows], mass)
        results.append(SliceMetrics(name=part.name, rows=rows, metrics=metrics))
    return results


def regression_slices(
    y: ArrayLike,
    prediction: ArrayLike,
    slices: Sequence[Slice],
    weight: ArrayLike | None = None,
) -> list[SliceMetrics]:
    """Metrics of each slice with at least 30 rows for a regression label, by row weights [N] if there are some.

    `mean_target`, `mean_prediction`, `off` (the mean prediction minus the mean target), `mae` and
    `rmse`, in the targets' unit, with normal intervals of means; that of `rmse` is the root of the
    interval of its square.
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    all_weights = weight_column(weight, len(target))
    results = []
    for part in slices:
        metrics: dict[str, Interval] = {}
        if len(part.rows) >= LEAST_ROWS:
            mass = None if all_weights is None else all_weights[part.rows]
            error = predicted[part.rows] - target[part.rows]
            square = _mean(error**2, mass)
            metrics["mean_target"] = _mean(target[part.rows], mass)
            metrics["mean_prediction"] = _mean(predicted[part.rows], mass)
            metrics["off"] = _mean(error, mass)
            metrics["mae"] = _mean(np.abs(error), mass)
            metrics["rmse"] = Interval(
                value=math.sqrt(square.value),
                low=math.sqrt(max(0.0, square.low)),
                high=math.sqrt(square.high),
            )
        results.append(SliceMetrics(name=part.name, rows=len(part.rows), metrics=metrics))
    return results


def share_interval(
    is_counted: NDArray[np.bool_], weight: NDArray[np.float64] | None = None
) -> Interval:
    """The share of rows that are counted, with Wilson's interval, of Kish's effective number of rows if weighted.

    >>> share_interval(np.array([True, False, False]), np.array([2.0, 1.0, 1.0])).value
    0.5
    """
    rows = float(len(is_counted))
    counted = float(is_counted.sum())
    share = counted / rows
    if weight is not None:
        rows = float(weight.sum()) ** 2 / float((weight**2).sum())
        share = float(np.average(is_counted, weights=weight))
        counted = share * rows
    low, high = wilson(counted, rows)
    return Interval(value=share, low=float(low), high=float(high))


def _mean(values: NDArray[np.float64], weight: NDArray[np.float64] | None) -> Interval:
    """The mean with its normal interval, and with weights that of a ratio of two sums."""
    if weight is None:
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        return normal_interval(float(values.mean()), error)
    mean = float(np.average(values, weights=weight))
    return normal_interval(mean, _error_of_mean(values, weight))


def _error_of_mean(values: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
    """The standard error of a weighted mean (the linearization of a ratio, Cochran, Sampling Techniques, 6.5)."""
    residual = weight * (values - np.average(values, weights=weight))
    rows = len(values)
    return math.sqrt(rows / (rows - 1) * float((residual**2).sum())) / float(weight.sum())


def _weighted_auc(
    positive: NDArray[np.bool_], z: NDArray[np.float64], weight: NDArray[np.float64]
) -> tuple[float, float]:
    """AUC by row weights, and its standard error by each row's part in it (DeLong's, with weights)."""
    mass = {True: weight[positive], False: weight[~positive]}
    score = {True: z[positive], False: z[~positive]}
    variance = 0.0
    for of_positives in (True, False):
        order = np.argsort(score[not of_positives], kind="stable")
        others = score[not of_positives][order]
        upto = np.concatenate([[0.0], np.cumsum(mass[not of_positives][order])])
        below = upto[np.searchsorted(others, score[of_positives], "left")]
        not_above = upto[np.searchsorted(others, score[of_positives], "right")]
        parts = (below + not_above) / (2 * upto[-1])
        variance += _error_of_mean(parts, mass[of_positives]) ** 2
        if of_positives:
            value = float(np.average(parts, weights=mass[of_positives]))
    return value, math.sqrt(variance)


def _auc(
    positive: NDArray[np.bool_], z: NDArray[np.float64], weight: NDArray[np.float64] | None
) -> Interval:
    """AUC with DeLong's variance; the interval on the logit scale stays within 0 and 1."""
    wins, losses = auc_parts(positive, z)
    value = float(wins.mean())
    error = math.sqrt(float(wins.var(ddof=1)) / len(wins) + float(losses.var(ddof=1)) / len(losses))
    if weight is not None:
        value, error = _weighted_auc(positive, z, weight)
    if not 0 < value < 1:
        # If no pair or every pair is in order: the rule of three over the smaller class.
        reach = 3 / min(len(wins), len(losses))
        return Interval(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))
    middle = math.log(value / (1 - value))
    reach = NORMAL_975 * error / (value * (1 - value))
    low = 1 / (1 + math.exp(-(middle - reach)))
    high = 1 / (1 + math.exp(-(middle + reach)))
    return Interval(value=value, low=low, high=high)
