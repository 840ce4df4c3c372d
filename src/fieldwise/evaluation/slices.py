"""Metrics of parts of a table: by value, by quantile, by how often the training rows had it.

Letters: N rows, K values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from fieldwise.evaluation.binary import sigmoid
from fieldwise.evaluation.calibration import wilson
from fieldwise.evaluation.checks import labelled_column, paired_columns
from fieldwise.evaluation.delong import auc_parts

__all__ = [
    "LEAST_OF_A_CLASS",
    "LEAST_ROWS",
    "Interval",
    "Slice",
    "SliceMetrics",
    "binary_slices",
    "by_code",
    "by_quantile",
    "regression_slices",
]

LEAST_ROWS = 30  # of means, whose intervals are the normal distribution's
LEAST_OF_A_CLASS = 10  # of AUC
ABSENT = "(absent)"


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A figure with both ends of its 95 % interval, for other rows."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Slice:
    """Some rows by a name: their numbers, [n]. Slices may share rows."""

    name: str
    rows: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SliceMetrics:
    """What was measured of a slice; a metric that it is too small for is left out.

    Args:
        positives: of a binary label, else None.
    """

    name: str
    rows: int
    positives: int | None
    metrics: Mapping[str, Interval]


def by_code(codes: ArrayLike, names: Sequence[str], *, most: int = 12) -> list[Slice]:
    """A slice each of the values with the most rows, one of all others, and one of rows without a value.

    Args:
        codes: of each row, in [0, K], K where the row has no value, [N].
        names: of the values, K.
        most: values with a slice of their own.

    >>> [(s.name, s.rows.tolist()) for s in by_code([0, 1, 1, 2, 3], ["a", "b", "c"], most=1)]
    [('b', [1, 2]), ('2 others', [0, 3]), ('(absent)', [4])]
    """
    code = np.asarray(codes, dtype=np.int64)
    counts = np.bincount(code, minlength=len(names) + 1)
    order = sorted(np.flatnonzero(counts[: len(names)]).tolist(), key=lambda k: (-counts[k], names[k]))
    shown = order if len(order) <= most + 1 else order[:most]
    found = [Slice(names[k], np.flatnonzero(code == k)) for k in shown]
    rest = len(order) - len(shown)
    if rest:
        others = np.ones(len(names) + 1, dtype=bool)
        others[[*shown, len(names)]] = False
        found.append(Slice(f"{rest:,} others", np.flatnonzero(others[code])))
    if counts[len(names)]:
        found.append(Slice(ABSENT, np.flatnonzero(code == len(names))))
    return found


def by_quantile(
    numbers: ArrayLike, *, bins: int = 5, word: Callable[[float], str] = lambda x: f"{x:.6g}"
) -> list[Slice]:
    """Bins of like size from low to high, which never part equal numbers, and a slice of rows without a number (NaN).

    Args:
        numbers: [N].
        bins: how many; fewer where numbers are often equal.
        word: of a number, for the names.

    >>> [(s.name, len(s.rows)) for s in by_quantile([1.0, 2.0, 3.0, 9.0, np.nan], bins=2)]
    [('1 to 2', 2), ('3 to 9', 2), ('(absent)', 1)]
    """
    x = np.asarray(numbers, dtype=np.float64)
    there = np.flatnonzero(~np.isnan(x))
    found = []
    if len(there):
        from scipy.stats import rankdata  # half of a second, which measuring without slices is spared

        place = ((rankdata(x[there]) - 0.5) * bins / len(there)).astype(np.int64)
        for k in np.unique(place):
            rows = there[place == k]
            ends = word(float(x[rows].min())), word(float(x[rows].max()))
            found.append(Slice(ends[0] if ends[0] == ends[1] else " to ".join(ends), rows))
    absent = np.flatnonzero(np.isnan(x))
    return [*found, Slice(ABSENT, absent)] if len(absent) else found


def binary_slices(y: ArrayLike, logit: ArrayLike, slices: Sequence[Slice]) -> list[SliceMetrics]:
    """Each slice's figures of a binary label.

    `positive_rate` (Wilson's interval); with at least 30 rows `mean_prediction`, `logloss` and `off`, the mean
    prediction less the positive rate (normal intervals of means); with at least 10 rows of each class `auc` (DeLong's
    variance, the interval on the scale of logits, or up to the end where every pair is in order).

    Args:
        y: labels 0 and 1, [N].
        logit: finite, [N].
        slices: of these rows; one without rows is measured by nothing.

    >>> y, z = [0, 1] * 20, [-1.0, 1.0] * 20
    >>> found = binary_slices(y, z, [Slice("all", np.arange(40)), Slice("few", np.arange(4))])
    >>> [(s.name, s.rows, sorted(s.metrics)) for s in found]
    [('all', 40, ['auc', 'logloss', 'mean_prediction', 'off', 'positive_rate']), ('few', 4, ['positive_rate'])]
    """
    positive, z = labelled_column(y, logit, "logits")
    p = sigmoid(z)
    against = np.where(positive, -z, z)
    loss = np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against)))
    found = []
    for one in slices:
        rows, positives = len(one.rows), int(positive[one.rows].sum())
        metrics: dict[str, Interval] = {}
        if rows:
            low, high = wilson(positives, rows)
            metrics["positive_rate"] = Interval(value=positives / rows, low=float(low), high=float(high))
        if rows >= LEAST_ROWS:
            metrics["mean_prediction"] = _mean(p[one.rows])
            metrics["logloss"] = _mean(loss[one.rows])
            metrics["off"] = _mean(p[one.rows] - positive[one.rows])
        if min(positives, rows - positives) >= LEAST_OF_A_CLASS:
            metrics["auc"] = _auc(positive[one.rows], z[one.rows])
        found.append(SliceMetrics(name=one.name, rows=rows, positives=positives, metrics=metrics))
    return found


def regression_slices(y: ArrayLike, prediction: ArrayLike, slices: Sequence[Slice]) -> list[SliceMetrics]:
    """Each slice's figures of a regression label, with at least 30 rows.

    `mean_target`, `mean_prediction`, `off` (the mean prediction less the mean target), `mae` and `rmse`, in the
    targets' unit, with normal intervals of means; that of `rmse` is the root of its square's.
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    found = []
    for one in slices:
        metrics: dict[str, Interval] = {}
        if len(one.rows) >= LEAST_ROWS:
            t, error = target[one.rows], predicted[one.rows] - target[one.rows]
            square = _mean(error**2)
            metrics = {
                "mean_target": _mean(t),
                "mean_prediction": _mean(predicted[one.rows]),
                "off": _mean(error),
                "mae": _mean(np.abs(error)),
                "rmse": Interval(
                    value=math.sqrt(square.value), low=math.sqrt(max(0.0, square.low)), high=math.sqrt(square.high)
                ),
            }
        found.append(SliceMetrics(name=one.name, rows=len(one.rows), positives=None, metrics=metrics))
    return found


def _reach() -> float:
    return float(ndtri(0.975))


def _mean(values: NDArray[np.float64]) -> Interval:
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    return Interval(value=mean, low=mean - _reach() * error, high=mean + _reach() * error)


def _auc(positive: NDArray[np.bool_], z: NDArray[np.float64]) -> Interval:
    """With DeLong's variance; on the scale of logits no end lies beyond 0 or 1."""
    wins, losses = auc_parts(positive, z)
    value = float(wins.mean())
    if not 0 < value < 1:
        # No pair, or every pair, is in order: the rule of three over the smaller class.
        reach = 3 / min(len(wins), len(losses))
        return Interval(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))
    error = math.sqrt(float(wins.var(ddof=1)) / len(wins) + float(losses.var(ddof=1)) / len(losses))
    middle, reach = math.log(value / (1 - value)), _reach() * error / (value * (1 - value))
    low, high = (1 / (1 + math.exp(-(middle + side * reach))) for side in (-1, 1))
    return Interval(value=value, low=low, high=high)
