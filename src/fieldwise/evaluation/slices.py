"""Metrics of slices of a table: by value, by quantile, by frequency in the training rows.

Letters: N rows, K values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.binary import labelled_column, paired_columns, row_losses, sigmoid
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


def binary_slices(y: ArrayLike, logit: ArrayLike, slices: Sequence[Slice]) -> list[SliceMetrics]:
    """Metrics of each slice for a binary label.

    `positive_rate` (Wilson's interval); with at least 30 rows `mean_prediction`, `logloss` and
    `off`, the mean prediction minus the positive rate (normal intervals of means); with at least 10
    rows of each class `auc` (DeLong's variance, interval on the logit scale; one-sided if all pairs
    are in order).
    """
    positive, z = labelled_column(y, logit, "logits")
    p = sigmoid(z)
    loss = row_losses(positive, z)
    results = []
    for part in slices:
        rows = len(part.rows)
        is_positive = positive[part.rows]
        positives = int(is_positive.sum())
        metrics: dict[str, Interval] = {}
        if rows:
            low, high = wilson(positives, rows)
            metrics["positive_rate"] = Interval(
                value=positives / rows, low=float(low), high=float(high)
            )
        if rows >= LEAST_ROWS:
            metrics["mean_prediction"] = _mean(p[part.rows])
            metrics["logloss"] = _mean(loss[part.rows])
            metrics["off"] = _mean(p[part.rows] - is_positive)
        if min(positives, rows - positives) >= LEAST_OF_A_CLASS:
            metrics["auc"] = _auc(is_positive, z[part.rows])
        results.append(SliceMetrics(name=part.name, rows=rows, metrics=metrics))
    return results


def regression_slices(
    y: ArrayLike, prediction: ArrayLike, slices: Sequence[Slice]
) -> list[SliceMetrics]:
    """Metrics of each slice with at least 30 rows for a regression label.

    `mean_target`, `mean_prediction`, `off` (the mean prediction minus the mean target), `mae` and
    `rmse`, in the targets' unit, with normal intervals of means; that of `rmse` is the root of the
    interval of its square.
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    results = []
    for part in slices:
        metrics: dict[str, Interval] = {}
        if len(part.rows) >= LEAST_ROWS:
            error = predicted[part.rows] - target[part.rows]
            square = _mean(error**2)
            metrics["mean_target"] = _mean(target[part.rows])
            metrics["mean_prediction"] = _mean(predicted[part.rows])
            metrics["off"] = _mean(error)
            metrics["mae"] = _mean(np.abs(error))
            metrics["rmse"] = Interval(
                value=math.sqrt(square.value),
                low=math.sqrt(max(0.0, square.low)),
                high=math.sqrt(square.high),
            )
        results.append(SliceMetrics(name=part.name, rows=len(part.rows), metrics=metrics))
    return results


def _mean(values: NDArray[np.float64]) -> Interval:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return normal_interval(float(values.mean()), error)


def _auc(positive: NDArray[np.bool_], z: NDArray[np.float64]) -> Interval:
    """AUC with DeLong's variance; the interval on the logit scale stays within 0 and 1."""
    wins, losses = auc_parts(positive, z)
    value = float(wins.mean())
    if not 0 < value < 1:
        # If no pair or every pair is in order: the rule of three over the smaller class.
        reach = 3 / min(len(wins), len(losses))
        return Interval(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))
    error = math.sqrt(float(wins.var(ddof=1)) / len(wins) + float(losses.var(ddof=1)) / len(losses))
    middle = math.log(value / (1 - value))
    reach = NORMAL_975 * error / (value * (1 - value))
    low = 1 / (1 + math.exp(-(middle - reach)))
    high = 1 / (1 + math.exp(-(middle + reach)))
    return Interval(value=value, low=low, high=high)
