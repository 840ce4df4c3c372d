"""The model against popularity: users, items and shares counted one by one."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare
from ids import ITEM, USER
from random_bundle import random_bundle
from sklearn.metrics import roc_auc_score

from fieldwise import AFM, Categorical, Label, Numeric, RandomSplit, Schema
from fieldwise.display import Table
from fieldwise.evaluation.lists import LIST_MEASURES
from fieldwise.report import popularity
from fieldwise.report.page import Caution
from fieldwise.report.popularity import popularity_section
from fieldwise.runs.records import LabelScores

SCHEMA = Schema(
    fields=(USER, ITEM, Numeric("price", role="item"), Categorical("device")), label=Label("click")
)

NUMBER = Label("click", task="regression")
COLUMNS = {"user": "user", "item": "item"}
TASK = SimpleNamespace(all_users=943, items=pl.DataFrame({"item": range(1682)}))


def log(rows=500, users=12, items=30):
    rng = np.random.default_rng(1)
    item = (items * rng.random(rows) ** 2).astype(int)
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, users, rows)],
            "item": [f"i{k:02}" for k in item],
            "price": rng.random(rows),
            "device": rng.choice(["tv", "pc"], rows),
            "click": (rng.random(rows) < 0.7).astype(int),
        }
    )


@pytest.fixture(scope="module")
def made():
    prepared = prepare(log(), SCHEMA, split=RandomSplit(valid=0.2, test=0.3), seed=0)
    settings, samples = AFM(embedding_dim=4, attention_dim=3), prepared.test.frame.head(3)
    return random_bundle(
        settings, SCHEMA, samples, encoder=prepared.encoder, std=0.5, seed=2
    ), prepared


def counted(bundle, prepared, k):
    """Each user's shares: all rows made and scored by themselves."""
    train, valid, test = (part.frame for part in (prepared.train, prepared.valid, prepared.test))
    counts = dict(train.filter(pl.col("click") == 1)["item"].value_counts().rows())
    every = sorted({*train["item"], *valid["item"], *test["item"]})
    results = []
    for user in sorted(test["user"].unique()):
        own = [
            part.filter((pl.col("user") == user) & (pl.col("click") == 1))
            for part in (train, valid, test)
        ]
        known = {*own[0]["item"], *own[1]["item"]}
        wanted = set(own[2]["item"]) - known
        if not wanted:
            continue
        scores = {}
        for item in (one for one in every if one not in known):
            price = pl.concat([train, valid, test]).filter(pl.col("item") == item)["price"][-1]
            row = own[2].row(0, named=True) | {"item": item, "price": price}
            scores[item] = float(bundle.predict(pl.DataFrame([row]))[0])
        popular = {
            one: counts.get(one, 0) + 1e-6 * order for one, order in zip(every, TIES, strict=True)
        }
        tops = [sorted(scores, key=lambda one, by=by: -by[one])[:k] for by in (scores, popular)]
        results.append([len(wanted.intersection(top)) / min(k, len(wanted)) for top in tops])
    return np.array(results)


TIES = -np.random.default_rng([0, 2]).permutation(log()["item"].n_unique())


def test_shares_are_those_counted_one_by_one(made):
    expected = counted(*made, popularity.K)
    table = next(
        b for b in popularity_section(run_of(made), COLUMNS, seed=0).blocks if isinstance(b, Table)
    )
    assert [row[1:3] for row in table.rows] == [
        [f"{100 * share:.1f} %" for share in shares]
        for shares in (expected.mean(0), (expected > 0).mean(0))
    ]
    assert table.note.startswith(
        f"{len(expected)} users with positive test rows of items that they had not liked"
    )
    assert f"{len(TIES)} items, which are all" in table.note
    assert 0 < expected[:, 0].mean() != expected[:, 1].mean() > 0


def test_items_and_users_are_sampled_where_there_are_many(made, monkeypatch):
    monkeypatch.setattr(popularity, "MAX_RANKED_ITEMS", 5)
    monkeypatch.setattr(popularity, "USERS_RANGE", (1, 3))
    tables = [popularity_section(run_of(made), COLUMNS, seed=0).blocks[-2] for _ in range(2)]
    assert tables[0] == tables[1]
    assert tables[0].note.startswith(f"3 users sampled of {len(counted(*made, 1))} with")
    assert f"5 of {len(TIES)} items sampled for each" in tables[0].note


@pytest.mark.parametrize(
    ("model", "popular", "words", "warns"),
    [
        (
            0.31,
            0.19,
            "12 of 100 more found. Of 100 items that users liked, 31 are among the model's first 10",
            False,
        ),
        (0.19, 0.31, "12 of 100 fewer found.", True),
    ],
)
def test_the_sentence(model, popular, words, warns):
    noise = np.random.default_rng(0).normal(0, 0.01, 200)
    noise -= noise.mean()
    note, *others = popularity._blocks(model + noise, np.full(200, popular), TASK, seed=0)
    assert note.startswith(f"Compared with the popularity baseline: {words}")
    assert isinstance(note, Caution) == warns
    assert others[-1].note.startswith(
        "200 users sampled of 943 with positive test rows of items that they had"
    )


def test_a_difference_of_chance_is_called_so():
    same = np.random.default_rng(0).random(40)
    assert "no significant difference" in popularity._blocks(same, same[::-1], TASK, seed=0)[0]


def run_of(made, **changes):
    bundle, prepared = made
    test = LabelScores(np.asarray(prepared.test.main, float), bundle.score(prepared.test.frame))
    recipe = SimpleNamespace(
        schema=changes.pop("schema", SCHEMA), target_encoding=changes.pop("target_encoding", None)
    )
    results = {"recipe": recipe, "bundle": bundle, "prepared": prepared, "test": {"click": test}}
    return SimpleNamespace(**results | changes)


def test_the_section_says_how_both_order_the_test_rows(made):
    run = run_of(made)
    blocks = popularity_section(run, COLUMNS, seed=0).blocks
    assert blocks[0].startswith("Compared with the popularity baseline: ")
    train, test = run.prepared.train.frame, run.prepared.test.frame
    liked = dict(train.filter(pl.col("click") == 1)["item"].value_counts().rows())
    scores = run.test["click"].score, [liked.get(item, 0) for item in test["item"]]
    areas = [roc_auc_score(test["click"], score) for score in scores]
    model, popular = (f"{100 * area:.0f} times" for area in areas)
    assert f"positive one higher {model} of 100, and popularity {popular}." in blocks[-2]
    assert [row[0] for row in blocks[-1].rows] == [
        measure.title for measure in LIST_MEASURES.values()
    ]


def test_an_omitted_section_names_its_reason(subtests, made):
    nothing_new = SimpleNamespace(train=made[1].train, valid=made[1].valid, test=made[1].train)
    for columns, changes, words in [
        ({"user": None}, {}, "the rows have no column of users"),
        (
            {},
            {"prepared": nothing_new},
            "no test user has a positive row of an item that the user had not liked before",
        ),
        ({}, {"bundle": None}, "a run stored by `compare` has no network"),
        ({}, {"target_encoding": object()}, "target encoding depends on rows"),
        ({}, {"schema": Schema(fields=SCHEMA.fields, label=NUMBER)}, "the label is a number"),
        (
            {},
            {"schema": Schema(fields=SCHEMA.fields[1:3], label=SCHEMA.label)},
            "set the fields' roles.",
        ),
    ]:
        with subtests.test(columns=columns, changes=changes, words=words):
            (note,) = popularity_section(run_of(made, **changes), COLUMNS | columns, seed=0).blocks
            assert note.startswith("Omitted: ")
            assert words in note
