"""Regression metrics over a whole split, in the targets' unit. Letter: N rows."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.checks import paired_columns, weight_column

__all__ = ["mae", "rmse"]


def rmse(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Root mean squared error, with optional row weights.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity.

    >>> rmse([1, 2, 3, 4], [1, 2, 3, 6])
    1.0
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return float(np.sqrt(_mean(np.square(predicted - target), weight)))


def mae(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean absolute error; errors as for `rmse`.

    >>> mae([1, 2, 3, 4], [1, 2, 3, 6])
    0.5
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return _mean(np.abs(predicted - target), weight)


def _mean(values: NDArray[np.float64], weight: ArrayLike | None) -> float:
    if weight is None:
        return float(np.mean(values))
    return float(np.average(values, weights=weight_column(weight, len(values))))
