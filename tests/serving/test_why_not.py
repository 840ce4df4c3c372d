"""`POST /v1/why-not` against the ranker's own list and `why_not` of it."""

import pytest
from serving.asgi import client
from serving.conftest import catalogue, log, make

from fieldwise import AFM
from fieldwise.explain import why_not
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.service import Service
from fieldwise.serving.user_log import UserLog

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


@pytest.fixture(scope="module")
def bundle():
    return make(AFM(embedding_dim=4, attention_dim=3), seed=5)


@pytest.fixture(scope="module")
def whole(bundle):
    return Ranker(bundle, item_table(catalogue(), "item"))


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


def test_what_the_user_has_seen_and_what_pre_ranking_loses(tmp_path, bundle, whole):
    rows = log()
    used = UserLog(rows, [bundle.schema], "user", "item")
    seen = used.used("u1")[0]
    http = client(Service(bundle, whole, log=used))
    answer = http.post("/v1/why-not", {"context": CONTEXT, "item": seen, "exclude_seen": True})
    assert answer.json()["sentence"] == f"{seen!r} is not in the list: the user has seen it"

    tower = make()
    index = build_index(tower, catalogue(), tmp_path / "ix")[0]
    by_tower = Ranker(None, index, tower=tower).recommend(CONTEXT, k=30, prerank=30)
    ninth = by_tower.items["item"][8]
    http = client(Service(bundle, Ranker(bundle, index, tower=tower)))
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
