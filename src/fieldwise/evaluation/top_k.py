"""Top-k ranking metrics. Letters: P positives, U users, N candidates."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.errors import DataError
from fieldwise.scoring.items import top_k_indices

TOP_K = ("hr", "ndcg", "recall")


def places(score: ArrayLike, chosen: ArrayLike, tie: ArrayLike | None = None) -> NDArray[np.int64]:
    """The ranks [P], from 1, of the candidates with numbers `chosen` [P] when all are sorted by score, highest first.

    Of equal scores the lower `tie` [N] ranks first, or without it the earlier candidate.
    """
    scores = np.asarray(score, dtype=np.float64)
    if not np.isfinite(scores).all():
        row = int((~np.isfinite(scores)).argmax())
        raise DataError(f"scores to rank by must be finite, found {scores[row]} for candidate {row} (counting from 0)")
    order = top_k_indices(scores, len(scores), tie)
    place = np.empty(len(scores), np.int64)
    place[order] = np.arange(1, len(scores) + 1)
    return place[np.asarray(chosen, dtype=np.int64)]


def top_k_metrics(place: ArrayLike, user: ArrayLike, users: int, k: int) -> dict[str, NDArray[np.float64]]:
    """Metrics of every user's first k candidates.

    - `hr`, hit rate: 1 if one of the user's positives is among them, else 0.
    - `ndcg`: the sum of 1 / log2(1 + rank) over the positives among them, divided by the maximum for the user's
      number of positives (Järvelin and Kekäläinen, TOIS 20(4), 2002, with gains of 0 and 1).
    - `recall`: the share of the user's positives that are among them; at most k / positives if there are more.

    `place` is the rank of each positive among its user's candidates, from 1, [P], and `user` whose it is, from 0 to
    U - 1, [P]; every user has at least one. The metrics have a value per user, [U].

    >>> result = top_k_metrics([1, 5, 3], [0, 0, 1], users=2, k=3)
    >>> result["hr"].tolist(), result["recall"].tolist(), result["ndcg"].round(3).tolist()
    ([1.0, 1.0], [0.5, 1.0], [0.613, 0.5])
    """
    if k < 1:
        raise DataError(f"k must be at least 1, found {k}")
    places_P, user_P = np.asarray(place, dtype=np.int64), np.asarray(user, dtype=np.int64)
    positives = np.bincount(user_P, minlength=users)
    if len(positives) != users or not positives.all():
        raise DataError(f"each of the {users} users must have a positive, found users without one, or more users")
    inside = places_P <= k
    hits = np.bincount(user_P, inside, minlength=users)
    gain = np.bincount(user_P, np.where(inside, 1 / np.log2(1.0 + places_P), 0.0), minlength=users)
    ideal = np.cumsum(1 / np.log2(np.arange(2, k + 2)))[np.minimum(positives, k) - 1]
    return {"hr": (hits > 0).astype(np.float64), "ndcg": gain / ideal, "recall": hits / positives}
