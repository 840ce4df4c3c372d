"""One rule of ranking, with one rule for ties, wherever items are ordered."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from serving.asgi import client
from serving.conftest import catalogue
from torch import nn

from fieldwise import IdColumns
from fieldwise.evaluation.calibration import Isotonic, Platt
from fieldwise.scoring.items import top_k_indices
from fieldwise.scoring.recommend import recommend
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.service import Service

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
TEXTS = pl.lit("u1").alias("user"), pl.lit("i1|i2").alias("history"), pl.lit("tv").alias("device")
SCORES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, float("nan"), float("inf"), -float("inf")])


@given(st.lists(SCORES, max_size=12), st.integers(0, 14), st.randoms(use_true_random=False))
@example([float("nan")] * 3 + [1.0], 2, None)
def test_the_best_are_those_of_a_whole_sort(scores, k, random):
    places = list(range(len(scores)))
    if random is not None:
        random.shuffle(places)
    order = sorted(
        range(len(scores)),
        key=lambda row: (np.isnan(scores[row]), -np.nan_to_num(scores[row]), places[row]),
    )
    assert top_k_indices(np.array(scores), k, places).tolist() == order[:k]
    assert (
        top_k_indices(np.array(scores, np.float32), k).tolist()
        == top_k_indices(scores, k, range(len(scores))).tolist()
    )


class Planted(nn.Module):
    """Scores of few different values, by the price alone."""

    def forward(self, batch):
        return (batch.values[:, 0].double() * 1.5).round()


@pytest.fixture(
    params=[None, Platt(slope=0.5, intercept=-1.0), Isotonic(at=(0.0,), probability=(0.4,))]
)
def planted(ranker, request):
    """A ranker of planted ties; an isotonic calibration of one level gives all items one probability besides."""
    calibration = {} if request.param is None else {"click": request.param}
    return dataclasses.replace(ranker, network=Planted(), calibration=calibration)


def by_rows(bundle, items):
    """Items by whole rows' scores, highest first, equal ones in the catalogue's order."""
    score = bundle.score(items.with_columns(*TEXTS))
    assert len(set(score)) < len(items) / 3, "many ties"
    ids = items["item"].to_list()
    return [ids[row] for row in sorted(range(len(ids)), key=lambda row: (-score[row], row))]


@pytest.mark.parametrize("k", [7, 30])
def test_recommend_bundle_cascade_and_server_order_ties_alike(tmp_path, tower, planted, k):
    items = catalogue().sort("item")  # as `recommend` takes them from a log
    expected = by_rows(planted, items)[:k]
    history = items.with_columns(*TEXTS).sample(fraction=1, shuffle=True, seed=1)
    names = IdColumns(user="user", item="item")
    result = recommend(planted, history, names, "u1", n=k, exclude_seen=False)
    assert result["item"].to_list() == expected
    assert result["prediction"].is_sorted(descending=True)
    whole = Ranker(planted, item_table(items, "item"))
    assert whole.recommend(context=CONTEXT, k=k).items["item"].to_list() == expected
    answer = client(Service(planted, whole)).post("/v1/recommend", {"context": CONTEXT, "k": k})
    assert [item["id"] for item in answer.json()["items"]] == expected
    cascade = Ranker(planted, build_index(tower, items, tmp_path / "ix")[0], tower=tower)
    ranked = cascade.recommend(context=CONTEXT, k=k, prerank=30)
    assert ranked.preranked.tolist() != sorted(ranked.preranked), (
        "pre-ranked in another order than the catalogue's"
    )
    assert ranked.items["item"].to_list() == expected
    scores = planted.score_candidates(CONTEXT, items.select("item", "genres", "price"))
    assert items["item"][top_k_indices(scores, k)].to_list() == expected
