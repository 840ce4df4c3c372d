"""Hit rate, NDCG and recall by hand, against scikit-learn, and against plain sorting."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from fieldwise import DataError
from fieldwise.evaluation.bootstrap import estimate, resampled_means
from fieldwise.evaluation.ranking import places, top_k_metrics


def test_ndcg_is_scikit_learns(subtests):
    for k in [1, 5, 40, 100]:
        with subtests.test(k=k):
            rng = np.random.default_rng(k)
            likes = rng.random((30, 40)) < 0.2
            likes[:, 0] = True
            scores = rng.normal(size=(30, 40))
            user, item = np.nonzero(likes)
            place = np.concatenate([places(scores[u], np.flatnonzero(likes[u])) for u in range(30)])
            result = top_k_metrics(place, user, users=30, k=k)
            assert result["ndcg"].mean() == pytest.approx(ndcg_score(likes, scores, k=k), rel=1e-12)
            first = [
                set(np.argsort(-scores[u])[:k]) & set(np.flatnonzero(likes[u])) for u in range(30)
            ]
            assert result["recall"] == pytest.approx(
                [len(one) / likes[u].sum() for u, one in enumerate(first)]
            )
            assert result["hr"].tolist() == [bool(one) for one in first]
            assert len(item) == len(place)


def test_equal_scores_are_placed_by_the_tie():
    assert places([1.0, 1.0, 1.0, 2.0], [0, 1, 2, 3], tie=[2, 0, 1, 3]).tolist() == [4, 2, 3, 1]
    assert places([0, 0, 0], [2]).tolist() == [3]


def test_what_cannot_be_ranked():
    with pytest.raises(DataError, match=r"finite, found nan for candidate 1"):
        places([1.0, np.nan], [0])
    with pytest.raises(DataError, match="k must be at least 1, found 0"):
        top_k_metrics([1], [0], users=1, k=0)
    with pytest.raises(DataError, match="each of the 2 users must have a positive"):
        top_k_metrics([1], [0], users=2, k=1)


def test_users_are_sampled_once_for_all_columns():
    values = np.random.default_rng(0).random((2, 300))
    drawn = resampled_means(values, replicates=400, seed=3)
    rng = np.random.default_rng(3)
    for r in range(3):
        rows = rng.integers(0, 300, 300)
        np.testing.assert_allclose(drawn[r], values[:, rows].mean(1))
    result = estimate([values[0].mean()], drawn[:, 0])
    assert result.standard_error == pytest.approx(values[0].std() / np.sqrt(300), rel=0.15)
