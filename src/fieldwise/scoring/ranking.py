"""Which rows are the best: the one rule by which recommendations are ordered."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["best_places"]


def best_places(score: ArrayLike, k: int, place: ArrayLike | None = None) -> NDArray[np.int64]:
    """The k best of N rows, best first: by score, highest first, and of equal scores in the catalogue's order.

    `recommend`, the server, both stages of a cascade, similar items and the ranking metrics order by this function. A
    score is what a network gives (a logit, or a number): a calibration and a label's range never turn the order round,
    but may give several scores one prediction, among which the scores decide. NaN comes after every number.

    Args:
        score: of each row, [N].
        k: how many rows; all where there are fewer.
        place: where each row stands in the catalogue, [N]; the rows' own order where left out.

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
