"""How good probabilities and yes-or-no decisions are, over a whole split. Letter: N rows.

A row is predicted positive where its probability is at or above the threshold.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.checks import labelled_column, probability_column, require_both_classes

__all__ = [
    "accuracy",
    "f1",
    "logloss",
    "logloss_from_logits",
    "normalized_entropy",
    "normalized_entropy_from_logits",
    "precision",
    "recall",
    "sigmoid",
]

CLIP = float(np.finfo(np.float64).eps)


def sigmoid(logit: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of logits, in float64, without overflow.

    >>> sigmoid([-1000.0, 0.0, 1000.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    z = np.asarray(logit, dtype=np.float64)
    small = np.exp(-np.abs(z))
    p: NDArray[np.float64] = np.where(z >= 0, 1.0, small) / (1.0 + small)
    return p


def logloss(y: ArrayLike, probability: ArrayLike) -> float:
    """Mean negative log-likelihood in nats.

    Probabilities are clipped to [eps, 1 - eps] with eps = 2.2e-16, that of float64 whatever type comes in; so a row
    that is certain and wrong costs 36.04. Where logits are at hand, `logloss_from_logits` clips nothing.

    Args:
        y: labels 0 and 1, [N]; one class is enough.
        probability: within [0, 1], [N].

    Errors:
        DataError: no row, lengths that differ, NaN, a probability outside [0, 1].

    >>> round(logloss([1, 0], [0.8, 0.5]), 6)
    0.458145
    """
    positive, p = probability_column(y, probability)
    return _logloss(positive, p)


def logloss_from_logits(y: ArrayLike, logit: ArrayLike) -> float:
    """Mean negative log-likelihood in nats, from logits: log(1 + exp(-z)) for positives, log(1 + exp(z)) for negatives.

    >>> logloss_from_logits([0, 1], [1000.0, 1000.0])
    500.0
    """
    positive, z = labelled_column(y, logit, "logits")
    return _logloss_from_logits(positive, z)


def normalized_entropy(y: ArrayLike, probability: ArrayLike) -> float:
    """Logloss over the entropy of the mean rate: below 1 is better than always saying that rate.

    He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, eq. 1. The rate is that of `y`
    itself; clipping as in `logloss`.

    Errors:
        DataError: as for `logloss`, and one class only (the entropy is then 0).

    >>> normalized_entropy([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25])
    1.0
    """
    positive, p = probability_column(y, probability)
    return _logloss(positive, p) / _rate_entropy(positive)


def normalized_entropy_from_logits(y: ArrayLike, logit: ArrayLike) -> float:
    """`normalized_entropy` from logits, where nothing is clipped."""
    positive, z = labelled_column(y, logit, "logits")
    return _logloss_from_logits(positive, z) / _rate_entropy(positive)


def accuracy(y: ArrayLike, probability: ArrayLike, *, threshold: float = 0.5) -> float:
    """Share of rows whose decision is right.

    >>> accuracy([1, 0, 1, 0], [0.9, 0.5, 0.4, 0.1])
    0.5
    """
    positive, p = probability_column(y, probability)
    return float(np.mean(positive == (p >= threshold)))


def precision(y: ArrayLike, probability: ArrayLike, *, threshold: float = 0.5, zero_division: float = 0.0) -> float:
    """Share of the rows predicted positive that are; `zero_division` where no row is predicted positive."""
    right, predicted, _ = _decisions(y, probability, threshold)
    return right / predicted if predicted else zero_division


def recall(y: ArrayLike, probability: ArrayLike, *, threshold: float = 0.5, zero_division: float = 0.0) -> float:
    """Share of the positive rows that are predicted so; `zero_division` where no row is positive."""
    right, _, positives = _decisions(y, probability, threshold)
    return right / positives if positives else zero_division


def f1(y: ArrayLike, probability: ArrayLike, *, threshold: float = 0.5, zero_division: float = 0.0) -> float:
    """Harmonic mean of precision and recall; `zero_division` where no row is positive or predicted so.

    >>> round(f1([1, 0, 1, 0], [0.9, 0.6, 0.4, 0.1]), 3)
    0.5
    """
    right, predicted, positives = _decisions(y, probability, threshold)
    return 2 * right / (predicted + positives) if predicted + positives else zero_division


def _logloss(positive: NDArray[np.bool_], p: NDArray[np.float64]) -> float:
    clipped = np.clip(p, CLIP, 1 - CLIP)
    # log1p(-p) keeps the digits of small p that log(1 - p) loses.
    return float(-np.mean(np.where(positive, np.log(clipped), np.log1p(-clipped))))


def _logloss_from_logits(positive: NDArray[np.bool_], z: NDArray[np.float64]) -> float:
    against = np.where(positive, -z, z)
    # log(1 + exp(x)) without overflow; np.logaddexp gives the same and takes three times as long.
    return float(np.mean(np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against)))))


def _rate_entropy(positive: NDArray[np.bool_]) -> float:
    require_both_classes(positive, "normalized entropy")
    rate = float(positive.mean())
    return -(rate * float(np.log(rate)) + (1 - rate) * float(np.log1p(-rate)))


def _decisions(y: ArrayLike, probability: ArrayLike, threshold: float) -> tuple[int, int, int]:
    """Rows predicted positive rightly, rows predicted positive, rows that are positive."""
    positive, p = probability_column(y, probability)
    predicted = p >= threshold
    return int((positive & predicted).sum()), int(predicted.sum()), int(positive.sum())
