"""Recommendations in two stages, of one request and of several at once, against two sorts of whole rows' scores."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from serving.conftest import SCHEMA, catalogue, log

from fieldwise import AFM, FM, AutoInt, BundleError, Categorical, ConfigError, DataError, Label
from fieldwise.models import NETWORKS
from fieldwise.serving import Ranker, build_index, evaluate_cascade
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service

CONTEXT = {"user": "u1", "history": "i1|i2", "device": "tv"}
ITEMS = catalogue()


def whole_rows(context, items=ITEMS):
    return items.with_columns(
        pl.lit(value, pl.String).alias(name) for name, value in context.items()
    )


@pytest.fixture(scope="module")
def index(tmp_path_factory, tower):
    return build_index(tower, ITEMS, tmp_path_factory.mktemp("cascade") / "ix")[0]


@pytest.fixture
def cascade(index, tower, ranker):
    return Ranker(ranker, index, tower=tower)


def passing(query):
    """The rows that pass the filters, by a loop over the columns."""
    keep = np.ones(len(ITEMS), bool)
    if query.get("candidates") is not None:
        keep &= ITEMS["item"].is_in(query["candidates"]).to_numpy()
    keep &= ~ITEMS["item"].is_in(list(query.get("exclude", []))).to_numpy()
    for column, values in query.get("where", {}).items():
        keep &= np.array([bool(set(cell.split("|")) & set(values)) for cell in ITEMS[column]])
    return np.flatnonzero(keep)


def by_hand(tower, ranker, query):
    """The best k by the ranker of the best k' by the tower, of the rows that pass."""
    left, rows = passing(query), whole_rows(query["context"])
    first = left[np.argsort(-tower.score(rows)[left], kind="stable")][: query["prerank"]]
    return first[np.argsort(-ranker.score(rows)[first], kind="stable")[: query["k"]]]


STRANGER = {"user": "stranger", "history": "", "device": "fridge"}
OTHER = {"user": "u4", "history": "i3|i8|i1|i7", "device": "phone"}
TITLES = [f"Title {k}" for k in range(20)]
QUERIES = [
    {"context": CONTEXT, "k": 1, "prerank": 1},
    {"context": OTHER, "k": 3, "prerank": 10},
    {"context": STRANGER, "k": 10, "prerank": 30},
    {"context": CONTEXT, "k": 10, "prerank": 500},
    {"context": CONTEXT, "k": 3, "prerank": 4, "candidates": ["i3", "i9", "i12", "i4", "i28", "i3"]},
    {"context": OTHER, "k": 3, "prerank": 4, "exclude": ["i1", "i2", "i1", "nobody"]},
    {"context": OTHER, "k": 3, "prerank": 4, "where": {"genres": ["g1", "g3"]}},
    {"context": STRANGER, "k": 3, "prerank": 4, "where": {"genres": ["g1", "g3"]}},
    {"context": CONTEXT, "k": 3, "prerank": 4, "where": {"genres": ["g1"], "title": TITLES}, "exclude": ["i3"]},
    {
        "context": CONTEXT, "k": 3, "prerank": 4, "candidates": [f"i{k}" for k in range(15)], "exclude": ["i3"],
        "where": {"genres": ["g0"]},
    },
    {"context": CONTEXT, "k": 3, "prerank": 4, "candidates": []},
    {"context": CONTEXT, "k": 3, "prerank": 4, "candidates": ["i1"], "exclude": ["i1"]},
    {"context": CONTEXT, "k": 3, "prerank": 4, "where": {"title": []}},
]  # fmt: skip


def prepared(cascade, *, candidates=None, exclude=(), **query):
    rows = None if candidates is None else cascade.index.rows_of(candidates)
    return cascade.prepare(**query, candidates=rows, exclude=cascade.index.known_rows(exclude))


def test_two_stages_are_two_sorts_also_of_several_requests_at_once(
    cascade, tower, ranker, subtests
):
    together = cascade.complete([prepared(cascade, **query) for query in QUERIES])
    for query, several in zip(QUERIES, together, strict=True):
        with subtests.test(query=query):
            expected, passed = by_hand(tower, ranker, query), len(passing(query))
            rows, least = whole_rows(query["context"])[expected], min(query["prerank"], passed)
            candidates = len(set(query.get("candidates", ITEMS["item"])))
            counts = {
                "candidates": candidates,
                "filtered": passed,
                "scored": passed,
                "preranked": least,
            }
            for result in (cascade.recommend(**query), several):
                assert result.rows.tolist() == expected.tolist()
                assert result.items["item"].to_list() == ITEMS["item"][expected].to_list()
                assert result.items.columns == [*ITEMS.columns, "prerank_score", "prediction"]
                assert result.counts == counts | {"ranked": len(expected)}
                assert set(result.seconds) == {"encode", "filter", "prerank", "rank"}
                if len(expected):
                    np.testing.assert_allclose(
                        result.scores["prediction"], ranker.predict(rows), rtol=1e-5
                    )
                    scores = tower.score(rows)
                    np.testing.assert_allclose(
                        result.scores["prerank_score"], scores, rtol=1e-4, atol=1e-5
                    )
    absent = cascade.recommend({**STRANGER, "history": None}, k=3, prerank=9)
    assert absent.rows.tolist() == cascade.recommend(STRANGER, k=3, prerank=9).rows.tolist()


def test_without_a_ranker_the_order_is_the_towers(index, tower):
    alone = Ranker(None, index, tower=tower)
    result = alone.recommend(context=CONTEXT, k=4)
    assert (
        result.rows.tolist()
        == np.argsort(-tower.score(whole_rows(CONTEXT)), kind="stable")[:4].tolist()
    )
    assert "prediction" not in result.items.columns
    with pytest.raises(ConfigError, match="needs a pre-ranking bundle, and a ranking bundle"):
        evaluate_cascade(alone, pl.DataFrame([CONTEXT]))


def test_values_of_filters_are_of_any_type(tmp_path, tower, ranker, items):
    more = items.with_columns(
        item=pl.Series(range(30)),
        year=pl.Series([2000.0 + k % 3 for k in range(30)]),
        stock=pl.lit(True),
    )
    cascade = Ranker(ranker, build_index(tower, more, tmp_path / "n")[0], tower=tower)

    def count(**query):
        return cascade.recommend(context=CONTEXT, k=1, **query).counts["filtered"]

    assert count(exclude=[float(k) for k in range(30)]) == 0
    assert count(exclude=np.arange(29)) == 1
    assert count(exclude=pl.Series(["3", "4"])) == 28
    assert count(candidates=[1, "2", 3.0]) == 3
    assert count(where={"year": [2001.0]}) == count(where={"year": ["2001"]}) == 10
    assert count(where={"stock": [True]}) == 30
    for wrong in ({"exclude": "i1"}, {"where": {"genres": "g1"}}, {"candidates": {"a": 1}}):
        with pytest.raises(ConfigError, match="must be a list of values"):
            count(**wrong)
    for wrong in ([["i1"]], [None], [float("nan")]):
        with pytest.raises(ConfigError, match="must hold texts, numbers or booleans"):
            count(exclude=wrong)


def test_what_is_refused(cascade, ranker, build):
    for query, error, message in (
        (
            {"context": {"user": "u1", "history": ""}},
            DataError,
            "found no 'device': give it, or null",
        ),
        ({"candidates": ["i1", "i99"]}, DataError, "found 'i99'"),
        ({"where": {"genre": ["g1"]}}, DataError, "found 'genre': did you mean 'genres'"),
        ({"k": 0, "prerank": 10}, ConfigError, "k must be at least 1, found 0"),
        ({"k": 11, "prerank": 10}, ConfigError, "at least k, found k 11 and prerank 10"),
    ):
        with pytest.raises(error, match=message):
            cascade.recommend(**{"context": CONTEXT, **query})
    assert len(Ranker(ranker, cascade.index).recommend(CONTEXT, k=999).rows) == len(cascade.index)
    bare = dataclasses.replace(SCHEMA, fields=(Categorical("user"), Categorical("item")))
    taken = dataclasses.replace(
        cascade.index, items=cascade.index.items.with_columns(prediction=pl.lit(1))
    )
    for bundle, index, tower, error, message in (
        (
            build(FM(embedding_dim=3), schema=bare),
            cascade.index,
            cascade.tower,
            ConfigError,
            "without fields of role",
        ),
        (ranker, taken, cascade.tower, DataError, "must not have a column 'prediction'"),
        (ranker, cascade.index, build(seed=9), BundleError, "belongs to the model that made it"),
        (ranker, cascade.index, ranker, ConfigError, "pre-ranks must be the IntTower of the index"),
    ):
        with pytest.raises(error, match=message):
            Ranker(bundle, index, tower=tower)


# rankers of other fields, labels and models

REGRESSION = dataclasses.replace(SCHEMA, label=Label("stars", task="regression"))
SEVERAL = dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))
FEW = dataclasses.replace(
    SCHEMA, fields=tuple(f for f in SCHEMA.fields if f.name not in ("history", "price"))
)
RANKED = [
    *((name, SCHEMA) for name in NETWORKS),
    *((name, schema) for name in ("afm", "din", "inttower") for schema in (REGRESSION, SEVERAL)),
    ("fm", FEW),
]


@pytest.mark.parametrize(
    "ranked", [RANKED[-7:], pytest.param(RANKED, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_every_model_ranks_several_contexts_at_once(tower, index, build, subtests, ranked):
    contexts = log(3, seed=3).select("user", "history", "device").to_dicts()
    contexts[1]["history"] = ""
    for name, schema in ranked:
        with subtests.test(name=name, labels=schema.labels):
            settings = NETWORKS[name]()
            if name == "inttower" and schema is REGRESSION:
                settings = dataclasses.replace(settings, cir_weight=0)
            ranker = build(settings, schema=schema, seed=3)
            cascade = Ranker(ranker, index, tower=tower)
            asked = [cascade.prepare(context, k=30, prerank=30) for context in contexts]
            for one, context in zip(cascade.complete(asked), contexts, strict=True):
                score = ranker.score(whole_rows(context)).reshape(30, -1)[:, 0]
                near = {"rtol": 1e-4, "atol": 1e-4}
                np.testing.assert_allclose(score[one.rows], np.sort(score)[::-1], **near)
                np.testing.assert_allclose(
                    one.scores["prediction"], ranker.main_prediction(score)[one.rows], **near
                )
    bare = dataclasses.replace(index, items=ITEMS.drop("genres"))
    with pytest.raises(DataError, match="'genres' is missing among item, title, price"):
        Ranker(build(FM(embedding_dim=3), schema=FEW), bare, tower=tower)


def test_weights_that_change_and_a_network_in_training_mode(tower, index, build):
    """Vectors of items that are kept follow the weights; dropout is off."""
    ranker = build(AFM(embedding_dim=4, attention_dim=3), seed=3)
    cascade, query = (
        Ranker(ranker, index, tower=tower),
        {"context": CONTEXT, "k": 30, "prerank": 30},
    )
    cascade.recommend(**query)
    with torch.no_grad():
        ranker.network.embedding.weight.mul_(-2)
    result = cascade.recommend(**query)
    expected = ranker.predict(whole_rows(CONTEXT)[result.rows])
    np.testing.assert_allclose(result.scores["prediction"], expected, rtol=1e-5)
    dropping = build(dataclasses.replace(NETWORKS["autoint+"](), mlp_dropout=0.5), seed=3)
    results = []
    for _ in range(2):
        results.append(Ranker(dropping, index, tower=tower).recommend(**query).scores["prediction"])
        dropping.network.train()
    np.testing.assert_array_equal(*results)


def test_a_bad_request_between_good_ones(cascade, ranker):
    service = Service(ranker, cascade)
    rows = [[{**row, "genres": row["genres"].split("|")}] for row in log(5, seed=4).to_dicts()]
    del rows[2][0]["price"]
    result = service.predict_all(rows)
    assert isinstance(result[2], RequestError)
    whole = ranker.score(log(5, seed=4))
    assert [one[0]["score"] for n, one in enumerate(result) if n != 2] == pytest.approx(
        np.delete(whole, 2), rel=1e-5
    )
    asked = [RecommendRequest(context=context, k=3) for context in (CONTEXT, CONTEXT, OTHER)]
    asked[1].candidates = ["none"]
    answers = service.recommend_all(asked)
    assert isinstance(answers[1], RequestError)
    for n in (0, 2):
        alone = service.recommend(asked[n])
        assert [item["id"] for item in answers[n]["items"]] == [
            item["id"] for item in alone["items"]
        ]


def test_lists_that_the_ranking_bundle_alone_reads_are_split_by_filters(tmp_path, build, ranker):
    tower = build(
        schema=dataclasses.replace(
            SCHEMA, fields=tuple(f for f in SCHEMA.fields if f.name != "genres")
        )
    )
    cascade = Ranker(ranker, build_index(tower, ITEMS, tmp_path / "ix")[0], tower=tower)
    query = {"context": CONTEXT, "where": {"genres": ["g1"]}}
    assert cascade.recommend(**query).counts["filtered"] == len(passing(query))


def test_equal_scores_are_taken_in_the_items_order(tmp_path, build, contexts):
    cold = pl.DataFrame(
        {"item": [f"x{k}" for k in range(300)], "title": "t", "genres": "", "price": [0.5] * 300}
    )
    tower, ranker = build(), build(AutoInt(embedding_dim=4, attention_dim=4), seed=3)
    cascade = Ranker(ranker, build_index(tower, cold, tmp_path / "ix")[0], tower=tower)
    assert cascade.recommend(context=CONTEXT, k=5, prerank=7).rows.tolist() == [0, 1, 2, 3, 4]
    report = evaluate_cascade(cascade, contexts.drop("item"), k=5, prerank=300)
    assert (report.recall, report.ndcg, report.recall_by_prerank[300], report.hit_rate) == (
        1,
        1,
        1,
        None,
    )
    with pytest.raises(DataError, match="found no row"):
        evaluate_cascade(cascade, contexts.head(0))


def test_the_report_is_what_counting_by_hand_gives(cascade, tower, ranker, contexts):
    report = evaluate_cascade(cascade, contexts, k=5, prerank=8, sizes=[5, 8, 30, 99, 2])
    recall, gain, first, hits, hits_all, reached = [], [], [], [], [], []
    discounts = 1 / np.log2(np.arange(2, 7))
    for context in contexts.iter_rows(named=True):
        own = {name: context[name] for name in ("user", "history", "device")}
        rows = whole_rows(own)
        top = np.argsort(-ranker.score(rows), kind="stable")[:5]
        result = by_hand(tower, ranker, {"context": own, "k": 5, "prerank": 8})
        right = np.isin(result, top)
        recall.append(right.mean())
        gain.append((right * discounts).sum() / discounts.sum())
        first.append(top[0] in result)
        order = np.argsort(-tower.score(rows), kind="stable")
        reached.append([np.isin(top, order[:size]).mean() for size in (5, 8, 30)])
        item = ITEMS["item"].to_list().index(context["item"])
        hits.append(item in result)
        hits_all.append(item in top)
    assert (report.contexts, report.items, report.k, report.prerank) == (12, 30, 5, 8)
    assert report.recall == pytest.approx(np.mean(recall))
    assert report.ndcg == pytest.approx(np.mean(gain))
    assert report.best_found == pytest.approx(np.mean(first))
    assert (report.targets, report.hit_rate, report.hit_rate_all) == (
        12,
        np.mean(hits),
        np.mean(hits_all),
    )
    # Only positive rows have a target, and only if the index knows the item.
    labelled = contexts.with_columns(
        click=pl.Series([1, 0] * 6), item=pl.Series(["none", *contexts["item"].to_list()[1:]])
    )
    liked = evaluate_cascade(cascade, labelled, k=5, prerank=8)
    assert (liked.targets, liked.hit_rate) == (5, np.mean(hits[2::2]))
    # Rows without a label, or with a mark of a missing one, are not positive.
    words = pl.Series(["1", "", None, "?", "1", "0", "1", "0", "1", "0", "1", "n/a"])
    some = evaluate_cascade(cascade, labelled.with_columns(click=words), k=5, prerank=8)
    assert (some.targets, some.hit_rate) == (4, np.mean(hits[4::2]))
    assert report.recall_by_prerank == pytest.approx(
        dict(zip((5, 8, 30), np.mean(reached, 0), strict=True))
    )
    assert report.recall_by_prerank[30] == 1
    assert list(report.milliseconds) == ["encode", "filter", "prerank", "rank", "all", "everything"]
