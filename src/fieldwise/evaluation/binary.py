"""Metrics of logits and binary decisions over a whole split. Letter: N rows.

`weight` holds row weights. For metrics of probabilities see scikit-learn: `log_loss`, `accuracy_score` and others.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.checks import labelled_column, require_both_classes, weight_column

__all__ = ["decision_metrics", "logloss_from_logits", "normalized_entropy_from_logits", "sigmoid"]


def sigmoid(logit: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of logits, in float64, without overflow.

    >>> sigmoid([-1000.0, 0.0, 1000.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    z = np.asarray(logit, dtype=np.float64)
    small = np.exp(-np.abs(z))
    p: NDArray[np.float64] = np.where(z >= 0, 1.0, small) / (1.0 + small)
    return p


def logloss_from_logits(y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean negative log-likelihood in nats, from logits: log(1 + exp(-z)) for positives, log(1 + exp(z)) for negatives.

    Args:
        y: labels 0 and 1, [N]; one class is enough.
        logit: finite logits, [N]; nothing is clipped.
        weight: row weights, at least 0, [N]; equal if omitted.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity, a weight below 0.

    >>> logloss_from_logits([0, 1], [1000.0, 1000.0])
    500.0
    """
    positive, z = labelled_column(y, logit, "logits")
    return _logloss_from_logits(positive, z, _weights(weight, positive))


def normalized_entropy_from_logits(y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Logloss divided by the entropy of the positive rate: below 1 is better than always predicting that rate.

    He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, eq. 1. The rate is that of `y`.

    Errors:
        DataError: as for `logloss_from_logits`, and one class only (the entropy is then 0).

    >>> rate = np.log(0.25 / 0.75)
    >>> round(normalized_entropy_from_logits([1, 0, 0, 0], [rate] * 4), 12)
    1.0
    """
    positive, z = labelled_column(y, logit, "logits")
    w = _weights(weight, positive)
    return _logloss_from_logits(positive, z, w) / _rate_entropy(positive, w)


def decision_metrics(
    positive: NDArray[np.bool_], probability: NDArray[np.float64], weight: NDArray[np.float64] | None
) -> dict[str, float]:
    """Accuracy, precision, recall and F1 at probability .5, which is positive; 0 where one would divide by zero.

    Of a million rows scikit-learn's four functions take five to eight times as long.
    """
    predicted = probability >= 0.5
    w = np.ones(len(positive)) if weight is None else weight
    kinds = (positive & predicted, predicted, positive)
    right, all_predicted, positives = (float(w[rows].sum()) for rows in kinds)
    return {
        "accuracy": _mean(positive == predicted, weight),
        "precision": right / all_predicted if all_predicted else 0.0,
        "recall": right / positives if positives else 0.0,
        "f1": 2 * right / (all_predicted + positives) if all_predicted + positives else 0.0,
    }


def _weights(weight: ArrayLike | None, positive: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    return None if weight is None else weight_column(weight, len(positive))


def _mean(values: NDArray[Any], weight: NDArray[np.float64] | None) -> float:
    return float(np.mean(values)) if weight is None else float(np.average(values, weights=weight))


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
