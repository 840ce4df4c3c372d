"""Checks of the arrays given to metrics. Letter: N rows."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError

__all__ = [
    "finite_column",
    "labelled_column",
    "labels_of",
    "paired_columns",
    "probability_column",
    "require_both_classes",
    "weight_column",
]


def finite_column(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """The values as float64 [N]; `what` names them in errors.

    Errors:
        DataError: no row, more than one dimension, not numbers, NaN or infinity.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{what} must be one-dimensional, found shape {array.shape}; flatten them first")
    if array.size == 0:
        raise DataError(f"a metric needs at least one row, but {what} are empty; check the split they come from")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} must be numbers, found an array of {array.dtype}; convert them first")
    numbers = array.astype(np.float64, copy=False)
    broken = ~np.isfinite(numbers)
    if broken.any():
        row = int(broken.argmax())
        raise DataError(
            f"{what} must be finite, found {numbers[row]} in row {row} (counting from 0), one of {int(broken.sum())} "
            "such rows; fix their origin"
        )
    return numbers


def paired_columns(y: ArrayLike, other: ArrayLike, what: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Labels and other values, both as finite float64 [N] of the same length."""
    labels, numbers = finite_column(y, "labels"), finite_column(other, what)
    _same_length(len(labels), len(numbers), what)
    return labels, numbers


def labels_of(y: ArrayLike) -> NDArray[np.bool_]:
    """Which rows are positive, [N]; labels other than 0 and 1 raise a DataError."""
    labels = finite_column(y, "labels")
    positive: NDArray[np.bool_] = labels == 1
    outside = ~(positive | (labels == 0))
    if outside.any():
        row = int(outside.argmax())
        raise DataError(
            f"labels of a binary metric must be 0 or 1, found {labels[row]:g} in row {row} (counting from 0); apply "
            "the label's positive rule first"
        )
    return positive


def labelled_column(y: ArrayLike, other: ArrayLike, what: str) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which rows are positive, and the other values as finite float64, both [N]."""
    positive, numbers = labels_of(y), finite_column(other, what)
    _same_length(len(positive), len(numbers), what)
    return positive, numbers


def probability_column(y: ArrayLike, probability: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Which rows are positive, and the probabilities, each within [0, 1]; both [N]."""
    positive, p = labelled_column(y, probability, "probabilities")
    outside = (p < 0) | (p > 1)
    if outside.any():
        row = int(outside.argmax())
        raise DataError(
            f"probabilities must lie in [0, 1], found {p[row]:g} in row {row} (counting from 0); if these are logits, "
            "apply the sigmoid or use the metric for logits"
        )
    return positive, p


def weight_column(weight: ArrayLike, rows: int) -> NDArray[np.float64]:
    """Weights of rows as float64 [N].

    Errors:
        DataError: not one per row, NaN or infinity, one below 0, or none above 0.

    >>> weight_column([1, 0], 2).tolist()
    [1.0, 0.0]
    """
    array = np.asarray(weight)
    if array.shape != (rows,):
        raise DataError(f"weights must be one number for each of {rows} rows, found shape {array.shape}")
    numbers = finite_column(array, "weights")
    if (numbers < 0).any():
        row = int((numbers < 0).argmax())
        raise DataError(f"weights must not be negative, found {numbers[row]:g} in row {row} (counting from 0)")
    if not numbers.any():
        raise DataError(f"some row must have a weight above 0, but the weights of all {rows} rows are zero")
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


def _same_length(labels: int, others: int, what: str) -> None:
    if labels != others:
        raise DataError(f"{what} must be as many as the labels, found {others} for {labels} labels")
