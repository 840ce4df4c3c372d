"""Ranking by score: the one rule for all recommendations."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["best_places"]


def best_places(score: ArrayLike, k: int, place: ArrayLike | None = None) -> NDArray[np.int64]:
    """The k best of N rows, best first: by score, and for equal scores in the catalogue's order.

    `recommend`, the server, both stages of a cascade, similar items and the ranking metrics use this function. Scores
    are network outputs (logits or numbers): a calibration and a label's range never reverse the order, but may map
    several scores to one prediction, among which the scores decide. NaN comes last.

    Args:
        score: score of each row, [N].
        k: number of rows; all if there are fewer.
        place: position of each row in the catalogue, [N]; the rows' own order if omitted.

    Returns:
        Row numbers [min(k, N)].

    >>> best_places([1.0, 3.0, float("nan"), 1.0, 3.0], 4).tolist()
    [1, 4, 0, 3]
    >>> best_places([1.0, 3.0, 1.0, 3.0], 3, place=[7, 6, 5, 4]).tolist()
    [3, 1, 2]
    """
    falling = -np.asarray(score)
    rows = np.arange(len(falling))
    if 0 < k < len(rows):
        last = np.partition(falling, k - 1)[k - 1]  # a full sort of a large catalogue takes ten times as long
        rows = rows if np.isnan(last) else np.flatnonzero(falling <= last)
    tie = rows if place is None else np.asarray(place)[rows]
    best: NDArray[np.int64] = rows[np.lexsort((tie, falling[rows]))[: max(k, 0)]]
    return best
