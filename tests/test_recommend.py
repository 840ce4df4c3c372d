import dataclasses

import numpy as np
import polars as pl
import pytest
from ids import ITEM, USER
from random_bundle import random_bundle

from fieldwise import (
    AFM,
    LR,
    AutoInt,
    Bag,
    Bundle,
    Categorical,
    ConfigError,
    DataError,
    IdColumns,
    IntTower,
    Label,
    Schema,
    Sequence,
)
from fieldwise.scoring import recommend as module
from fieldwise.scoring.recommend import recommend

SCHEMA = Schema(
    fields=(
        USER,
        Sequence("history", role="user"),
        ITEM,
        Bag("genres", role="item"),
        Categorical("day"),
    ),
    label=Label("liked"),
    time="time",
)
CATALOGUE = IdColumns(user="user", item="item", title="title")


@pytest.mark.parametrize(
    ("given", "found"), [((), "found no log"), (("rows", "u1"), "found the columns 'u1'")]
)
def test_a_missing_log_is_an_error(bundle, given, found):
    with pytest.raises(ConfigError, match=rf"need a log, .*{found}: use recommend\(log, user="):
        recommend(bundle, *given)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    item = np.r_[np.arange(12), rng.integers(0, 12, 28)]
    return pl.DataFrame(
        {
            "user": rng.integers(0, 4, 40),
            "history": [f"{a}|{b}" for a, b in rng.integers(0, 12, (40, 2))],
            "item": item,
            "genres": [f"g{k % 3}|g{k % 5}" for k in item],
            "day": rng.integers(0, 7, 40),
            "title": [f"Film [red]{k}" for k in item],
            "time": rng.permutation(40),
            "liked": rng.integers(0, 2, 40),
        }
    )


@pytest.fixture(scope="module")
def bundle(log) -> Bundle:
    return random_bundle(AFM(embedding_dim=4, attention_dim=3), SCHEMA, log, std=1.0)


def brute_force(bundle, log, n, exclude, users=None):
    """Users' items by NumPy: each pair scored as a row of its own, ties by the item's id."""
    expected = []
    for user in users or sorted(set(log["user"].to_list())):
        own = log.filter(pl.col("user") == user)
        last = own.row(int(own["time"].arg_max() or 0), named=True)
        items = log.sort("time").unique("item", keep="last").sort("item")
        if exclude:
            used = own.filter(pl.col("liked") == 1) if exclude == "positive" else own
            items = items.filter(~pl.col("item").is_in(used["item"].implode()))
        pairs = items.with_columns(
            *(pl.lit(last[name]).alias(name) for name in ("user", "history", "day"))
        )
        score = bundle.predict(pairs) if pairs.height else np.zeros(0)
        best = np.lexsort((pairs["item"].to_numpy(), -score))[:n]
        expected += [
            (user, pairs["item"][int(k)], rank + 1, score[k]) for rank, k in enumerate(best)
        ]
    return expected


def test_n_may_exceed_the_items_and_titles_and_items_may_be_absent(bundle, log):
    holes = log.with_columns(
        pl.when(pl.int_range(40) == 20).then(None).otherwise("item").alias("item")
    )
    for rows in (log, holes):
        top = recommend(
            bundle, rows, IdColumns(user="user", item="item"), "2", n=99, exclude_seen=False
        )
        assert (top.columns, top.height) == (["item", "prediction", "source"], 12)


@pytest.mark.parametrize("time", [None, "gone"])
def test_without_time_the_last_row_of_the_log_counts(bundle, log, time):
    timeless = dataclasses.replace(bundle, schema=dataclasses.replace(SCHEMA, time=time))
    ordered = log.with_columns(time=pl.int_range(40))
    ((_, expected, *_),) = brute_force(bundle, ordered, 1, "positive", [1])
    assert recommend(timeless, log, CATALOGUE, "1", n=1).item(0, "item") == expected


@pytest.mark.parametrize(
    "clock", [lambda t: str(t), lambda t: f"2026-01-{t % 28 + 1:02} {t // 28}:00:00"]
)
def test_time_in_text_is_ordered_as_splits_order_it(bundle, log, clock):
    """As text, '9' is later than '10'."""
    moments = [clock(t) for t in log["time"].to_list()]
    ordered = log.with_columns(
        time=pl.Series(moments).rank("dense") if "-" in moments[0] else log["time"]
    )
    texts = log.with_columns(time=pl.Series(moments))
    result = recommend(bundle, texts, CATALOGUE, n=1, exclude_seen=False)["prediction"]
    np.testing.assert_allclose(
        result, [row[3] for row in brute_force(bundle, ordered, 1, False)], rtol=1e-5
    )


def test_among_equal_times_the_later_row_counts(bundle, log):
    same = log.with_columns(time=pl.lit(7))
    ordered = log.with_columns(time=pl.int_range(40))
    ((*_, expected),) = brute_force(bundle, ordered, 1, "positive", [1])
    assert recommend(bundle, same, CATALOGUE, "1", n=1).item(0, "prediction") == pytest.approx(
        expected, rel=1e-5
    )


def test_wrong_columns_are_named(bundle, log):
    with pytest.raises(DataError, match="recommendations have a column 'rank'"):
        recommend(
            bundle,
            log.rename({"title": "rank"}),
            IdColumns(user="user", item="item", title="rank"),
            "1",
        )
    for column in ("title", "genres", "day", "history"):
        with pytest.raises(DataError, match=f"must have the column '{column}'"):
            recommend(bundle, log.drop(column), CATALOGUE, "1")
    for role in ("user", "item"):
        with pytest.raises(
            ConfigError, match=rf"IdColumns\({role}=COLUMN\) must be a column of the table, found"
        ):
            recommend(bundle, log.drop(role), CATALOGUE, "1")


# Several users


@pytest.mark.parametrize(("exclude", "at_once"), [(True, 1), (False, 15), ("positive", 10_000)])
def test_many_users_get_what_each_gets_alone(bundle, log, exclude, at_once, monkeypatch):
    monkeypatch.setattr(module, "PAIRS_PER_BLOCK", at_once)
    users = np.array([3, 0, 3, 1, 2])
    result = recommend(bundle, log, CATALOGUE, users=users, n=4, exclude_seen=exclude)
    assert result.equals(
        recommend(bundle, log, CATALOGUE, users.tolist(), n=4, exclude_seen=exclude)
    )
    assert result.columns == ["user", "item", "title", "rank", "prediction", "source"]
    assert result["user"].unique(maintain_order=True).to_list() == [3, 0, 1, 2]
    assert result["user"].dtype == log["user"].dtype
    for (user,), own in result.group_by("user"):
        alone = recommend(bundle, log, CATALOGUE, str(user), n=4, exclude_seen=exclude)
        assert own["rank"].to_list() == list(range(1, own.height + 1))
        assert alone.columns == ["item", "title", "prediction", "source"]
        assert own.select("item", "title").equals(alone.select("item", "title"))
        assert own["title"].to_list() == [f"Film [red]{item}" for item in own["item"]]
        np.testing.assert_allclose(own["prediction"], alone["prediction"], rtol=1e-6)


def test_a_user_among_many_who_has_seen_all_gets_nothing(bundle, log):
    everything = log.unique("item").with_columns(
        user=pl.lit(9, pl.Int64), liked=pl.lit(1, pl.Int64)
    )
    more = pl.concat([log, everything])
    assert recommend(bundle, more, CATALOGUE, users=[9, 1], n=2)["user"].to_list() == [1, 1]
    assert recommend(bundle, more, CATALOGUE, "9").height == 0


def test_what_was_only_shown_to_a_user_can_be_recommended(bundle, log):
    """By default the items of positive rows are excluded; of all rows, if the log does not say which are positive."""
    own = log.filter(pl.col("user") == 1)
    liked = set(own.filter(pl.col("liked") == 1)["item"])
    shown = set(own["item"])
    assert shown > liked > set()
    every = set(log["item"])

    def recommended(rows, **options):
        return set(recommend(bundle, rows, CATALOGUE, "1", n=99, **options)["item"])

    assert recommended(log) == recommended(log, exclude_seen="positive") == every - liked
    assert recommended(log, exclude_seen=True) == every - shown
    assert recommended(log.drop("liked")) == every - shown
    nowhere_labelled = log.with_columns(liked=pl.lit(None, pl.Int64))
    assert recommended(nowhere_labelled) == every


def test_items_alone_can_be_recommended_without_any_other_field(log):
    bundle = random_bundle(
        LR(), Schema(fields=(Categorical("item", role="item"),), label=Label("liked")), log
    )
    assert recommend(bundle, log, CATALOGUE, users=[0, 1], n=99, exclude_seen=False).height == 24


def test_wrong_users_are_a_sentence(subtests, bundle, log):
    for asked, kind, message in [
        ({"user": "1", "users": ["2"]}, ConfigError, "found both"),
        (
            {"users": "12"},
            ConfigError,
            r"users must be a list of users, found the text '12': write \['12'\]",
        ),
        ({"users": []}, ConfigError, "found no user"),
        ({"users": ["1"], "n": 0}, ConfigError, "n must be a whole number of at least 1, found 0"),
        (
            {"users": ["1"], "n": "2"},
            ConfigError,
            "n must be a whole number of at least 1, found '2'",
        ),
        (
            {"exclude_seen": "all"},
            ConfigError,
            "exclude_seen must be 'positive', True or False, found 'all'",
        ),
        ({"users": ["1", None]}, ConfigError, "found an empty one"),
        ({"users": [1, "x"]}, ConfigError, "users must be a list of text or of numbers"),
        (
            {"users": ["1", "x", "y"]},
            DataError,
            "a value of the log's column 'user', of type Int64, found 'x'",
        ),
    ]:
        with (
            subtests.test(asked=asked, kind=kind, message=message),
            pytest.raises(kind, match=message),
        ):
            recommend(bundle, log, CATALOGUE, **asked)


# Everybody, and users whom the model does not know


@pytest.mark.parametrize(
    ("settings", "exclude"),
    [(AutoInt(embedding_dim=4), True), (LR(), "positive"), (IntTower(), False)],
)
def test_everybody_gets_what_a_brute_force_ranking_gives(log, settings, exclude, monkeypatch):
    monkeypatch.setattr(module, "PAIRS_PER_BLOCK", 30)  # two users of twelve items
    bundle = random_bundle(settings, SCHEMA, log, std=0.05)
    result = bundle.recommend(
        log=log, columns=IdColumns(user="user", item="item"), n=5, exclude_seen=exclude
    )
    expected = brute_force(bundle, log, 5, exclude)
    assert result.columns == ["user", "item", "rank", "prediction", "source"]
    np.testing.assert_allclose(result["prediction"], [row[3] for row in expected], rtol=1e-5)
    assert list(result.select("user", "rank").iter_rows()) == [(row[0], row[2]) for row in expected]
    true_score = {
        (user, item): score for user, item, _, score in brute_force(bundle, log, 99, exclude)
    }
    for (user, item, _, score), (_, best, _, best_score) in zip(
        result.drop("source").rows(), expected, strict=True
    ):
        # Sums in another order of rows may differ in their last bits, which orders items that are
        # nearly equal.
        assert item == best or true_score[user, item] == pytest.approx(best_score, rel=1e-5)
        assert score == pytest.approx(true_score[user, item], rel=1e-5)
    assert not result.select("user", "item").is_duplicated().any()
    assert result["source"].unique().to_list() == ["model"]


def test_unknown_users_get_popular_unseen_items_and_a_source(bundle, log):
    seen = pl.DataFrame({"user": [77, 77], "item": [3, 5], "time": [50, 51], "liked": [1, 1]})
    longer = pl.concat([log, seen], how="diagonal").with_columns(
        pl.col("history", "genres", "day").forward_fill()
    )
    result = bundle.recommend(longer, CATALOGUE, users=[1, 77, 99], n=4)
    sources = dict(result.group_by("user").agg(pl.col("source").unique()).iter_rows())
    assert sources == {1: ["model"], 77: ["popularity"], 99: ["popularity"]}
    likes = (
        longer.filter(pl.col("liked") == 1)
        .group_by("item")
        .len()
        .sort("len", "item", descending=[True, False])
    )
    every = [*likes["item"], *sorted(set(longer["item"]) - set(likes["item"]))]
    for user, gone in ((77, {3, 5}), (99, set())):
        own = result.filter(pl.col("user") == user)
        wanted = [item for item in every if item not in gone][:4]
        assert own["item"].to_list() == wanted
        assert own["rank"].to_list() == [1, 2, 3, 4]
        assert own["prediction"].null_count() == 4
    top = bundle.recommend(longer.drop("liked"), CATALOGUE, users=[99], n=1)
    counts = longer["item"].value_counts().sort("count", "item", descending=[True, False])
    assert top["item"][0] == counts["item"][0]
    alone = recommend(bundle, longer, CATALOGUE, 99, n=4)
    assert alone.equals(result.filter(pl.col("user") == 99).drop("user", "rank"))


def test_a_log_without_items_recommends_none(bundle, log):
    assert (
        recommend(
            bundle, log.with_columns(item=pl.lit(None, pl.Int64)), CATALOGUE, log["user"][0]
        ).height
        == 0
    )
