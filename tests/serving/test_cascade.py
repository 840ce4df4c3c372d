"""The cascade against scoring whole rows with both bundles and sorting them by hand."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from serving.conftest import SCHEMA

from fieldwise import FM, AutoInt, Categorical, Label
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.serving import Ranker, build_index, evaluate_cascade

CONTEXT = {"user": "u1", "history": "i1|i2", "device": "tv"}


def whole_rows(items, context):
    return items.with_columns(pl.lit(value).alias(name) for name, value in context.items())


@pytest.fixture
def cascade(tmp_path, tower, ranker, items):
    return Ranker(ranker, build_index(tower, items, tmp_path / "ix")[0], prerank=tower)


def by_hand(tower, ranker, items, context, k, prerank):
    """Rows of the best k of the best k' of these items."""
    rows = whole_rows(items, context)
    first = np.argsort(-tower.score(rows), kind="stable")[:prerank]
    second = ranker.score(rows[first])
    return first[np.argsort(-second, kind="stable")[:k]]


@pytest.mark.parametrize(("k", "prerank"), [(1, 1), (3, 10), (10, 30), (10, 500)])
def test_two_stages_are_two_sorts(cascade, tower, ranker, items, k, prerank):
    result = cascade.recommend(context=CONTEXT, k=k, prerank=prerank)
    expected = by_hand(tower, ranker, items, CONTEXT, k, prerank)
    assert result.rows.tolist() == expected.tolist()
    assert result.items["item"].to_list() == items["item"][expected].to_list()
    rows = whole_rows(items, CONTEXT)[expected]
    np.testing.assert_allclose(result.items["prediction"], ranker.predict(rows), rtol=1e-5)
    np.testing.assert_allclose(result.items["prerank_score"], tower.score(rows), rtol=1e-4, atol=1e-5)
    assert result.items.columns == [*items.columns, "prerank_score", "prediction"]
    assert result.counts == {
        "candidates": 30,
        "filtered": 30,
        "scored": 30,
        "preranked": min(30, prerank),
        "ranked": min(k, prerank, 30),
    }
    assert set(result.seconds) == {"encode", "filter", "prerank", "rank"}


def test_without_a_ranker_the_order_is_the_towers(tmp_path, tower, items):
    alone = Ranker(None, build_index(tower, items, tmp_path / "ix")[0], prerank=tower)
    result = alone.recommend(context=CONTEXT, k=4)
    expected = np.argsort(-tower.score(whole_rows(items, CONTEXT)), kind="stable")[:4]
    assert result.rows.tolist() == expected.tolist()
    assert "prediction" not in result.items.columns
    with pytest.raises(ConfigError, match="needs a pre-ranking bundle, and a ranking bundle"):
        evaluate_cascade(alone, pl.DataFrame([CONTEXT]))


def allowed(items, **query):
    keep = np.ones(len(items), bool)
    if "candidates" in query:
        keep &= items["item"].is_in(query["candidates"]).to_numpy()
    keep &= ~items["item"].is_in(list(query.get("exclude", []))).to_numpy()
    for column, values in query.get("where", {}).items():
        cells = items[column].cast(pl.String).to_list()
        keep &= np.array([bool(set(cell.split("|")) & set(values)) for cell in cells])
    return keep


@pytest.mark.parametrize(
    "query",
    [
        {"candidates": ["i3", "i9", "i12", "i4", "i28"]},
        {"exclude": ["i1", "i2", "nobody"]},
        {"where": {"genres": ["g1", "g3"]}},
        {"where": {"title": ["Title 4", "Title 5"]}},
        {"where": {"genres": ["g1"], "title": [f"Title {k}" for k in range(20)]}, "exclude": ["i3"]},
        {"candidates": [f"i{k}" for k in range(15)], "exclude": ["i3"], "where": {"genres": ["g0"]}},
    ],
)
def test_filters_act_before_pre_ranking(cascade, tower, ranker, items, query):
    keep = np.flatnonzero(allowed(items, **query))
    result = cascade.recommend(context=CONTEXT, k=3, prerank=4, **query)
    expected = keep[by_hand(tower, ranker, items[keep], CONTEXT, 3, 4)]
    assert result.rows.tolist() == expected.tolist()
    assert result.counts["filtered"] == len(keep)
    assert result.counts["candidates"] == len(query.get("candidates", items))


@pytest.mark.parametrize(
    "query", [{"candidates": []}, {"where": {"title": []}}, {"candidates": ["i1"], "exclude": ["i1"]}]
)
def test_nothing_left_is_nothing_found(cascade, query):
    result = cascade.recommend(context=CONTEXT, **query)
    assert result.items.height == 0
    assert result.counts["ranked"] == 0
    assert result.items.columns[-1] == "prediction"


def test_values_of_filters_are_of_any_type(tmp_path, tower, ranker, items):
    more = items.with_columns(
        item=pl.Series(range(30)), year=pl.Series([2000.0 + k % 3 for k in range(30)]), stock=pl.lit(True)
    )
    cascade = Ranker(ranker, build_index(tower, more, tmp_path / "n")[0], prerank=tower)

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


def test_equal_scores_are_taken_in_the_items_order(tmp_path, build, contexts):
    cold = pl.DataFrame({"item": [f"x{k}" for k in range(300)], "title": "t", "genres": "", "price": [0.5] * 300})
    tower, ranker = build(), build(AutoInt(embedding_dim=4, attention_dim=4), seed=3)
    cascade = Ranker(ranker, build_index(tower, cold, tmp_path / "ix")[0], prerank=tower)
    assert cascade.recommend(context=CONTEXT, k=5, prerank=7).rows.tolist() == [0, 1, 2, 3, 4]
    report = evaluate_cascade(cascade, contexts.drop("item"), k=5, prerank=300)
    assert (report.recall, report.ndcg, report.recall_by_prerank[300]) == (1, 1, 1)


def test_a_candidate_named_twice_comes_once(cascade):
    result = cascade.recommend(context=CONTEXT, candidates=["i1", "i1", "i2"])
    assert sorted(result.items["item"]) == ["i1", "i2"]


def test_unknown_and_absent_values_are_no_error(cascade, tower, ranker, items):
    context = {"user": "stranger", "history": None, "device": "fridge"}
    result = cascade.recommend(context=context, k=3, prerank=9)
    texts = {**context, "history": ""}
    assert result.rows.tolist() == by_hand(tower, ranker, items, texts, 3, 9).tolist()


def test_what_is_refused(cascade, ranker, build):
    with pytest.raises(DataError, match="found no 'device': give it, or null"):
        cascade.recommend(context={"user": "u1", "history": ""})
    with pytest.raises(DataError, match="found 'i99'"):
        cascade.recommend(context=CONTEXT, candidates=["i1", "i99"])
    with pytest.raises(DataError, match="found 'genre': did you mean 'genres'"):
        cascade.recommend(context=CONTEXT, where={"genre": ["g1"]})
    for k, words in ((0, "k must be at least 1, found 0"), (11, "at least k, found k 11 and prerank 10")):
        with pytest.raises(ConfigError, match=words):
            cascade.recommend(CONTEXT, k=k, prerank=10)
    assert len(Ranker(ranker, cascade.index).recommend(CONTEXT, k=999).rows) == len(cascade.index)
    bare = build(
        FM(embedding_dim=3), schema=dataclasses.replace(SCHEMA, fields=(Categorical("user"), Categorical("item")))
    )
    with pytest.raises(ConfigError, match="without fields of role item: set the roles of its fields"):
        Ranker(bare, cascade.index, prerank=cascade.prerank)
    taken = dataclasses.replace(cascade.index, items=cascade.index.items.with_columns(prediction=pl.lit(1)))
    with pytest.raises(DataError, match="must not have a column 'prediction'"):
        Ranker(ranker, taken, prerank=cascade.prerank)
    with pytest.raises(BundleError, match="belongs to the model that made it"):
        Ranker(ranker, cascade.index, prerank=build(seed=9))
    with pytest.raises(ConfigError, match="pre-ranks must be the IntTower of the index"):
        Ranker(ranker, cascade.index, prerank=ranker)


def test_rankers_of_other_fields_and_labels(tmp_path, tower, build, items):
    index = build_index(tower, items, tmp_path / "ix")[0]
    kept = tuple(f for f in SCHEMA.fields if f.name not in ("history", "price"))
    small = build(FM(embedding_dim=3), schema=dataclasses.replace(SCHEMA, fields=kept))
    several = build(
        AutoInt(embedding_dim=4, attention_dim=4), schema=dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))
    )
    for ranker in (small, several):
        result = Ranker(ranker, index, prerank=tower).recommend(context=CONTEXT, k=5, prerank=30)
        score = ranker.predict(whole_rows(items, CONTEXT))
        score = score if score.ndim == 1 else score[:, 0]
        assert result.rows.tolist() == np.argsort(-score, kind="stable")[:5].tolist()
    bare = build_index(tower, items, tmp_path / "bare")[0]
    object.__setattr__(bare, "items", items.drop("genres"))
    with pytest.raises(DataError, match="'genres' is missing among item, title, price"):
        Ranker(small, bare, prerank=tower)


def test_the_report_is_what_counting_by_hand_gives(cascade, tower, ranker, items, contexts):
    report = evaluate_cascade(cascade, contexts, k=5, prerank=8, sizes=[5, 8, 30, 99, 2])
    recall, gain, first, hits, hits_all, reached = [], [], [], [], [], []
    discounts = 1 / np.log2(np.arange(2, 7))
    for context in contexts.iter_rows(named=True):
        own = {name: context[name] for name in ("user", "history", "device")}
        rows = whole_rows(items, own)
        top = np.argsort(-ranker.score(rows), kind="stable")[:5]
        result = by_hand(tower, ranker, items, own, 5, 8)
        right = np.isin(result, top)
        recall.append(right.mean())
        gain.append((right * discounts).sum() / discounts.sum())
        first.append(top[0] in result)
        order = np.argsort(-tower.score(rows), kind="stable")
        reached.append([np.isin(top, order[:size]).mean() for size in (5, 8, 30)])
        item = items["item"].to_list().index(context["item"])
        hits.append(item in result)
        hits_all.append(item in top)
    assert (report.contexts, report.items, report.k, report.prerank) == (12, 30, 5, 8)
    assert report.recall == pytest.approx(np.mean(recall))
    assert report.ndcg == pytest.approx(np.mean(gain))
    assert report.best_found == pytest.approx(np.mean(first))
    assert (report.targets, report.hit_rate, report.hit_rate_all) == (12, np.mean(hits), np.mean(hits_all))
    # Only rows that were liked have a target, and only if the index knows the item.
    labelled = contexts.with_columns(
        click=pl.Series([1, 0] * 6), item=pl.Series(["none", *contexts["item"].to_list()[1:]])
    )
    liked = evaluate_cascade(cascade, labelled, k=5, prerank=8)
    assert (liked.targets, liked.hit_rate) == (5, np.mean(hits[2::2]))
    assert report.recall_by_prerank == pytest.approx(dict(zip((5, 8, 30), np.mean(reached, 0), strict=True)))
    assert report.recall_by_prerank[30] == 1
    assert list(report.milliseconds) == ["encode", "filter", "prerank", "rank", "all", "everything"]


def test_a_report_without_items_or_rows(cascade, contexts):
    assert evaluate_cascade(cascade, contexts.drop("item"), k=5).hit_rate is None
    with pytest.raises(DataError, match="found no row"):
        evaluate_cascade(cascade, contexts.head(0))
