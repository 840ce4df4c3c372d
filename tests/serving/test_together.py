"""Queries answered together are those answered alone, and what whole rows give, whichever model ranks them."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving.conftest import SCHEMA, catalogue, log

from fieldwise import AFM, Label
from fieldwise.models import MODELS
from fieldwise.serving import Ranker, build_index
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service

CONTEXTS = st.fixed_dictionaries(
    {
        "user": st.sampled_from([f"u{n}" for n in range(7)]),
        "history": st.lists(st.sampled_from([f"i{n}" for n in range(9)]), max_size=5).map("|".join),
        "device": st.sampled_from(["tv", "phone", "fridge"]),
    }
)
ITEMS = st.lists(st.sampled_from([f"i{n}" for n in range(64)]), max_size=40)
QUERIES = st.builds(
    lambda context, k, more, **others: dict(context=context, k=k, prerank=k + more, **others),
    context=CONTEXTS,
    k=st.integers(1, 6),
    more=st.integers(0, 40),
    candidates=st.none() | ITEMS.map(lambda ids: [one for one in ids if int(one[1:]) < 60]),
    exclude=ITEMS,
    where=st.just({}) | st.fixed_dictionaries({"genres": st.lists(st.sampled_from(["g0", "g1", "g9"]), max_size=2)}),
)
BIG = catalogue(60)


@pytest.fixture(scope="module")
def index(tmp_path_factory, tower):
    return build_index(tower, BIG, tmp_path_factory.mktemp("together") / "ix")[0]


def whole_rows(items, context):
    return items.with_columns(pl.lit(value, pl.String).alias(name) for name, value in context.items())


def prepared(cascade, *, candidates, exclude, **query):
    rows = None if candidates is None else cascade.index.rows_of(candidates)
    return cascade.prepare(**query, candidates=rows, exclude=cascade.index.known_rows(exclude))


def by_hand(tower, ranker, query):
    """Two sorts of what passes."""
    passes = np.ones(60, bool)
    if query["candidates"] is not None:
        passes &= BIG["item"].is_in(query["candidates"]).to_numpy()
    passes &= ~BIG["item"].is_in(query["exclude"]).to_numpy()
    for values in query["where"].values():
        passes &= np.array([bool(set(cell.split("|")) & set(values)) for cell in BIG["genres"]])
    left = np.flatnonzero(passes)
    rows = whole_rows(BIG, query["context"])
    first = left[np.argsort(-tower.score(rows)[left], kind="stable")][: query["prerank"]]
    return first[np.argsort(-ranker.score(rows)[first], kind="stable")][: query["k"]]


@given(st.lists(QUERIES, min_size=1, max_size=6))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_gets_its_own(tower, ranker, index, queries):
    cascade = Ranker(ranker, index, prerank=tower)
    together = cascade.complete([prepared(cascade, **query) for query in queries])
    for query, result in zip(queries, together, strict=True):
        expected = by_hand(tower, ranker, query)
        assert result.rows.tolist() == expected.tolist()
        if len(expected):
            rows = whole_rows(BIG, query["context"])[expected]
            np.testing.assert_allclose(result.scores["prediction"], ranker.predict(rows), rtol=1e-5)
            np.testing.assert_allclose(result.scores["prerank_score"], tower.score(rows), rtol=1e-4, atol=1e-5)


REGRESSION = dataclasses.replace(SCHEMA, label=Label("stars", task="regression"))
SEVERAL = dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))


RANKED = [
    *((name, SCHEMA) for name in MODELS),
    *((name, schema) for name in ("afm", "din", "inttower") for schema in (REGRESSION, SEVERAL)),
]


def test_every_model_ranks_several_contexts_at_once(tower, index, build, subtests):
    for name, schema in RANKED:
        with subtests.test(name=name, labels=schema.labels):
            ranks_several_contexts_at_once(tower, index, build, name, schema)


def ranks_several_contexts_at_once(tower, index, build, name, schema):
    chosen = MODELS[name]()
    if name == "inttower" and schema is REGRESSION:
        chosen = dataclasses.replace(chosen, cir_weight=0)
    ranker = build(chosen, schema=schema, seed=3)
    cascade = Ranker(ranker, index, prerank=tower)
    contexts = log(4, seed=3).select("user", "history", "device").to_dicts()
    contexts[1]["history"] = ""
    asked = [cascade.prepare(context, k=60, prerank=60) for context in contexts]
    for one, context in zip(cascade.complete(asked), contexts, strict=True):
        score = ranker.score(whole_rows(BIG, context)).reshape(60, -1)[:, 0]
        np.testing.assert_allclose(score[one.rows], np.sort(score)[::-1], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(
            one.scores["prediction"], ranker.main_prediction(score)[one.rows], rtol=1e-4, atol=1e-4
        )


def test_kept_vectors_follow_weights_that_change(tower, index, build):
    ranker = build(AFM(embedding_dim=4, attention_dim=3), seed=3)
    cascade = Ranker(ranker, index, prerank=tower)
    query = {"context": {"user": "u1", "history": "", "device": "tv"}, "k": 60, "prerank": 60}
    cascade.recommend(**query)
    with torch.no_grad():
        ranker.network.embedding.weight.mul_(-2)
    result = cascade.recommend(**query)
    np.testing.assert_allclose(
        result.scores["prediction"], ranker.predict(whole_rows(BIG, query["context"])[result.rows]), rtol=1e-5
    )


def test_a_network_that_was_left_training_ranks_all_the_same(tower, index, build):
    ranker = build(dataclasses.replace(MODELS["autoint+"](), mlp_dropout=0.5), seed=3)
    query = {"context": {"user": "u1", "history": "", "device": "tv"}, "k": 9, "prerank": 60}
    expected = Ranker(ranker, index, prerank=tower).recommend(**query).scores["prediction"]
    ranker.network.train()
    np.testing.assert_array_equal(
        Ranker(ranker, index, prerank=tower).recommend(**query).scores["prediction"], expected
    )


def test_a_bad_request_between_good_ones(tower, ranker, index):
    service = Service(ranker, Ranker(ranker, index, prerank=tower))
    rows = [[{**row, "genres": row["genres"].split("|")}] for row in log(5, seed=4).to_dicts()]
    del rows[2][0]["price"]
    result = service.predict_all(rows)
    assert isinstance(result[2], RequestError)
    whole = ranker.score(log(5, seed=4))
    assert [one[0]["score"] for n, one in enumerate(result) if n != 2] == pytest.approx(np.delete(whole, 2), rel=1e-5)
    contexts = log(3, seed=4).select("user", "history", "device").to_dicts()
    asked = [RecommendRequest(context=context, k=3) for context in contexts]
    asked[1].candidates = ["none"]
    answers = service.recommend_all(asked)
    assert isinstance(answers[1], RequestError)
    for n in (0, 2):
        alone = service.recommend(asked[n])
        assert [item["id"] for item in answers[n]["items"]] == [item["id"] for item in alone["items"]]


def test_lists_that_the_ranking_bundle_alone_reads_are_split_by_filters(tmp_path, build, items, ranker):
    fields = tuple(field for field in SCHEMA.fields if field.name != "genres")
    tower = build(schema=dataclasses.replace(SCHEMA, fields=fields))
    cascade = Ranker(ranker, build_index(tower, items, tmp_path / "ix")[0], prerank=tower)
    query = {"context": {"user": "u1", "history": "", "device": "tv"}, "where": {"genres": ["g1"]}}
    passing = sum("g1" in cell.split("|") for cell in items["genres"])
    assert cascade.recommend(**query).counts["filtered"] == passing
