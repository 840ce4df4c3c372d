"""Checks of the arrays given to metrics, and metrics of logits over a whole split. Letter: N rows.

`weight` holds row weights. For metrics of probabilities see scikit-learn: `log_loss`,
`accuracy_score` and others.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError, Row


def finite_column(values: ArrayLike, what: str, rows: int | None = None) -> NDArray[np.float64]:
    """The values as finite float64 [N], `rows` of them if that is given; `what` names them in errors."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(
            f"{what} must be one-dimensional, found shape {array.shape}; flatten them first"
        )
    if array.size == 0:
        raise DataError(
            f"a metric needs at least one row, but {what} are empty; check the split they come from"
        )
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{what} must be numbers, found an array of {array.dtype}; convert them first"
        )
    numbers = array.astype(np.float64, copy=False)
    broken = ~np.isfinite(numbers)
    if broken.any():
        row = int(broken.argmax())
        raise DataError(
            f"{what} must be finite, found {numbers[row]} in ",
            Row(row),
            f", one of {int(broken.sum())} such rows; fix their origin",
        )
    if rows is not None and rows != len(numbers):
        raise DataError(
            f"{what} must be as many as the labels, found {len(numbers)} for {rows} labels"
        )
    return numbers


def paired_columns(
    y: ArrayLike, other: ArrayLike, what: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Labels and other values, both as finite float64 [N] of the same length."""
    labels = finite_column(y, "labels")
    return labels, finite_column(other, what, len(labels))


def labels_of(y: ArrayLike) -> NDArray[np.bool_]:
    """Which rows are positive, [N]; labels other than 0 and 1 raise a DataError."""
    labels = finite_column(y, "labels")
    positive: NDArray[np.bool_] = labels == 1
    rule = "labels of a binary metric must be 0 or 1"
    fix = "; apply the label's positive rule first"
    _refuse(~(positive | (labels == 0)), labels, rule, fix)
    return positive


def _refuse(
    wrong: NDArray[np.bool_], values: NDArray[np.float64], rule: str, fix: str = ""
) -> None:
    """Raise a DataError that names the first of the rows with a wrong value, if there is one."""
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{rule}, found {values[row]:g} in ", Row(row), fix)


def labelled_column(
    y: ArrayLike, other: ArrayLike, what: str
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which rows are positive, and the other values as finite float64, both [N]."""
    positive = labels_of(y)
    return positive, finite_column(other, what, len(positive))


def probability_column(
    y: ArrayLike, probability: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which rows are positive, and the probabilities, each within [0, 1]; both [N]."""
    positive, p = labelled_column(y, probability, "probabilities")
    fix = "; if these are logits, apply the sigmoid or use the metric for logits"
    _refuse((p < 0) | (p > 1), p, "probabilities must lie in [0, 1]", fix)
    return positive, p


def weight_column(weight: ArrayLike | None, rows: int) -> NDArray[np.float64] | None:
    """Weights of rows as float64 [N]; None if there are none. One below 0, or none above 0, raises a DataError."""
    if weight is None:
        return None
    array = np.asarray(weight)
    if array.shape != (rows,):
        raise DataError(
            f"weights must be one number for each of {rows} rows, found shape {array.shape}"
        )
    numbers = finite_column(array, "weights")
    _refuse(numbers < 0, numbers, "weights must not be negative")
    if not numbers.any():
        raise DataError(
            f"some row must have a weight above 0, but the weights of all {rows} rows are zero"
        )
    return numbers


def require_both_classes(positive: NDArray[np.bool_], metric: str) -> None:
    """Raise a DataError if all rows have one class, for which `metric` is undefined."""
    count = int(positive.sum())
    if count in (0, len(positive)):
        rows = "the only row has" if len(positive) == 1 else f"all {len(positive)} rows have"
        raise DataError(
            f"{metric} needs rows of both classes, but {rows} label {int(count > 0)}; use a larger or a stratified "
            "split, or check the label's positive rule"
        )


def sigmoid(logit: ArrayLike) -> NDArray[np.float64]:
    """Probabilities of logits, in float64, without overflow.

    >>> sigmoid([-1000.0, 0.0, 1000.0]).tolist()
    [0.0, 0.5, 1.0]
    """
    z = np.asarray(logit, dtype=np.float64)
    small = np.exp(-np.abs(z))
    p: NDArray[np.float64] = np.where(z >= 0, 1.0, small) / (1.0 + small)
    return p


def logloss_from_logits(
    y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None
) -> float:
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
    return float(np.average(row_losses(positive, z), weights=weight_column(weight, len(positive))))


def normalized_entropy_from_logits(
    y: ArrayLike, logit: ArrayLike, *, weight: ArrayLike | None = None
) -> float:
    """Logloss divided by the entropy of the positive rate: below 1 is better than always predicting that rate.

    He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, eq. 1. The
    rate is that of `y`.

    Errors:
        DataError: as for `logloss_from_logits`, and one class only (the entropy is then 0).

    >>> rate = np.log(0.25 / 0.75)
    >>> round(normalized_entropy_from_logits([1, 0, 0, 0], [rate] * 4), 12)
    1.0
    """
    positive, z = labelled_column(y, logit, "logits")
    w = weight_column(weight, len(positive))
    require_both_classes(positive if w is None else positive[w > 0], "normalized entropy")
    return float(np.average(row_losses(positive, z), weights=w)) / entropy(
        float(np.average(positive, weights=w))
    )


def entropy(rate: float) -> float:
    """The logloss of always predicting the rows' positive rate, which is not 0 or 1."""
    return -(rate * float(np.log(rate)) + (1 - rate) * float(np.log1p(-rate)))


def row_losses(positive: NDArray[np.bool_], z: NDArray[np.float64]) -> NDArray[np.float64]:
    """The negative log-likelihood of each row, from logits [N] or [K, N]."""
    against = np.where(positive, -z, z)
    # log(1 + exp(x)) without overflow; np.logaddexp gives the same and takes three times as long.
    losses: NDArray[np.float64] = np.maximum(against, 0.0) + np.log1p(np.exp(-np.abs(against)))
    return losses
