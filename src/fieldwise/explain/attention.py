"""When attention says nothing: weights that are all nearly equal, and a scale of shades that does not hide it."""

import numpy as np

__all__ = ["darkest", "is_uniform", "uniform_text"]

UNIFORM = 0.1  # greatest difference of a uniform weight from the equal weights, as a share of them
DARK = 3.0  # multiple of the equal weights that has the darkest shade, unless a weight is larger


def is_uniform(weights: np.ndarray, equal: float) -> bool:
    """Whether all weights are within 10 % of the equal ones.

    >>> is_uniform(np.array([0.1677, 0.1657]), 1 / 6), is_uniform(np.array([0.2, 0.13]), 1 / 6)
    (True, False)
    """
    return bool(np.all(np.abs(weights - equal) <= UNIFORM * equal))


def darkest(weights: np.ndarray, equal: float) -> float:
    """The weight of the darkest shade: three times the equal ones (at most 1), or the largest if it is above that.

    >>> darkest(np.array([0.1677, 0.1657]), 1 / 6), darkest(np.array([0.7, 0.02]), 1 / 6)
    (0.5, 0.7)
    """
    return max(float(weights.max()), min(1.0, DARK * equal))


def uniform_text(weights: np.ndarray, equal: float) -> str:
    """A sentence about uniform weights.

    >>> uniform_text(np.array([0.1677, 0.1657]), 1 / 6)
    'attention is uniform: all weights are within 10 % of the equal ones, 0.1667 (0.1657 to 0.1677)'
    """
    known = f"{equal:.4f} ({weights.min():.4f} to {weights.max():.4f})"
    return f"attention is uniform: all weights are within {100 * UNIFORM:.0f} % of the equal ones, {known}"
