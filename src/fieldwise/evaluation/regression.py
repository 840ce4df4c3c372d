"""How far predicted numbers are from their targets, over a whole split, in the targets' unit. Letter: N rows."""

import numpy as np
from numpy.typing import ArrayLike

from fieldwise.evaluation.checks import paired_columns

__all__ = ["mae", "rmse"]


def rmse(y: ArrayLike, prediction: ArrayLike) -> float:
    """Root of the mean squared error.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity.

    >>> rmse([1, 2, 3, 4], [1, 2, 3, 6])
    1.0
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return float(np.sqrt(np.mean(np.square(predicted - target))))


def mae(y: ArrayLike, prediction: ArrayLike) -> float:
    """Mean absolute error; errors as for `rmse`.

    >>> mae([1, 2, 3, 4], [1, 2, 3, 6])
    0.5
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return float(np.mean(np.abs(predicted - target)))
