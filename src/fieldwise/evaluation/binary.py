"""Metrics of probabilities and binary decisions over a whole split. Letter: N rows.

A row is predicted positive if its probability is at least the threshold. `weight` holds row weights.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.checks import labelled_column, probability_column, require_both_classes, weight_column

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


def logloss(y: ArrayLike, probability: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood in nats.

    Probabilities are clipped to [eps, 1 - eps] with eps = 2.2e-16, the epsilon of float64, for any input type; so a
    certain and wrong row costs 36.04. `logloss_from_logits` clips nothing.

    Args:
        y: labels 0 and 1, [N]; one class is enough.
        probability: within [0, 1], [N].
        weight: row weights, at least 0, [N]; equal if omitted.

    Errors:
        DataError: no row, lengths that differ, NaN, a probability outside [0, 1], a weight below 0.

    >>> round(logloss([1, 0], [0.8, 0.5]), 6)
    0.458145
    """
    positive, p = probability_column(y, probability)
    return _logloss(positive, p, _weights(weight, positive))


def logloss_from_logits(y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood in nats, from logits: log(1 + exp(-z)) for positives, log(1 + exp(z)) for negatives.

    >>> logloss_from_logits([0, 1], [1000.0, 1000.0])
    500.0
    """
    positive, z = labelled_column(y, logit, "logits")
    return _logloss_from_logits(positive, z, _weights(weight, positive))


def normalized_entropy(y: ArrayLike, probability: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Logloss divided by the entropy of the positive rate: below 1 is better than always predicting that rate.

    He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, eq. 1. The rate is that of
    `y`; clipping as in `logloss`.

    Errors:
        DataError: as for `logloss`, and one class only (the entropy is then 0).

    >>> normalized_entropy([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25])
    1.0
    """
    positive, p = probability_column(y, probability)
    w = _weights(weight, positive)
    return _logloss(positive, p, w) / _rate_entropy(positive, w)


def normalized_entropy_from_logits(y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """`normalized_entropy` from logits, without clipping."""
    positive, z = labelled_column(y, logit, "logits")
    w = _weights(weight, positive)
    return _logloss_from_logits(positive, z, w) / _rate_entropy(positive, w)


def accuracy(y: ArrayLike, probability: ArrayLike, *, threshold: float = 0.5, weight: ArrayLike | None = None) -> float:
    """Share of rows with a correct decision.

    >>> accuracy([1, 0, 1, 0], [0.9, 0.5, 0.4, 0.1])
    0.5
    """
    positive, p = probability_column(y, probability)
    return _mean(positive == (p >= threshold), _weights(weight, positive))


def precision(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    threshold: float = 0.5,
    zero_division: float = 0.0,
    weight: ArrayLike | None = None,
) -> float:
    """Share of true positives among rows predicted positive; `zero_division` if no row is predicted positive."""
    right, predicted, _ = _decisions(y, probability, threshold, weight)
    return right / predicted if predicted else zero_division


def recall(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    threshold: float = 0.5,
    zero_division: float = 0.0,
    weight: ArrayLike | None = None,
) -> float:
    """Share of the positive rows that are predicted positive; `zero_division` if no row is positive."""
    right, _, positives = _decisions(y, probability, threshold, weight)
    return right / positives if positives else zero_division


def f1(
    y: ArrayLike,
    probability: ArrayLike,
    *,
    threshold: float = 0.5,
    zero_division: float = 0.0,
    weight: ArrayLike | None = None,
) -> float:
    """Harmonic mean of precision and recall; `zero_division` if no row is positive or predicted positive.

    >>> round(f1([1, 0, 1, 0], [0.9, 0.6, 0.4, 0.1]), 3)
    0.5
    """
    right, predicted, positives = _decisions(y, probability, threshold, weight)
    return 2 * right / (predicted + positives) if predicted + positives else zero_division


def _weights(weight: ArrayLike | None, positive: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    return None if weight is None else weight_column(weight, len(positive))


def _mean(values: NDArray[Any], weight: NDArray[np.float64] | None) -> float:
    return float(np.mean(values)) if weight is None else float(np.average(values, weights=weight))


def _logloss(positive: NDArray[np.bool_], p: NDArray[np.float64], weight: NDArray[np.float64] | None) -> float:
    clipped = np.clip(p, CLIP, 1 - CLIP)
    # log1p(-p) keeps the digits of small p that log(1 - p) loses.
    return -_mean(np.where(positive, np.log(clipped), np.log1p(-clipped)), weight)


def _logloss_from_logits(
    positive: NDArray[np.bool_], z: NDArray[np.float64], weight: NDArray[np.float64] | None
) -> float:
    against = np.where(positive, -z, z)
    # log(1 + exp(x)) without overflow; np.logaddexp gives the same and takes three times as long.
    return _mean(np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against))), weight)


def _rate_entropy(positive: NDArray[np.bool_], weight: NDArray[np.float64] | None) -> float:
    require_both_classes(positive if weight is None else positive[weight > 0], "normalized entropy")
    rate = _mean(positive, weight)
    return -(rate * float(np.log(rate)) + (1 - rate) * float(np.log1p(-rate)))


def _decisions(
    y: ArrayLike, probability: ArrayLike, threshold: float, weight: ArrayLike | None
) -> tuple[float, float, float]:
    """Counts (or weights) of true positives, of rows predicted positive, and of positive rows."""
    positive, p = probability_column(y, probability)
    predicted = p >= threshold
    kinds = (positive & predicted, predicted, positive)
    if (w := _weights(weight, positive)) is None:
        w = np.ones(len(p))
    right, all_predicted, positives = (float(w[rows].sum()) for rows in kinds)
    return right, all_predicted, positives
