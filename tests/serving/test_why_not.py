"""Why an item is not in a list: every stage at which one is lost, its terms, and `POST /v1/why-not` of the same."""

import numpy as np
import polars as pl
import pytest
from serving.asgi import client
from serving.conftest import catalogue, log

from fieldwise import DataError, IdColumns
from fieldwise.explain import explain, why_not
from fieldwise.scoring.recommend import BatchRecommender, recommend
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.service import Service
from fieldwise.serving.user_log import UserLog

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


@pytest.fixture(scope="module")
def whole(ranker):
    return Ranker(ranker, item_table(catalogue(), "item"))


def order_of(ranker, **options):
    return ranker.recommend(CONTEXT, k=30, prerank=30, **options).items["item"].to_list()


def test_what_never_reached_the_ranking(subtests, whole):
    order = order_of(whole)
    item = order[12]
    genres = catalogue().filter(item=item)["genres"][0] or "missing"
    for options, reason, words in [
        ({"seen": [item]}, "seen", "the user has seen it"),
        ({"exclude": [item]}, "excluded", "the request excludes it"),
        ({"candidates": order[:3]}, "candidates", "the request has other candidates"),
        (
            {"where": {"genres": ["g9", "g8"]}},
            "filtered",
            f"its genres is {genres.replace('|', ', ')}, and the filter takes g9, g8",
        ),
    ]:
        with subtests.test(reason=reason):
            answer = why_not(whole, whole.recommend(CONTEXT, k=5, **options), item)
            assert (answer.reason, answer.words, answer.place) == (reason, words, None)
            assert answer.sentence == f"{item!r} is not in the list: {words}"
    listed = why_not(whole, whole.recommend(CONTEXT, k=5), order[3])
    assert (listed.reason, listed.place) == ("listed", 4)
    assert listed.sentence == f"{order[3]!r} is in the list: at place 4"


def test_the_terms_are_those_of_two_explanations(ranker, whole):
    order = order_of(whole)
    result = whole.recommend(CONTEXT, k=5)
    answer = why_not(whole, result, order[20])
    assert (answer.reason, answer.place) == ("score", 21)
    rows = pl.concat([catalogue().filter(item=order[20]), catalogue().filter(item=order[4])])
    pair = rows.with_columns(
        pl.lit("u1").alias("user"), pl.lit("i1|i2").alias("history"), pl.lit("tv").alias("device")
    )
    explanation = explain(ranker, pair)
    differences = explanation.contributions[0] - explanation.contributions[1]
    by_name = dict(zip(explanation.subject.fields, differences, strict=True))
    assert {term.field: term.difference for term in answer.terms} == pytest.approx(by_name)
    assert [term.difference for term in answer.terms] == sorted(by_name.values())
    score = ranker.score(pair)
    assert differences.sum() == pytest.approx(score[0] - score[1], abs=1e-5)
    first = answer.terms[0]
    assert (
        f"it is at place 21 by score, behind the list's last item by score, {order[4]!r}"
        in answer.words
    )
    assert f"because of {first.field} ({first.value} against {first.other}: " in answer.words
    assert dict(zip(("item", "other"), (first.value, first.other), strict=True))


def test_what_pre_ranking_loses_has_its_place_there(tmp_path, ranker, tower):
    index = build_index(tower, catalogue(), tmp_path / "ix")[0]
    cascade = Ranker(ranker, index, tower=tower)
    by_tower = order_of(Ranker(None, index, tower=tower))
    result = cascade.recommend(CONTEXT, k=5, prerank=8)
    for place in (9, 30):
        answer = why_not(cascade, result, by_tower[place - 1])
        assert (answer.reason, answer.place) == ("prerank", place)
        assert answer.words == f"lost in pre-ranking, at place {place} where the first 8 go on"
    ranked = cascade.recommend(CONTEXT, k=8, prerank=8).items["item"].to_list()
    answer = why_not(cascade, result, ranked[6])
    assert (answer.reason, answer.place) == ("score", 7)
    alone = Ranker(None, index, tower=tower)
    answer = why_not(alone, alone.recommend(CONTEXT, k=5, prerank=8), by_tower[6])
    assert (answer.reason, answer.place) == ("score", 7)


def test_what_rules_leave_out(whole):
    order = order_of(whole)
    values = dict(zip(catalogue()["item"], catalogue()["genres"].str.split("|"), strict=True))
    result = whole.recommend(CONTEXT, k=9, limits={"genres": 2})
    passed = [whole.index.texts[int(row)] for row in result.passed_over]
    assert passed
    answer = why_not(whole, result, passed[0])
    assert (answer.reason, answer.place) == ("limit", order.index(passed[0]) + 1)
    (genre,) = [
        g
        for g in values[passed[0]]
        if f"the limit of 2 with genres {g!r} is reached" in answer.words
    ]
    listed = result.items["item"].to_list()
    assert sum(genre in values[item] for item in listed) == 2
    result = whole.recommend(CONTEXT, k=4, pinned={1: order[-1]})
    answer = why_not(whole, result, order[3])
    assert (answer.reason, answer.place) == ("pinned", 4)
    # the last place has a pinned item, which is behind by score
    result = whole.recommend(CONTEXT, k=4, pinned={4: order[-1]})
    answer = why_not(whole, result, order[9])
    assert (
        f"at place 10 by score, behind the list's last item by score, {order[2]!r}" in answer.words
    )
    result = whole.recommend(CONTEXT, k=1, pinned={1: order[-1]})
    assert why_not(whole, result, order[9]).reason == "pinned"


def test_an_unknown_item_is_an_error(whole):
    with pytest.raises(DataError, match="one of the catalogue's 30, found 'nothing'"):
        why_not(whole, whole.recommend(CONTEXT), "nothing")
    nothing = whole.recommend(CONTEXT, candidates=[], k=3)
    assert why_not(whole, nothing, "i1").reason == "candidates"


def test_a_users_list_is_that_of_recommend(ranker):
    """As the command finds context and seen items: by those of `recommend`."""
    columns = IdColumns(user="user", item="item")
    batch = BatchRecommender(ranker, log(), columns, ["u2"])
    seen = batch.ranker.index.texts[batch.seen[0]]
    result = batch.ranker.recommend(batch.contexts.row(0, named=True), k=5, seen=seen)
    expected = recommend(ranker, log(), columns, "u2", n=5)["item"].to_list()
    assert result.items["item"].to_list() == expected
    for item in seen:
        assert why_not(batch.ranker, result, item).reason == "seen"
    assert np.isfinite(
        [term.difference for term in why_not(batch.ranker, result, "i0").terms]
    ).all()


def test_every_stage_is_told_as_in_python(subtests, whole):
    http = client(Service(whole.bundle, whole))
    order = whole.recommend(CONTEXT, k=30).items["item"].to_list()
    item = order[12]
    for options, reason in [
        ({}, "score"),
        ({"k": 20}, "listed"),
        ({"exclude": [item]}, "excluded"),
        ({"candidates": order[:3]}, "candidates"),
        ({"where": {"item": order[:8]}}, "filtered"),
        ({"pinned": {1: order[-1]}, "k": 13}, "pinned"),
        ({"limits": {"title": 1}, "k": 5}, "score"),
    ]:
        with subtests.test(reason=reason):
            given = {"k": 5, **options}
            expected = why_not(whole, whole.recommend(CONTEXT, **given), item)
            assert expected.reason == reason
            answer = http.post("/v1/why-not", {"context": CONTEXT, "item": item, **given})
            assert answer.status_code == 200, answer.text
            found = answer.json()
            assert found.pop("degraded") == []
            terms = found.pop("terms")
            assert [term["field"] for term in terms] == [term.field for term in expected.terms]
            assert [term["difference"] for term in terms] == pytest.approx(
                [term.difference for term in expected.terms]
            )
            assert {name: found[name] for name in ("item", "reason", "place", "sentence")} == {
                "item": item,
                "reason": reason,
                "place": expected.place,
                "sentence": expected.sentence,
            }


def test_what_the_user_has_seen_and_what_pre_ranking_loses(tmp_path, ranker, whole, tower):
    rows = log()
    used = UserLog(rows, [ranker.schema], "user", "item")
    seen = used.used("u1")[0]
    http = client(Service(ranker, whole, log=used))
    answer = http.post("/v1/why-not", {"context": CONTEXT, "item": seen, "exclude_seen": True})
    assert answer.json()["sentence"] == f"{seen!r} is not in the list: the user has seen it"

    index = build_index(tower, catalogue(), tmp_path / "ix")[0]
    by_tower = Ranker(None, index, tower=tower).recommend(CONTEXT, k=30, prerank=30)
    ninth = by_tower.items["item"][8]
    http = client(Service(ranker, Ranker(ranker, index, tower=tower)))
    answer = http.post("/v1/why-not", {"context": CONTEXT, "item": ninth, "k": 5, "prerank": 8})
    assert answer.json()["words"] == "lost in pre-ranking, at place 9 where the first 8 go on"


def test_what_is_refused(subtests, whole):
    http = client(Service(whole.bundle, whole))
    for body, field, sentence in [
        ({"item": "nobody"}, "item", "one of the catalogue's 30, found 'nobody'"),
        ({}, "item", "a body must have item"),
        ({"item": "i1", "k": 31}, "k", "k must be at most the 30 items"),
        ({"item": "i1", "rules": {}}, "rules", "rules is not a field of this request"),
    ]:
        with subtests.test(sentence=sentence):
            answer = http.post("/v1/why-not", {"context": CONTEXT, **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["field"]) == (422, field)
            assert sentence in error["message"]
    bare = client(Service(whole.bundle)).post("/v1/why-not", {"context": CONTEXT, "item": "i1"})
    assert bare.status_code == 404
