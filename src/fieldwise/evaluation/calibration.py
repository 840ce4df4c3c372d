"""Calibration: measures of its error, and maps from logits to calibrated logits.

Letters: N rows, B bins, T distinct values, K knots.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.charts import Axis, Chart, Line, line_chart
from fieldwise.errors import DataError
from fieldwise.evaluation.binary import (
    labelled_column,
    probability_column,
    require_both_classes,
    sigmoid,
    weight_column,
)
from fieldwise.evaluation.interval import NORMAL_975
from fieldwise.schema import Label

Binning = Literal["count", "width"]
BINS = 15
Method = Literal["platt", "isotonic"]


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """A reliability diagram: each non-empty bin's rows, mean probability, share of positives, and its 95 % interval."""

    rows: NDArray[np.int64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def edge(self) -> float:
        """The end of a scale of probabilities from 0 that holds all bins: 1, or less if all are far below."""
        most = max(float(self.predicted.max()), float(self.high.max()))
        return next((edge for edge in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most <= edge), 1.0)

    def plot(self, name: str = "", *, edge: float | None = None, colour: int = 0) -> Chart:
        """A chart of shares of positives by predicted probability, with 95 % intervals; `edge` ends both axes."""
        line = Line(
            x=self.predicted,
            y=self.observed,
            low=self.low,
            high=self.high,
            colour=colour,
            joined=False,
        )
        span = 0, self.edge() if edge is None else edge
        of_name = f", {name}" if name else ""
        title = f"Reliability diagram{of_name}: positive rate by mean prediction"
        x = Axis(label="mean prediction of a bin", span=span)
        y = Axis(label="positive rate", span=span)
        return line_chart([line], x, y, title=title, diagonal=True)


def reliability(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "count",
    weight: ArrayLike | None = None,
) -> Reliability:
    """The share of positive rows by predicted probability, in bins.

    Bins of equal `count` never split rows of equal probability, so there may be fewer; those of
    equal `width` divide [0, 1] (Guo et al., ICML 2017). With row weights [N], shares and means are
    weighted, bins have about equal weight, and intervals are those of as many equal rows as vary as
    much (Kish's effective sample size).
    """
    positive, p = probability_column(y, probability)
    if bins < 1:
        raise DataError(f"bins must be at least 1, found {bins}")
    mass = weight_column(weight, len(p))
    if mass is None:
        mass = np.ones(len(p), np.int64)
    bin_of_row = _bin_of_row(p, mass, bins, binning)
    rows = np.bincount(bin_of_row)
    in_bin = rows > 0
    mass_of_bin, predicted, positives = _sums_of_bins(bin_of_row, positive, p, mass)
    effective_rows = mass_of_bin**2 / np.bincount(bin_of_row, mass**2)[in_bin]
    low, high = wilson(positives * (effective_rows / mass_of_bin), effective_rows)
    return Reliability(
        rows=rows[in_bin],
        predicted=predicted,
        observed=positives / mass_of_bin,
        low=low,
        high=high,
    )


def _bin_of_row(
    p: NDArray[np.float64], weight: NDArray[Any], bins: int, binning: Binning
) -> NDArray[np.int64]:
    """The bin of each row, [N]: of equal width, or about equal weight without splitting rows of equal probability."""
    if binning == "width":
        return np.minimum((p * bins).astype(np.int64), bins - 1)
    order = np.argsort(p, kind="stable")
    ties = np.flatnonzero(np.concatenate([[True], np.diff(p[order]) > 0]))
    bin_of_tie = mass_bins(np.add.reduceat(weight[order], ties), bins)
    bin_of_row = np.empty(len(p), np.int64)
    bin_of_row[order] = np.repeat(bin_of_tie, np.diff(ties, append=len(p)))
    return bin_of_row


def _sums_of_bins(
    bin_of_row: NDArray[np.int64],
    positive: NDArray[np.bool_],
    p: NDArray[np.float64],
    weight: NDArray[Any],
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[Any]]:
    """Weight, mean probability and weight of positives of each bin with rows [B]."""
    mass = np.bincount(bin_of_row, weight * 1)
    total = np.bincount(bin_of_row, weight * p)
    positives = np.bincount(bin_of_row, weight * positive)
    has_rows = mass > 0
    mean = total[has_rows] / mass[has_rows]
    return mass[has_rows].astype(weight.dtype), mean, positives[has_rows]


def mass_bins(counts: ArrayLike, bins: int = BINS) -> NDArray[np.int64]:
    """The bin of each distinct value, from low to high, for bins of about equally many rows (or weight).

    A value belongs to the bin of its middle row, so that rows of equal value are never split.
    """
    rows = np.asarray(counts)
    upto = np.cumsum(rows)
    total = upto[-1] or 1
    bin_of_value: NDArray[np.int64] = ((2 * upto - rows) * bins // (2 * total)).astype(np.int64)
    return np.minimum(bin_of_value, bins - 1)


def calibration_error(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "count",
    weight: ArrayLike | None = None,
) -> float:
    """Expected calibration error (ECE): the mean difference of probabilities and shares of positives, over bins.

    The mean over rows of each bin's |mean probability - share of positives| (Naeini et al., AAAI
    2015), with the bins of `reliability`. Sampling noise keeps it above 0, more so with few rows.
    With row weights `weight` [N], bins have equal weight.

    >>> calibration_error([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]), calibration_error([0, 1], [0.25, 0.5])
    (0.0, 0.375)
    """
    positive, p = probability_column(y, probability)
    w = weight_column(weight, len(p))
    weights: NDArray[Any] = np.ones(len(p), np.int64) if w is None else w
    bin_of_row = _bin_of_row(p, weights, bins, binning)
    mass, predicted, positives = _sums_of_bins(bin_of_row, positive, p, weights)
    return float((mass * np.abs(predicted - positives / mass)).sum() / mass.sum())


def wilson(
    positives: ArrayLike, rows: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of a share's 95 % Wilson interval (JASA 22, 1927), which stays within 0 and 1."""
    k = np.asarray(positives, dtype=np.float64)
    n = np.asarray(rows, dtype=np.float64)
    z = NORMAL_975
    middle = (k + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * np.sqrt(k * (n - k) / n + z * z / 4)
    return np.where(k == 0, 0.0, middle - reach), np.where(k == n, 1.0, middle + reach)


@dataclass(frozen=True, kw_only=True)
class Platt:
    """Platt scaling: `slope` times the logit plus `intercept`; the order of rows does not change."""

    slope: float
    intercept: float
    kind: Literal["platt"] = "platt"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept) and self.slope > 0):
            raise DataError(
                f"a Platt calibration needs a slope above 0 and a finite intercept, found {self.slope:g} and "
                f"{self.intercept:g}: fit it again"
            )

    def logit(self, logit: ArrayLike) -> NDArray[np.float64]:
        """Calibrated logits, for logits of any shape."""
        return platt_logit(logit, self.slope, self.intercept)


@dataclass(frozen=True, kw_only=True)
class Isotonic:
    """Isotonic calibration: a monotone map, linear between knots and constant beyond the outer ones.

    Args:
        at: the knots' logits, increasing, [K].
        probability: the knots' probabilities, non-decreasing, strictly within 0 and 1, [K].
    """

    at: tuple[float, ...]
    probability: tuple[float, ...]
    kind: Literal["isotonic"] = "isotonic"

    def __post_init__(self) -> None:
        logits = np.asarray(self.at)
        p = np.asarray(self.probability)
        is_paired = len(logits) == len(p) > 0
        is_rising = np.isfinite(logits).all() and (np.diff(logits) > 0).all()
        is_monotone = ((p > 0) & (p < 1)).all() and (np.diff(p) >= 0).all()
        if not (is_paired and is_rising and is_monotone):
            raise DataError(
                "an isotonic calibration needs increasing logits with non-decreasing probabilities within 0 and 1: "
                "fit it again"
            )

    def logit(self, logit: ArrayLike) -> NDArray[np.float64]:
        """Calibrated logits, for logits of any shape."""
        return isotonic_logit(logit, self.at, self.probability)


# Both are part of exported programs too (`fieldwise.bundle.standalone`).


def platt_logit(logit: ArrayLike, slope: float, intercept: float) -> NDArray[np.float64]:
    """Logits calibrated by Platt scaling."""
    z: NDArray[np.float64] = slope * np.asarray(logit, dtype=np.float64) + intercept
    return z


def isotonic_logit(
    logit: ArrayLike, at: Sequence[float], probability: Sequence[float]
) -> NDArray[np.float64]:
    """Logits calibrated by a map with these knots."""
    p = np.interp(np.asarray(logit, dtype=np.float64), at, probability)
    z: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return z


Calibration = Platt | Isotonic


def predictions(
    score: NDArray[np.float64], label: Label, calibration: Calibration | None
) -> NDArray[np.float64]:
    """A label's scores as probabilities, calibrated if it has a calibration, or as numbers within its range.

    >>> label = Label("price", task="regression", range=(0, 500), scale=100)
    >>> predictions(np.array([-0.5, 1.25]), label, None).tolist()
    [0.0, 125.0]
    >>> predictions(np.array([0.0]), Label("liked"), None).tolist()
    [0.5]
    """
    score = label.predicted(score)
    if calibration is not None:
        score = calibration.logit(score)
    return sigmoid(score) if label.task == "binary" else score


def fit_platt(y: ArrayLike, logit: ArrayLike, weight: ArrayLike | None = None) -> Platt:
    """The maximum-likelihood line over logits (Platt scaling).

    Platt, Probabilistic Outputs for Support Vector Machines, 1999, with his targets (P + 1) / (P +
    2) for the P positives and 1 / (M + 2) for the M negatives, which keep the line finite if scores
    separate the classes; fitted by scikit-learn's logistic regression on both classes of every row,
    weighted by its target, and by the rows' weights if there are some: P and M are then sums of
    weights. The rows must be others than those of training.

    Errors:
        DataError: one class only, one score only, scores that decrease with the label, lengths that
            differ, NaN.
    """
    # here, since metrics do not need scikit-learn
    from sklearn.linear_model import LogisticRegression

    z, target, mass = _rows_to_fit(y, logit, weight)
    center = float(z.mean())
    scale = float(z.std())
    x = np.tile((z - center) / scale, 2)[:, None]
    labels = np.repeat([1, 0], len(z))
    fitted = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    fitted.fit(x, labels, np.concatenate([mass * target, mass * (1 - target)]))
    slope = float(fitted.coef_[0, 0]) / scale
    if slope <= 0:
        raise DataError(
            f"Platt's calibration needs scores that increase with the label, found a slope of {slope:.3g} over "
            f"{len(z):,} rows: the model does not rank these rows; use isotonic or train it again"
        )
    return Platt(slope=slope, intercept=float(fitted.intercept_[0]) - slope * center)


def fit_isotonic(y: ArrayLike, logit: ArrayLike, weight: ArrayLike | None = None) -> Isotonic:
    """Isotonic regression of the labels on the logit, with linear interpolation between its steps.

    Zadrozny and Elkan, KDD 2002, by pool adjacent violators (scikit-learn). Labels are Platt's
    targets (`fit_platt`), so that no probability is 0 or 1, which would make the logloss infinite
    if it is wrong once.

    Errors:
        DataError: one class only, one score only, lengths that differ, NaN.
    """
    from sklearn.isotonic import IsotonicRegression  # here, since metrics do not need scikit-learn

    z, target, mass = _rows_to_fit(y, logit, weight)
    fitted = IsotonicRegression(out_of_bounds="clip").fit(z, target, mass)
    return Isotonic(
        at=tuple(np.asarray(fitted.X_thresholds_, np.float64).tolist()),
        probability=tuple(np.asarray(fitted.y_thresholds_, np.float64).tolist()),
    )


METHODS: dict[Method, Callable[[ArrayLike, ArrayLike, ArrayLike | None], Calibration]] = {
    "platt": fit_platt,
    "isotonic": fit_isotonic,
}


def _rows_to_fit(
    y: ArrayLike, logit: ArrayLike, weight: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The logits, Platt's targets in place of labels 1 and 0, and the weights, 1 if there are none."""
    positive, z = labelled_column(y, logit, "logits")
    require_both_classes(positive, "a calibration")
    if z.min() == z.max():
        raise DataError(
            f"a calibration needs scores that differ, but all {len(z):,} rows have {z[0]:g}"
        )
    mass = weight_column(weight, len(positive))
    if mass is None:
        mass = np.ones(len(positive))
    ones = float(mass[positive].sum())
    zeros = float(mass[~positive].sum())
    return z, np.where(positive, (ones + 1) / (ones + 2), 1 / (zeros + 2)), mass
