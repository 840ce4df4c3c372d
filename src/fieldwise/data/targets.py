"""Means and deviations of targets, which may lie in files mapped into memory: they are read by slices."""

from collections.abc import Iterator

import numpy as np

__all__ = ["SLICE_ROWS", "deviations", "mean_target", "row_slices"]

SLICE_ROWS = 1 << 21


def row_slices(rows: int) -> Iterator[slice]:
    """Slices of at most 2,097,152 rows.

    >>> list(row_slices(5))
    [slice(0, 5, None)]
    """
    return (slice(start, min(start + SLICE_ROWS, rows)) for start in range(0, rows, SLICE_ROWS))


def mean_target(y: np.ndarray, weight: np.ndarray | None = None, *, scale: float = 1.0) -> float:
    """The weighted mean of targets [N] over their scale, in float64.

    >>> mean_target(np.array([2.0, 4.0]), np.array([3.0, 1.0]))
    2.5
    """
    if len(y) <= SLICE_ROWS:
        return float(np.average(np.asarray(y, np.float64) / scale, weights=weight))
    sums, masses = 0.0, 0.0
    for rows in row_slices(len(y)):
        values = np.asarray(y[rows], np.float64) / scale
        w = np.ones(len(values)) if weight is None else weight[rows].astype(np.float64)
        sums, masses = sums + float((values * w).sum()), masses + float(w.sum())
    return sums / masses


def deviations(y: np.ndarray) -> tuple[float, ...]:
    """The standard deviation of each label's targets [N, T].

    >>> deviations(np.array([[0.0, 1.0], [2.0, 1.0]]))
    (1.0, 0.0)
    """
    if len(y) <= SLICE_ROWS:
        return tuple(np.asarray(y, np.float64).std(axis=0).tolist())
    means = [mean_target(column) for column in y.T]
    squares = sum(np.square(np.asarray(y[rows], np.float64) - means).sum(axis=0) for rows in row_slices(len(y)))
    return tuple(np.sqrt(np.asarray(squares) / len(y)).tolist())
