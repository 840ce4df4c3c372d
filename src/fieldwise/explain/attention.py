"""How maps of attention weights are read: when weights count as uniform, and which weight is the darkest."""

from collections.abc import Iterable, Sequence

import numpy as np

UNIFORM_TOLERANCE = 0.1
"""Greatest difference of a uniform weight from the equal weights, as a share of them."""
DARKEST_MULTIPLE = 3.0
"""Multiple of the equal weights that has the darkest shade, unless a weight is larger."""


def pair_square(
    pairs: Iterable[Sequence[int]], weights: Sequence[float] | np.ndarray, fields: int
) -> np.ndarray:
    """The weights of pairs of fields as a symmetric map [fields, fields], NaN where there is no pair."""
    square = np.full((fields, fields), np.nan)
    for (i, j), weight in zip(pairs, weights, strict=True):
        square[i, j] = weight
        square[j, i] = weight
    return square


def darkest(weights: np.ndarray, equal: float) -> float:
    """The weight of the darkest shade: three times the equal ones (at most 1), or the largest if it is above that."""
    return max(float(weights.max()), min(1.0, DARKEST_MULTIPLE * equal))


def uniform_text(weights: np.ndarray, equal: float) -> str:
    """A sentence about uniform weights, all within 10 % of the equal ones; empty if they are not."""
    if np.any(np.abs(weights - equal) > UNIFORM_TOLERANCE * equal):
        return ""
    percent = f"{100 * UNIFORM_TOLERANCE:.0f} %"
    span = f"{equal:.4f} ({weights.min():.4f} to {weights.max():.4f})"
    return f"attention is uniform: all weights are within {percent} of the equal ones, {span}"
