"""DeLong's test of two AUCs on the same rows. Letters: N rows, P positives, M negatives, S seeds."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError
from fieldwise.evaluation.binary import labelled_column, labels_of, require_both_classes

__all__ = ["DeLong", "auc_parts", "delong"]


@dataclass(frozen=True, kw_only=True)
class DeLong:
    """Two AUCs with a test of their difference.

    Args:
        first: AUC of the first scores (the mean over seeds).
        second: that of the second.
        difference: first minus second.
        standard_error: standard error of the difference, for other rows from the same source.
        p: two-sided p-value; 1 if neither the AUCs nor the rows' contributions to them differ.
    """

    first: float
    second: float
    difference: float
    standard_error: float
    p: float


def delong(y: ArrayLike, first: ArrayLike, second: ArrayLike) -> DeLong:
    """DeLong's test of the difference between the AUCs of two scores on the same rows.

    DeLong et al., Biometrics 44(3), 1988, with mid-ranks. With several seeds the mean AUC is tested: each row's
    contribution is averaged over seeds, so the test covers variance over rows but not over seeds.

    Args:
        y: labels 0 and 1, [N].
        first: finite scores, [N], or [S, N] for several seeds.
        second: likewise; the number of seeds may differ.

    Errors:
        DataError: fewer than two rows of a class, lengths that differ, NaN or infinity.

    >>> found = delong([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8], [0.4, 0.1, 0.2, 0.8])
    >>> found.first, found.second
    (0.875, 0.75)
    """
    positive = labels_of(y)
    counts = int(positive.sum()), int((~positive).sum())
    if min(counts) < 2:
        raise DataError(
            f"DeLong's test needs two rows of each class, found {counts[0]} positive and {counts[1]} negative"
        )
    parts = [_mean_parts(positive, scores) for scores in (first, second)]
    means = [float(part[0].mean()) for part in parts]
    variance = sum(float(np.var(parts[0][k] - parts[1][k], ddof=1)) / counts[k] for k in range(2))
    difference, error = means[0] - means[1], math.sqrt(variance)
    certain = 1.0 if difference == 0 else 0.0
    p = math.erfc(abs(difference) / error / math.sqrt(2)) if error > 0 else certain
    return DeLong(first=means[0], second=means[1], difference=difference, standard_error=error, p=p)


def auc_parts(y: ArrayLike, score: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each positive's share of negatives below it [P], and each negative's of positives above it [M]; ties count half.

    The mean of either is the AUC.

    >>> auc_parts([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    (array([0.75, 1.  ]), array([1.  , 0.75]))
    """
    positive, scores = labelled_column(y, score, "scores")
    require_both_classes(positive, "AUC")
    high, low = scores[positive], scores[~positive]
    return _share_below(high, np.sort(low)), 1.0 - _share_below(low, np.sort(high))


def _share_below(x: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the sorted `others` below each x, ties counting half."""
    order = np.argsort(x, kind="stable")  # sorted queries make the searches cache-friendly
    twice = np.searchsorted(others, x[order], side="left") + np.searchsorted(others, x[order], side="right")
    share = np.empty(len(x))
    share[order] = twice / (2 * len(others))
    return share


def _mean_parts(positive: NDArray[np.bool_], scores: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    of_seeds = [auc_parts(positive, score) for score in np.atleast_2d(np.asarray(scores))]
    return np.mean([part[0] for part in of_seeds], axis=0), np.mean([part[1] for part in of_seeds], axis=0)
