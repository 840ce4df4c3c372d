"""Candidates from clusters of item heads, against loops over heads and centres."""

import numpy as np
import pytest
import torch
from serving.conftest import catalogue, log

from fieldwise import ConfigError
from fieldwise.ops.stored_items import StoredItems
from fieldwise.scoring import ranker as ranker_module
from fieldwise.scoring.ranker import HeadClusters
from fieldwise.serving import Ranker, build_index, evaluate_cascade


def heads(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float32)


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_every_head_is_in_its_nearest_cluster(storage, monkeypatch):
    monkeypatch.setattr(ranker_module, "MAX_CLUSTERS", 12)
    stored = StoredItems.of(heads(200, 3, 5), storage)
    clusters = HeadClusters.of(stored)
    floats = (
        stored.heads.float()
        if stored.scale is None
        else stored.heads.float() * stored.scale.unsqueeze(2)
    )
    for item in range(200):
        own = {
            c
            for c in range(12)
            if item in clusters.items[clusters.starts[c] : clusters.starts[c + 1]]
        }
        distance = ((floats[item][:, None] - clusters.centres) ** 2).sum(2)
        assert own == set(distance.argmin(1).tolist())


def test_candidates_have_a_head_near_to_a_users(monkeypatch):
    monkeypatch.setattr(ranker_module, "MAX_CLUSTERS", 12)
    clusters = HeadClusters.of(StoredItems.of(heads(200, 3, 5)))
    user = heads(4, 5, seed=3)
    for nprobe in (1, 3, 12, 50):
        wanted = set()
        for head in user:
            for cluster in torch.argsort(-(clusters.centres @ head))[:nprobe].tolist():
                wanted |= set(
                    clusters.items[clusters.starts[cluster] : clusters.starts[cluster + 1]].tolist()
                )
        assert clusters.candidates(user, nprobe).tolist() == sorted(wanted)
    assert len(clusters.candidates(user, 12)) == 200


def test_planted_groups_are_found(monkeypatch):
    """Heads around far corners: a user's best items are those of the nearest corner, and no others are looked at."""
    monkeypatch.setattr(ranker_module, "MAX_CLUSTERS", 24)
    corners = 10 * torch.eye(6)
    items = corners.repeat(20, 1).unsqueeze(1) + 0.1 * heads(120, 1, 6)
    clusters = HeadClusters.of(StoredItems.of(items))
    result = clusters.candidates(corners[2:3], 4)
    assert 0 < len(result) <= 80
    scores = (items[:, 0] @ corners[2]).numpy()
    assert set(np.argsort(-scores)[:5].tolist()) <= {row for row in range(120) if row % 6 == 2}
    wide = clusters.candidates(corners[2:3], 24)
    assert set(range(2, 120, 6)) <= set(wide.tolist())


def test_the_number_of_clusters():
    stored = StoredItems.of(heads(40, 2, 3))
    assert len(HeadClusters.of(stored).centres) == 20


def test_a_cascade_that_searches_all_clusters_is_exact_and_a_narrow_one_reports_its_loss(
    tmp_path, tower, ranker
):
    index = build_index(tower, catalogue(300), tmp_path / "ix")[0]
    exact, wide, narrow, two = (
        Ranker(ranker, index, tower=tower, nprobe=nprobe) for nprobe in (None, 10_000, 1, 2)
    )
    given = {"context": {"user": "u1", "history": "i1|i2", "device": "tv"}, "k": 5, "prerank": 20}
    for query in (
        {},
        {"where": {"item": [f"i{n}" for n in range(200)]}, "exclude": ["i3", "i7"]},
        {"where": {"item": [f"i{n}" for n in range(9)]}},
        {"candidates": [f"i{n}" for n in range(250)]},
    ):
        expected, result, less = (one.recommend(**given, **query) for one in (exact, wide, narrow))
        assert result.rows.tolist() == expected.rows.tolist()
        assert result.counts == expected.counts
        assert less.counts["scored"] <= result.counts["scored"]
        assert less.counts["preranked"] == result.counts["preranked"]
        assert not {"i3", "i7"} & set(less.items["item"]) & set(query.get("exclude", ()))
    assert narrow.recommend(**given).counts["scored"] < 280, "the clusters do not hold 280 items"
    many = given | {"prerank": 280}
    assert narrow.recommend(**many).counts == exact.recommend(**many).counts
    contexts = log(20, seed=4).drop("item")
    whole, some = (evaluate_cascade(one, contexts, k=5, prerank=20) for one in (exact, two))
    assert (whole.candidates, whole.candidate_recall) == (300, 1)
    assert some.candidates < 300
    by_hand = []
    for row in contexts.iter_rows(named=True):
        result = two.recommend(context=row, k=5, prerank=20).preranked
        by_hand.append(np.isin(exact.recommend(row, k=20, prerank=20).preranked, result).mean())
    assert some.candidate_recall == pytest.approx(np.mean(by_hand))
    with pytest.raises(ConfigError, match="nprobe must be at least 1, found 0"):
        Ranker(ranker, index, tower=tower, nprobe=0)
