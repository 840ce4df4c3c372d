"""Measures of calibration error: reliability diagrams, ECE and Brier score.

Letters: N rows, B bins, T distinct values.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError
from fieldwise.evaluation.checks import probability_column, weight_column

__all__ = [
    "BINS",
    "Binning",
    "Reliability",
    "brier",
    "calibration_error",
    "calibration_error_by_chance",
    "mass_bins",
    "reliability",
    "wilson",
]

Binning = Literal["count", "width"]
BINS = 15
NORMAL_975 = 1.959963984540054  # the 97.5 % quantile of the standard normal distribution


def brier(y: ArrayLike, probability: ArrayLike) -> float:
    """Mean squared difference of probability and label (Brier, 1950).

    >>> brier([1, 0], [0.5, 0.5])
    0.25
    """
    positive, p = probability_column(y, probability)
    return float(np.mean(np.square(p - positive)))


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """A reliability diagram: rows in bins of similar probability, without empty bins.

    Args:
        rows: number of rows per bin, [B].
        predicted: mean probability per bin, [B].
        observed: share of positives per bin, [B].
        low: lower end of the share's 95 % interval (`wilson`), [B].
        high: upper end, [B].
        binning: `count` or `width`.
    """

    rows: NDArray[np.int64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    binning: Binning

    @property
    def error(self) -> float:
        """Expected calibration error: the mean over rows of each bin's |predicted - observed|."""
        return float((self.rows * np.abs(self.predicted - self.observed)).sum() / self.rows.sum())

    def plot(self, ax: Any = None) -> Any:
        """Plot shares of positives by predicted probability on Matplotlib axes, and return the axes."""
        from fieldwise.notebook.plots import plot_calibration

        return plot_calibration(self, ax)


def reliability(y: ArrayLike, probability: ArrayLike, *, bins: int = BINS, binning: Binning = "count") -> Reliability:
    """The share of positive rows by predicted probability, in bins.

    Args:
        y: labels 0 and 1, [N].
        probability: within [0, 1], [N].
        bins: number of bins, at least 1.
        binning: `count` makes bins of equally many rows, but never splits rows of equal probability, so there may be
            fewer bins; `width` divides [0, 1] into bins of equal width (Guo et al., ICML 2017).

    Errors:
        DataError: no row, lengths that differ, NaN, a probability outside [0, 1].

    >>> found = reliability([0, 1, 1, 1], [0.1, 0.1, 0.9, 0.9], bins=2)
    >>> found.observed.tolist(), round(found.error, 3)
    ([0.5, 1.0], 0.25)
    """
    positive, p = probability_column(y, probability)
    if bins < 1:
        raise DataError(f"bins must be at least 1, found {bins}")
    if binning == "width":
        place = np.minimum((p * bins).astype(np.int64), bins - 1)
    else:
        place = _count_bins(p, bins, np.ones(len(p), np.int64))
    rows = np.bincount(place)
    there = rows > 0
    positives, total = np.bincount(place, positive)[there], np.bincount(place, p)[there]
    rows = rows[there]
    low, high = wilson(positives, rows)
    return Reliability(
        rows=rows, predicted=total / rows, observed=positives / rows, low=low, high=high, binning=binning
    )


def _count_bins(p: NDArray[np.float64], bins: int, weight: NDArray[np.generic]) -> NDArray[np.int64]:
    """The bin of each row, for bins of about equal weight that do not split rows of equal probability."""
    order = np.argsort(p, kind="stable")
    ties = np.flatnonzero(np.concatenate([[True], np.diff(p[order]) > 0]))
    place = np.empty(len(p), np.int64)
    of_tie = mass_bins(np.add.reduceat(weight[order], ties), bins)
    place[order] = np.repeat(of_tie, np.diff(ties, append=len(p)))
    return place


def mass_bins(counts: ArrayLike, bins: int = BINS) -> NDArray[np.int64]:
    """The bin of each distinct value, from low to high, for bins of about equally many rows.

    A value belongs to the bin of its middle row, so that rows of equal value are never split.

    Args:
        counts: number of rows, or weight, of each distinct value, [T]; may be 0.
        bins: number of bins.

    >>> mass_bins([1, 1, 4, 2], 2).tolist()
    [0, 0, 1, 1]
    """
    rows = np.asarray(counts)
    upto = np.cumsum(rows)
    place: NDArray[np.int64] = ((2 * upto - rows) * bins // (2 * (upto[-1] or 1))).astype(np.int64)
    return np.minimum(place, bins - 1)


def calibration_error(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "count",
    weight: ArrayLike | None = None,
) -> float:
    """Expected calibration error (ECE): the mean difference of probabilities and shares of positives, over bins.

    The mean over rows of each bin's |mean probability - share of positives| (Naeini et al., AAAI 2015), with the bins
    of `reliability`. Sampling noise keeps it above 0, more so with few rows: see `calibration_error_by_chance`. With
    row weights `weight` [N], bins have equal weight.

    >>> calibration_error([0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]), calibration_error([0, 1], [0.25, 0.5])
    (0.0, 0.375)
    """
    if weight is None:
        return reliability(y, probability, bins=bins, binning=binning).error
    positive, p = probability_column(y, probability)
    w = weight_column(weight, len(p))
    place = _count_bins(p, bins, w) if binning == "count" else np.minimum((p * bins).astype(np.int64), bins - 1)
    return float(np.abs(np.bincount(place, w * (p - positive))).sum() / w.sum())


def calibration_error_by_chance(probability: ArrayLike, *, bins: int = BINS) -> float:
    """The expected `calibration_error` of these probabilities if they were correct, due to sampling noise only.

    A bin's gap is then about normal, with mean absolute value sqrt(2 / pi) times its standard deviation. Only an error
    above this is evidence of miscalibration.

    Args:
        probability: within [0, 1], [N].
        bins: number of bins of equally many rows.

    >>> p = np.random.default_rng(0).uniform(0.1, 0.3, 9000)
    >>> round(calibration_error_by_chance(p), 3), round(calibration_error_by_chance(p[:900]), 3)
    (0.013, 0.041)
    """
    p = np.sort(probability_column(np.zeros(np.shape(probability)), probability)[1])
    edges = np.arange(bins + 1) * len(p) // bins
    variance = np.diff(np.concatenate([[0.0], np.cumsum(p * (1 - p))])[edges]).clip(min=0)
    return float(math.sqrt(2 / math.pi) * np.sqrt(variance).sum() / len(p))


def wilson(positives: ArrayLike, rows: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of a share's 95 % Wilson interval (JASA 22, 1927), which stays within 0 and 1.

    >>> low, high = wilson([0, 5], [10, 10])
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237], [0.278, 0.763])
    """
    k, n = np.asarray(positives, dtype=np.float64), np.asarray(rows, dtype=np.float64)
    z = NORMAL_975
    middle = (k + z * z / 2) / (n + z * z)
    reach = z / (n + z * z) * np.sqrt(k * (n - k) / n + z * z / 4)
    return np.where(k == 0, 0.0, middle - reach), np.where(k == n, 1.0, middle + reach)
