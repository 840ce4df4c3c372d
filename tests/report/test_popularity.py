"""The model against popularity: users, items and shares counted one by one."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fieldwise import AFM, Bundle, Categorical, Label, Numeric, Schema
from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.split_settings import RandomSplit
from fieldwise.models.build import build_network
from fieldwise.report import popularity
from fieldwise.report.popularity import Against, against_popularity, popularity_section
from fieldwise.report.runs import Scored

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Categorical("item", role="item"),
        Numeric("price", role="item"),
        Categorical("device"),
    ),
    label=Label("click"),
)

NUMBER = Label("click", task="regression")


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
    settings = AFM(embedding_dim=4, attention_dim=3)
    network = build_network(settings, prepared.encoder.layout, 0).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for p in network.parameters():
            p.normal_(std=0.5)
    return Bundle(SCHEMA, prepared.encoder, settings, network, prepared.test.frame.head(3)), prepared


def counted(bundle, prepared, k):
    """Each user's shares: all rows made and scored by themselves."""
    train, valid, test = (part.frame for part in (prepared.train, prepared.valid, prepared.test))
    liked = dict(train.filter(pl.col("click") == 1)["item"].value_counts().rows())
    every = sorted({*train["item"], *valid["item"], *test["item"]})
    found = {}
    for user in sorted(test["user"].unique()):
        known = {*train.filter(pl.col("user") == user)["item"], *valid.filter(pl.col("user") == user)["item"]}
        new = test.filter((pl.col("user") == user) & (pl.col("click") == 1) & ~pl.col("item").is_in(list(known)))
        if not new.height:
            continue
        scores = {}
        for item in (one for one in every if one not in known):
            prices = next(t for t in (train, valid, test) if item in t["item"]).filter(pl.col("item") == item)["price"]
            row = new.row(0, named=True) | {"item": item, "price": prices[-1]}
            scores[item] = float(bundle.predict(pl.DataFrame([row]))[0])
        wanted, orders = set(new["item"]), (scores, {one: liked.get(one, 0) for one in scores})
        tops = [set(sorted(scores, key=lambda one, order=order: -order[one])[:k]) for order in orders]
        found[user] = [len(wanted & top) / min(k, len(wanted)) for top in tops]
    return np.array(list(found.values()))


@pytest.mark.parametrize("k", [2, 10])
def test_shares_are_those_counted_one_by_one(made, k):
    bundle, prepared = made
    found = against_popularity(bundle, prepared, "user", "item", k=k)
    expected = counted(bundle, prepared, k)
    assert (found.users, found.items, found.drawn) == (len(expected), log()["item"].n_unique(), False)
    np.testing.assert_allclose(np.sort(found.model), np.sort(expected[:, 0]))
    np.testing.assert_allclose(np.sort(found.popular), np.sort(expected[:, 1]))
    assert 0 < found.model.mean() != found.popular.mean() > 0


def test_items_and_users_are_sampled_where_there_are_many(made, monkeypatch):
    bundle, prepared = made
    monkeypatch.setattr(popularity, "ITEMS", 5)
    monkeypatch.setattr(popularity, "USERS", (1, 3))
    found = against_popularity(bundle, prepared, "user", "item")
    assert found.drawn
    assert len(found.model) == 3 < found.users
    assert found.items < log()["item"].n_unique()
    again = against_popularity(bundle, prepared, "user", "item")
    np.testing.assert_array_equal(found.model, again.model)


@pytest.mark.parametrize(
    ("model", "popular", "words", "warns"),
    [
        (0.31, 0.19, "12 of 100 more found. Of 100 items that users liked, 31 are among the model's first 10", False),
        (0.19, 0.31, "12 of 100 fewer found.", True),
    ],
)
def test_the_sentence(model, popular, words, warns):
    noise = np.random.default_rng(0).normal(0, 0.01, 200)
    noise -= noise.mean()
    both = Against(model=model + noise, popular=np.full(200, popular), items=1682, users=943, drawn=False)
    note, *others = popularity._blocks(both, seed=0)
    assert note.text.startswith(f"Compared with the popularity baseline: {words}")
    assert note.warns == warns
    assert others[-1].note.startswith(
        "200 users sampled of 943 with positive test rows of items new to them; 1,682 items"
    )


def test_a_difference_of_chance_is_called_so():
    same = np.random.default_rng(0).random(40)
    both = Against(model=same, popular=same[::-1].copy(), items=9, users=40, drawn=False)
    assert "no significant difference" in popularity._blocks(both, seed=0)[0].text


def run_of(made, **changes):
    bundle, prepared = made
    test = Scored(np.asarray(prepared.test.main, float), bundle.score(prepared.test.frame))
    recipe = SimpleNamespace(schema=changes.pop("schema", SCHEMA), target_encoding=changes.pop("target_encoding", None))
    found = {"recipe": recipe, "bundle": bundle, "prepared": prepared, "test": {"click": test}}
    return SimpleNamespace(**found | changes)


def test_the_section_says_how_both_order_the_test_rows(made):
    run = run_of(made)
    blocks = popularity_section(run, {"user": "user", "item": "item"}, seed=0).blocks
    assert blocks[0].text.startswith("Compared with the popularity baseline: ")
    train, test = run.prepared.train.frame, run.prepared.test.frame
    liked = dict(train.filter(pl.col("click") == 1)["item"].value_counts().rows())
    scores = run.test["click"].score, [liked.get(item, 0) for item in test["item"]]
    areas = [roc_auc_score(test["click"], score) for score in scores]
    model, popular = (f"{100 * area:.0f} times" for area in areas)
    assert f"positive one higher {model} of 100, and popularity {popular}." in blocks[-1].text


def test_what_leaves_it_out_is_said(subtests, made):
    for columns, changes, words in [
        ({"user": None}, {}, "the rows have no column of users"),
        ({}, {"bundle": None}, "a run stored by `compare` has no network"),
        ({}, {"target_encoding": object()}, "target encoding depends on rows"),
        ({}, {"schema": Schema(fields=SCHEMA.fields, label=NUMBER)}, "the label is a number"),
    ]:
        with subtests.test(columns=columns, changes=changes, words=words):
            (note,) = popularity_section(
                run_of(made, **changes), {"user": "user", "item": "item"} | columns, seed=0
            ).blocks
            assert note.text.startswith("Omitted: ")
            assert words in note.text
