"""Limits and pinned items: against a plain loop, alike by all ways, and what they refuse."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from serving.asgi import client
from serving.conftest import catalogue, log

from fieldwise import ConfigError, DataError, IdColumns
from fieldwise.scoring.items import ItemFilters
from fieldwise.scoring.recommend import recommend
from fieldwise.scoring.rules import ListRules
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.service import Service
from fieldwise.serving.user_log import UserLog

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
RULES = {"limits": {"genres": 2}, "pinned": {1: "i7", 4: "i3"}}


def greedy(values, order, k, limits, pinned):
    """The list by its words: free places go, best first, to items whose values are all below their limits."""
    seen = {}
    for row in pinned.values():
        if row in order:
            for pair in values[row]:
                seen[pair] = seen.get(pair, 0) + 1
    free = [row for row in order if row not in pinned.values()]
    places = {place: row for place, row in pinned.items() if row in order}
    taken, passed = [], []
    for row in free:
        if len(taken) == k - len(places):
            break
        if any(seen.get(pair, 0) >= limits[pair[0]] for pair in values[row]):
            passed.append(row)
            continue
        taken.append(row)
        for pair in values[row]:
            seen[pair] = seen.get(pair, 0) + 1
    for place in sorted(places):
        taken.insert(place - 1, places[place])
    if len(taken) == k and taken:
        free_taken = [row for row in taken if row not in places.values()]
        last = order.index(free_taken[-1]) if free_taken else -1
        passed = [row for row in passed if order.index(row) < last]
    return taken, passed


@pytest.mark.parametrize("seed", range(12))
def test_lists_are_those_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    size = 40
    cells = ["|".join(f"g{g}" for g in rng.permutation(4)[:n]) for n in rng.integers(0, 3, size)]
    table = pl.DataFrame(
        {
            "item": [f"i{row}" for row in range(size)],
            "brand": [None if row % 9 == 0 else f"b{rng.integers(5)}" for row in range(size)],
            "genres": cells,
        }
    )
    limits = {"brand": int(rng.integers(1, 4)), "genres": int(rng.integers(2, 5))}
    order = rng.permutation(size)[: rng.integers(1, size)]
    pinned = {}
    if seed % 3:
        pinned = {2: int(order[-1]), 5: int(rng.permutation(size)[0])}
    values = {}
    for row in range(size):
        brand, genres = table["brand"][row], table["genres"][row]
        values[row] = [("brand", brand)] if brand else []
        values[row] += [("genres", genre) for genre in genres.split("|") if genre]
    if len(set(pinned.values())) < len(pinned):
        pinned = {}
    filters = ItemFilters(table, {"genres": "|"})
    for k in (1, 5, 12, 60):
        kept = {place: row for place, row in pinned.items() if place <= k}
        limits = {column: max(limit, 2) if kept else limit for column, limit in limits.items()}
        rules = ListRules(
            items=item_table(table, "item"), filters=filters, limits=limits, pinned=kept
        )
        arranged = rules.arrange(order, k)
        taken, passed = greedy(values, order.tolist(), k, limits, kept)
        assert order[arranged.positions].tolist() == taken
        assert order[arranged.passed_over].tolist() == passed


def test_the_answer_says_what_the_rules_changed(ranker):
    items = catalogue()
    plain = Ranker(ranker, item_table(items, "item"))
    before = plain.recommend(CONTEXT, k=30).items["item"].to_list()
    result = plain.recommend(CONTEXT, k=9, **RULES)
    listed = result.items["item"].to_list()
    assert (listed[0], listed[3]) == ("i7", "i3")
    assert [before[place - 1] for place in result.by_score] == listed
    assert result.items.columns[-2:] == ["prediction", "by_score"]
    assert result.changed[0] == f"'i7' is pinned at 1, and by score at {before.index('i7') + 1}"
    assert result.changed[2].startswith("limits leave out ")
    for row in result.passed_over:
        assert items["item"][int(row)] not in listed
    assert plain.recommend(CONTEXT, k=6).changed == ()
    assert plain.recommend(CONTEXT, k=6).items.columns[-1] == "prediction"
    short = plain.recommend(CONTEXT, k=20, limits={"genres": 1}, where={"genres": ["g1", "g2"]})
    assert short.changed[-1] == (
        f"limits leave {len(short.rows)} of 20 items: raise a limit, or ask for fewer"
    )
    assert len(short.rows) < 3
    few = plain.recommend(CONTEXT, k=6, candidates=["i1", "i7"], pinned={5: "i7"})
    assert few.changed[0].endswith("; the list has 2 items, and it is at 2")
    for rules in (
        {"limits": {"genres": 1.5}},
        {"limits": {"genres": "2"}},
        {"pinned": {"1": "i7"}},
    ):
        with pytest.raises(ConfigError, match="whole number"):
            plain.recommend(CONTEXT, k=6, **rules)
    seen = plain.recommend(CONTEXT, k=6, seen=["i7"], **RULES)
    assert "i7" not in seen.items["item"]
    assert seen.changed[0] == "'i7' is not pinned: the user has seen it"


@pytest.mark.parametrize("exclude_seen", [False, True])
def test_all_ways_give_equal_lists(tmp_path, tower, ranker, exclude_seen):
    items = catalogue().sort("item")
    others = items.join(log(), on="item", how="anti")
    of_others = {"user": "u5", "history": "i1", "device": "tv"}
    new = others.with_columns(pl.lit(text).alias(name) for name, text in of_others.items())
    rows = pl.concat([log(), new.select(log().columns)])
    columns = IdColumns(user="user", item="item")
    rules = {"limits": {"genres": 4}, "pinned": {2: "i7"}}
    everyone = recommend(
        ranker, rows, columns, ["u1", "u2"], n=5, exclude_seen=exclude_seen, **rules
    )
    rows.write_parquet(tmp_path / "log.parquet")
    ranker.save(tmp_path / "bundle")
    words = ["--limit", "genres=4", "--pin", "2=i7", "--k", "5", "--user", "u1", "--user", "u2"]
    words += ["--exclude-seen" if exclude_seen else "--include-seen"]
    paths = [
        tmp_path / "bundle",
        "--log",
        tmp_path / "log.parquet",
        "--out",
        tmp_path / "out.parquet",
    ]
    command = [sys.executable, "-m", "fieldwise", "recommend", *paths, *words]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    changed = everyone.filter(pl.col("by_score") != pl.col("rank"))["user"].n_unique()
    assert f"limits and pinned items changed {changed} list" in said
    their_items = rows.filter(pl.col("user").is_in(["u1", "u2"]))
    seen_pinned = their_items.filter(item="i7")["user"].n_unique() if exclude_seen else 0
    assert (f"CHECK: {seen_pinned} list" in said) == (seen_pinned > 0)
    assert ("without a pinned item" in said) == (seen_pinned > 0)
    assert "the lists: catalogue shown " in said
    assert "of fewer than 5 items" not in said
    assert pl.read_parquet(tmp_path / "out.parquet").equals(everyone)
    whole = Ranker(ranker, item_table(items, "item"))
    cascade = Ranker(ranker, build_index(tower, items, tmp_path / "ix")[0], tower=tower)
    used = UserLog(rows, [ranker.schema], "user", "item")
    for user in ("u1", "u2"):
        expected = everyone.filter(user=user)
        last = rows.filter(user=user).row(-1, named=True)
        context = {"user": user, "history": last["history"].split("|"), "device": last["device"]}
        seen = used.used(user) if exclude_seen else []
        for way in (whole, cascade):
            result = way.recommend(context, k=5, prerank=30, seen=seen, **rules)
            assert result.items["item"].to_list() == expected["item"].to_list()
            assert result.by_score.tolist() == expected["by_score"].to_list()
            service = Service(ranker, way, log=used)
            body = {"context": context, "k": 5, "prerank": 30, "exclude_seen": exclude_seen}
            body |= {"limits": rules["limits"], "pinned": {"2": "i7"}}
            answer = client(service).post("/v1/recommend", body).json()
            assert [item["id"] for item in answer["items"]] == expected["item"].to_list()
            assert [item["by_score"] for item in answer["items"]] == expected["by_score"].to_list()
            assert answer["changed"] == list(result.changed)


def test_a_pinned_item_is_scored_though_pre_ranking_loses_it(tmp_path, tower, ranker):
    items = catalogue()
    cascade = Ranker(ranker, build_index(tower, items, tmp_path / "ix")[0], tower=tower, nprobe=1)
    order = Ranker(None, cascade.index, tower=tower).recommend(CONTEXT, k=30, prerank=30)
    last = order.items["item"][-1]
    assert last not in cascade.recommend(CONTEXT, k=4, prerank=6).items["item"]
    result = cascade.recommend(CONTEXT, k=4, prerank=6, pinned={3: last})
    assert result.items["item"][2] == last
    alone = Ranker(ranker, item_table(items, "item")).recommend(CONTEXT, candidates=[last])
    assert result.items["prediction"][2] == pytest.approx(alone.items["prediction"][0])
    others = cascade.recommend(CONTEXT, k=3, prerank=6).items["item"].to_list()
    assert result.items["item"].to_list() == [*others[:2], last, others[2]]
    tower_alone = Ranker(None, cascade.index, tower=tower)
    assert tower_alone.recommend(CONTEXT, k=4, prerank=6, pinned={1: last}).items["item"][0] == last


def test_what_cannot_be_is_one_sentence(subtests, ranker):
    plain = Ranker(ranker, item_table(catalogue(), "item"))
    service = client(Service(ranker, plain))
    same = catalogue().filter(pl.col("genres").str.contains("g1"))["item"].to_list()[:2]
    for error, rules, sentence in [
        (
            DataError,
            {"pinned": {1: "nobody"}},
            "a pinned item must be one of the catalogue's 30, found 'nobody' at place 1: pin another",
        ),
        (
            DataError,
            {"pinned": {2: "i3"}, "exclude": ["i3"]},
            "a pinned item must be one that the request allows, found 'i3' at place 2, which its filters, ",
        ),
        (
            DataError,
            {"pinned": {2: "i3"}, "where": {"item": ["i4"]}},
            "a pinned item must be one that",
        ),
        (DataError, {"pinned": {2: "i3"}, "candidates": ["i4"]}, "a pinned item must be one that"),
        (
            ConfigError,
            {"pinned": {9: "i3"}},
            "within the list of 5, found 'i3' at place 9: pin it at an earlier place",
        ),
        (ConfigError, {"pinned": {1: "i3", 2: "i3"}}, "pinned at one place, found 'i3' at 2"),
        (
            ConfigError,
            {"pinned": {1: same[0], 2: same[1]}, "limits": {"genres": 1}},
            "pinned items must keep the limits, found 2 with genres ",
        ),
        (DataError, {"limits": {"genre": 1}}, "must name a column of the items, found 'genre'"),
    ]:
        with subtests.test(sentence=sentence):
            with pytest.raises(error, match=sentence):
                plain.recommend(CONTEXT, k=5, **rules)
            body = json.loads(json.dumps({"context": CONTEXT, "k": 5, **rules}))
            answer = service.post("/v1/recommend", body)
            error = answer.json()["error"]
            assert answer.status_code == 422
            assert sentence in error["message"]
            assert error["field"] == ("limits.genre" if "genre'" in sentence else "pinned")
    for rules, sentence in [
        (
            {"limits": {"genres": 0}},
            "a limit must be a whole number of at least 1, found 0 for 'genres'",
        ),
        ({"pinned": {0: "i3"}}, "a place must be a whole number of at least 1, found 0 for 'i3'"),
    ]:
        with subtests.test(sentence=sentence):
            with pytest.raises(ConfigError, match=sentence):
                plain.recommend(CONTEXT, k=5, **rules)
            body = json.loads(json.dumps({"context": CONTEXT, "k": 5, **rules}))
            answer = service.post("/v1/recommend", body)
            assert answer.status_code == 422
            assert "a whole number of at least 1" in answer.json()["error"]["message"]
    with pytest.raises(ConfigError, match="limits must map columns to numbers"):
        plain.recommend(CONTEXT, limits=["genres"])
    with pytest.raises(ConfigError, match="pinned must map places to items"):
        plain.recommend(CONTEXT, pinned=["i3"])
    for pinned, field, sentence in [
        ({"first": "i3"}, "pinned", "a whole number of at least 1, found 'first'"),
        ({"1": "i4", "1.5": "i3"}, "pinned", "a whole number of at least 1, found '1.5'"),
        (
            {"1": "i4", "2": ["i3"]},
            "pinned.2",
            "must be text, a number, true or false, found a list",
        ),
    ]:
        with subtests.test(pinned=pinned):
            answer = service.post("/v1/recommend", {"context": CONTEXT, "pinned": pinned})
            error = answer.json()["error"]
            assert answer.status_code == 422
            assert error["field"] == field
            assert sentence in error["message"]
