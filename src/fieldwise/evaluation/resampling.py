"""Metrics of resamples, by how often each row is drawn, without sorting each of them.

Letters: N rows, K columns of scores, T runs of ties. A form takes labels [N] and finite scores [K, N]. A
count is multiplied by the row's weight, if it has one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwise.evaluation.binary import sigmoid
from fieldwise.evaluation.calibration import BINS, mass_bins

MetricOfCounts = Callable[[NDArray[Any]], NDArray[np.float64]]
"""A function from each row's count [N] to the metric of each column [K]."""
Resampling = Callable[[NDArray[np.float64], NDArray[np.float64]], MetricOfCounts]
"""A function from labels [N] and scores [K, N] to their metric by counts."""


def resampled_ece(y: NDArray[np.float64], scores: NDArray[np.float64]) -> MetricOfCounts:
    """The expected calibration error of the drawn rows, in bins of equally many of them."""
    columns = [_SortedRows.of(p, p - (y == 1)) for p in sigmoid(scores)]
    return lambda counts: np.array([rows.calibration_error(counts) for rows in columns])


def resampled_auc(y: NDArray[np.float64], scores: NDArray[np.float64]) -> MetricOfCounts:
    """AUC of the drawn rows."""
    columns = [_SortedRows.of(column, y == 1) for column in scores]
    return lambda counts: np.array([rows.auc(counts) for rows in columns])


def resampled_average_precision(
    y: NDArray[np.float64], scores: NDArray[np.float64]
) -> MetricOfCounts:
    """Average precision of the drawn rows."""
    columns = [_SortedRows.of(column, y == 1) for column in scores]
    return lambda counts: np.array([rows.average_precision(counts) for rows in columns])


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

    def _sums(self, counts: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The number of drawn rows in each run, and the sum of their values, [T] each."""
        drawn = counts[self.order]
        return np.add.reduceat(drawn, self.ties), np.add.reduceat(drawn * self.values, self.ties)

    def calibration_error(self, counts: NDArray[Any]) -> float:
        """ECE, of values that are each row's probability minus its label."""
        rows, gaps = self._sums(counts)
        gap_of_bin = np.bincount(mass_bins(rows, BINS), gaps)
        return float(np.abs(gap_of_bin).sum() / counts.sum())

    def auc(self, counts: NDArray[Any]) -> float:
        """AUC, of values that say which rows are positive; pairs are counted in integers, as in `ranking.auc`."""
        rows, positives = self._sums(counts)
        negatives = rows - positives
        below = np.cumsum(negatives) - negatives
        wins: float = (positives * (2 * below + negatives)).sum().item()
        pairs: float = positives.sum().item() * negatives.sum().item()
        return wins / (2 * pairs)

    def average_precision(self, counts: NDArray[Any]) -> float:
        """The mean over positives of the precision among rows with at least their score."""
        rows, positives = self._sums(counts)
        positives = positives[::-1]
        rows = rows[::-1]
        rows_above = np.cumsum(rows)
        precision = np.cumsum(positives) / np.where(rows_above > 0, rows_above, 1)
        return float((positives * precision).sum() / positives.sum())
