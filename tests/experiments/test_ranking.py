"""Rankings of a catalogue against a plain loop over full rows; items left out, sampled and counted."""

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare
from ids import ITEM, USER
from random_bundle import random_bundle

from fieldwise import (
    AFM,
    Bag,
    Categorical,
    ColumnSplit,
    ConfigError,
    DataError,
    Label,
    Numeric,
    Schema,
    load_recipe,
)
from fieldwise.cli.rankings import NO_LISTS, show_rankings
from fieldwise.evaluation.ranking import top_k_metrics
from fieldwise.runs import recorded_runs as module
from fieldwise.runs.leaderboard import POPULARITY, ranking_boards
from fieldwise.runs.ranking import RankingSettings, RankingTask, check_ranking, rank_items
from fieldwise.runs.recorded_runs import RunContext, recorded_runs
from fieldwise.runs.records import LISTS, Store

SCHEMA = Schema(
    fields=(
        USER,
        ITEM,
        Bag("tags", role="item"),
        Numeric("price", role="item"),
        Categorical("day"),
    ),
    label=Label("liked"),
    time="time",
    group="user",
)


@pytest.fixture(scope="module")
def log():
    """Nine users, thirty items whose price rises with time, and one item that test rows alone have."""
    rng = np.random.default_rng(0)
    rows = 300
    item = rng.integers(0, 30, rows)
    part = np.array(["train", "valid", "test"])[
        (np.arange(rows) >= 200).astype(int) + (np.arange(rows) >= 240)
    ]
    item[-1] = 30
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 9, rows)],
            "item": [f"i{k}" for k in item],
            "tags": [f"t{k % 3}|t{k % 2}" for k in item],
            "price": np.arange(rows) / 10,
            "day": rng.integers(0, 5, rows),
            "time": rng.permutation(rows),
            "part": part,
            "liked": np.where(np.arange(rows) == rows - 1, 1, rng.integers(0, 2, rows)),
        }
    )


@pytest.fixture(scope="module")
def prepared(log):
    return prepare(log, SCHEMA, split=ColumnSplit(column="part"), seed=0)


@pytest.fixture(scope="module")
def bundle(log, prepared):
    settings = AFM(embedding_dim=4, attention_dim=3)
    return random_bundle(settings, SCHEMA, log.head(3), encoder=prepared.encoder, std=1.0, seed=0)


def by_hand(log, score, *, keep_seen=False, k=3):
    """Hit rate, NDCG and recall of every user, by plain loops over full rows.

    Args:
        score: of rows of raw values.
    """
    test, liked = log.filter(part="test"), log.filter(liked=1)
    latest = {row["item"]: row for row in log.sort("time").iter_rows(named=True)}
    out = {}
    for user in sorted(set(liked.filter(part="test")["user"])):
        own = liked.filter(user=user)
        seen = set() if keep_seen else set(own.filter(pl.col("part") != "test")["item"])
        targets = set(own.filter(part="test")["item"]) - seen
        if not targets:
            continue
        context = test.filter(user=user, liked=1).sort("time").row(0, named=True)
        items = sorted(set(latest) - seen)
        rows = [
            {**context, **{c: latest[item][c] for c in ("item", "tags", "price")}} for item in items
        ]
        scores = score(pl.DataFrame(rows, schema_overrides=log.schema))
        order = [items[n] for n in np.argsort(-scores, kind="stable")][:k]
        gains = [1 / np.log2(n + 2) for n, item in enumerate(order) if item in targets]
        best = sum(1 / np.log2(n + 2) for n in range(min(k, len(targets))))
        hits = len(set(order) & targets)
        out[user] = float(hits > 0), sum(gains) / best, hits / len(targets)
    return out


@pytest.mark.parametrize("keep_seen", [False, True])
def test_all_items_are_ranked_as_by_plain_loops(log, prepared, bundle, keep_seen):
    task = RankingTask(prepared, SCHEMA, RankingSettings(keep_seen=keep_seen))
    ranked = rank_items(bundle, task)
    expected = by_hand(log, bundle.score, keep_seen=keep_seen)
    assert task.users == len(expected) > 5
    result = top_k_metrics(ranked.rank, ranked.user, ranked.users, 3)
    np.testing.assert_allclose(
        np.stack([result[m] for m in ("hr", "ndcg", "recall")], 1), list(expected.values())
    )
    assert task.items.height == 31  # with the item that test rows alone have


def test_a_candidate_has_its_latest_known_price(log):
    gone = pl.Series(np.random.default_rng(7).random(log.height) < 0.5)
    gaps = log.with_columns(price=pl.when(~gone).then("price"))
    task = RankingTask(
        prepare(gaps, SCHEMA, split=ColumnSplit(column="part"), seed=0), SCHEMA, RankingSettings()
    )
    expected = dict.fromkeys(log["item"])
    for item, price in gaps.sort("time").select("item", "price").iter_rows():
        expected[item] = expected[item] if price is None else price
    assert dict(task.items.select("item", "price").iter_rows()) == expected
    assert dict(gaps.sort("time").select("item", "price").iter_rows()) != expected, (
        "some last cells are empty"
    )


def test_popularity_counts_liked_training_rows(log, prepared):
    task = RankingTask(prepared, SCHEMA, RankingSettings())
    likes = dict(log.filter(part="train", liked=1).group_by("item").len().iter_rows())
    assert task.likes.tolist() == [likes.get(item, 0) for item in task.items["item"]]
    # The order that ties are drawn in, put below the counts.
    tie = dict(zip(task.items["item"], task.tie, strict=True))
    expected = by_hand(
        log, lambda rows: np.array([likes.get(i, 0) - tie[i] / 1000 for i in rows["item"]])
    )
    result = top_k_metrics(task.by_popularity().rank, task.user, task.users, 3)
    np.testing.assert_allclose(result["ndcg"], [one[1] for one in expected.values()])


def test_a_case_by_hand():
    """u likes b of a, b, c in the test; c was liked in training. By popularity a (2) leads b (1)."""
    rows = [
        ("train", "u", "c", 1), ("train", "v", "a", 1), ("train", "w", "a", 1), ("train", "v", "b", 1),
        ("train", "u", "a", 0), ("valid", "v", "c", 1), ("valid", "v", "c", 0),
        ("test", "u", "b", 1), ("test", "u", "c", 1), ("test", "v", "a", 1), ("test", "w", "a", 0),
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=["part", "user", "item", "liked"], orient="row")
    schema = Schema(
        fields=(Categorical("user", role="user"), Categorical("item", role="item")),
        label=Label("liked"),
    )
    task = RankingTask(
        prepare(frame, schema, split=ColumnSplit(column="part"), seed=0), schema, RankingSettings()
    )
    # v liked a before, w liked nothing in the test: u is left, with b, for c was liked before.
    assert (task.users, task.all_users, task.liked_before, task.items.height) == (1, 1, 2, 3)
    assert task.by_popularity().rank.tolist() == [2]
    words = "1 users, all 3 items, without those the user liked in training and validation rows"
    assert (
        task.sentence()
        == f"ranking by user and item: {words} (2 test positives among them, left out too)"
    )


def test_sampled_items_are_none_that_the_user_liked(log, prepared, bundle):
    settings = RankingSettings(candidates=4, users=5, seed=3)
    task, again = (RankingTask(prepared, SCHEMA, settings) for _ in range(2))
    assert task.users == 5 < task.all_users
    names = task.items["item"].to_list()
    liked = log.filter(liked=1)
    drawn = []
    for number, user in enumerate(task.contexts["user"]):
        rows, own = task.candidates(number), set(task.item[task.user == number])
        drawn.append(sorted(set(rows) - own))
        assert own < set(rows)
        assert len(drawn[-1]) == 4
        assert not {names[row] for row in drawn[-1]} & set(liked.filter(user=user)["item"])
        assert rows.tolist() == again.candidates(number).tolist()
    whole = rank_items(
        bundle, RankingTask(prepared, SCHEMA, dataclasses.replace(settings, candidates=100))
    )
    every = rank_items(
        bundle, RankingTask(prepared, SCHEMA, dataclasses.replace(settings, candidates=None))
    )
    assert whole.rank.tolist() == every.rank.tolist()  # more than there are: all of them
    assert (rank_items(bundle, task).rank <= every.rank).all()


def test_every_user_has_a_draw_of_its_own():
    rows = [("train", "w", f"i{k:02}", 1) for k in range(40)] + [
        ("valid", "w", "i00", k) for k in (0, 1)
    ]
    rows += [("test", user, "i00", 1) for user in "abcdef"] + [
        ("train", "w", "i00", 0),
        ("test", "w", "i01", 0),
    ]
    frame = pl.DataFrame(rows, schema=["part", "user", "item", "liked"], orient="row")
    schema = Schema(
        fields=(Categorical("user", role="user"), Categorical("item", role="item")),
        label=Label("liked"),
    )
    split = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0)
    task = RankingTask(split, schema, RankingSettings(candidates=5))
    drawn = {tuple(task.candidates(number).tolist()) for number in range(task.users)}
    assert (task.users, len(drawn)) == (6, 6), "they differ in nothing but their number"


def test_equal_scores_are_ranked_at_random(prepared):
    """If ties kept the order of items, the first item would always rank first."""
    task = RankingTask(prepared, SCHEMA, RankingSettings())
    places = []
    for seed in range(60):
        other = RankingTask(prepared, SCHEMA, RankingSettings(seed=seed))
        places.append(other.ranks(lambda _, rows: np.zeros(len(rows))).rank.mean())
    sizes = [len(task.candidates(number)) for number in range(task.users)]
    assert np.mean(places) == pytest.approx((np.mean(sizes) + 1) / 2, rel=0.1)


def test_rows_without_an_id_are_left_out(log):
    gone = log.with_columns(
        item=pl.when(pl.col("item") == "i3").then(None).otherwise("item"),
        user=pl.when(pl.col("user") == "u1").then(None).otherwise("user"),
    )
    task = RankingTask(
        prepare(gone, SCHEMA, split=ColumnSplit(column="part"), seed=0), SCHEMA, RankingSettings()
    )
    assert "i3" not in task.items["item"].to_list()
    assert task.items.height == 30
    assert task.contexts["user"].null_count() == 0


def test_schemas_that_no_ranking_fits(subtests):
    for changes, sentence in [
        ({"label": Label("price", task="regression")}, "ranking needs a binary label, but 'price'"),
        ({"fields": SCHEMA.fields[1:4]}, "no field of the schema has the role user or context"),
        (
            {"fields": (SCHEMA.fields[0], SCHEMA.fields[4])},
            "no field of the schema has the role item",
        ),
    ]:
        with subtests.test(changes=changes, sentence=sentence):
            fields = {"fields": (*SCHEMA.fields[:3], SCHEMA.fields[4])} | changes
            with pytest.raises(ConfigError, match=sentence):
                check_ranking(dataclasses.replace(SCHEMA, **fields))


def test_columns_that_are_not_named(log):
    fields = (SCHEMA.fields[2], SCHEMA.fields[4])
    schema = Schema(fields=fields, label=Label("liked"))
    prepared = prepare(log, schema, split=ColumnSplit(column="part"), seed=0)
    with pytest.raises(
        ConfigError, match="a column of user ids, which the schema does not have: set user = COLUMN"
    ):
        RankingTask(prepared, schema, RankingSettings())
    said = dataclasses.replace(schema, user="user", item="item")
    assert RankingTask(prepared, said, RankingSettings()).items.height == 31


def test_no_user_with_a_new_positive_is_an_error(log):
    frame = log.with_columns(item=pl.lit("i0"), user=pl.lit("u0"), liked=pl.int_range(pl.len()) % 2)
    prepared = prepare(frame, SCHEMA, split=ColumnSplit(column="part"), seed=0)
    with pytest.raises(DataError, match="all 1 were liked before: keep_seen=True ranks them too"):
        RankingTask(prepared, SCHEMA, RankingSettings())


def test_a_board_has_means_of_users_and_paired_differences(prepared, bundle):
    task = RankingTask(prepared, SCHEMA, RankingSettings())
    ranked = rank_items(bundle, task)
    best = dataclasses.replace(
        ranked, rank=np.concatenate([np.arange(n) + 1 for n in np.bincount(ranked.user)])
    )
    (board,) = ranking_boards({"random": [ranked, ranked], "best": [best, best]}, k=5)
    assert (board.base, board.users, board.lines[0].recipe) == ("random", task.users, "best")
    lines = {line.recipe: line for line in board.lines}
    assert set(lines) == {"random", "best", POPULARITY}
    assert lines["best"].metrics["ndcg"].value == 1.0
    mean = top_k_metrics(ranked.rank, ranked.user, ranked.users, 5)["recall"].mean()
    assert lines["random"].metrics["recall"].value == pytest.approx(mean)
    assert lines["best"].against["ndcg"].value == pytest.approx(
        1 - lines["random"].metrics["ndcg"].value
    )
    assert lines["random"].against is None
    assert lines[POPULARITY].by_seed["hr"] == (
        top_k_metrics(ranked.popular, ranked.user, ranked.users, 5)["hr"].mean(),
    )
    other = dataclasses.replace(ranked, about={**ranked.about, "digest": "other"})
    assert len(ranking_boards({"a": [ranked], "b": [other]})) == 2


def test_lists_are_the_best_candidates_of_each_user(prepared, bundle, capsys):
    task = RankingTask(prepared, SCHEMA, RankingSettings())
    ranked = rank_items(bundle, task)
    lists = ranked.lists
    for number in range(task.users):
        listed = lists.model[number][lists.model[number] >= 0]
        assert (
            sorted(listed) == task.candidates(number).tolist()
        )  # fewer than are kept: all of them
        own = ranked.user == number
        assert [listed.tolist().index(row) + 1 for row in task.item[own]] == ranked.rank[
            own
        ].tolist()
    (board,) = ranking_boards({"random": [ranked, ranked]}, k=4)
    lines = {line.recipe: line for line in board.lines}
    first = np.unique(lists.model[:, :4])
    assert lines["random"].lists["coverage"] == len(first) / task.items.height
    popular = np.unique(lists.popular[:, :4])
    assert lines[POPULARITY].lists["coverage"] == len(popular) / task.items.height
    assert lines[POPULARITY].check is None
    assert {row[0] for row in board.lists_table({"random": "r"}).rows} == {"r", POPULARITY}

    short = dataclasses.replace(lists, model=lists.model[:, :3], popular=lists.popular[:, :3])
    none_kept = dataclasses.replace(ranked, lists=None)
    for old in (dataclasses.replace(ranked, lists=short), none_kept):
        (board,) = ranking_boards({"old": [ranked, old]}, k=4)
        assert next(line.lists for line in board.lines if line.recipe == "old") == {}
    (board,) = ranking_boards({"old": [dataclasses.replace(ranked, lists=short)]}, k=4)
    show_rankings([board], "")
    out = capsys.readouterr().out
    assert NO_LISTS in out
    assert "shared by two users" not in out


def test_rankings_are_kept_with_their_run_and_made_once(folder, monkeypatch):
    trained = []
    real = module.train_recipe
    monkeypatch.setattr(module, "train_recipe", lambda *a: trained.append(a[0].name) or real(*a))
    recipe, store = load_recipe("fm.toml"), Store(Path("store"))
    options = {"store": store, "context": RunContext(data_dir=Path("none"))}
    plain = recorded_runs([recipe], [0], **options)["fm.toml"][0]
    assert plain.ranked is None
    with_rankings = recorded_runs(
        [recipe], [0], ranking=RankingSettings(keep_seen=True), **options
    )["fm.toml"][0]
    again = recorded_runs([recipe], [0], ranking=RankingSettings(keep_seen=True), **options)[
        "fm.toml"
    ][0]
    assert trained == ["fm.toml"] * 2
    assert again.ranked.rank.tolist() == with_rankings.ranked.rank.tolist()
    for name in LISTS:
        kept = getattr(again.ranked.lists, name)
        np.testing.assert_array_equal(kept, getattr(with_rankings.ranked.lists, name))
    assert again.about["test"] == plain.about["test"]
    # a run with rankings is reused where none are requested
    recorded_runs([recipe], [0], **options)
    assert trained == ["fm.toml"] * 2
    recorded_runs([recipe], [0], ranking=RankingSettings(keep_seen=True, candidates=2), **options)
    assert trained == ["fm.toml"] * 3
    assert store.get(again.folder.name).ranked.lists is None  # of items sampled for each user
    assert len(list(again.folder.glob("ranking.*.npz"))) == 1
    file = next(again.folder.glob("ranking.*.npz"))
    file.write_bytes(b"no longer")
    with pytest.raises(DataError, match="does not match its checksum or size"):
        _ = store.get(again.folder.name).ranked


def test_a_task_that_cannot_be_is_refused_before_any_training(folder, monkeypatch):
    text = (
        (folder / "fm.toml")
        .read_text()
        .replace('column = "click" }', 'column = "click", task = "regression" }')
    )
    (folder / "number.toml").write_text(text)
    options = {"store": Store(Path("s")), "context": RunContext(data_dir=Path("none"))}
    monkeypatch.setattr(module, "train_recipe", lambda *_: pytest.fail("trained"))
    with pytest.raises(
        ConfigError, match=r"number\.toml: ranking needs a binary label, but 'click' is a number"
    ):
        recorded_runs([load_recipe("number.toml")], [0], ranking=RankingSettings(), **options)
