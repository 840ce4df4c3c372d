"""The server's answers against the bundles themselves; every bad request gets an answer that names the part."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from serving.conftest import SCHEMA, catalogue, log
from serving.hostile import BODIES, CELLS, ROW

from fieldwise import Label
from fieldwise.errors import ConfigError, DataError
from fieldwise.explain import effects, explain
from fieldwise.models import FM
from fieldwise.serving import Cascade, Query, build_index
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.replacement import Live
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
USERS = pl.DataFrame({"user": ["u1", "u2"], "history": ["i1|i2", None]})


@pytest.fixture(scope="module")
def cascade(tmp_path_factory, tower, ranker):
    return Cascade(tower, build_index(tower, catalogue(), tmp_path_factory.mktemp("index") / "ix")[0], ranker)


def client(service, stores=None, **settings):
    """Ask an application in this process: `post(path, body)` and `get(path)`."""
    app = create_app(service, ServerSettings(**settings), stores)

    def ask(method, path, **content):
        async def run():
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
                return await asking.request(method, path, **content)

        return asyncio.run(run())

    return SimpleNamespace(
        app=app,
        ask=ask,
        post=lambda path, body, **more: ask("POST", path, json=body, **more),
        get=lambda path, **more: ask("GET", path, **more),
    )


@pytest.fixture(scope="module")
def server(ranker, cascade):
    return client(Service(ranker, cascade), Stores(users=Lookup("users", TableStore("user", USERS))))


def rows_of(frame):
    return [{**row, "genres": row["genres"].split("|")} for row in frame.to_dicts()]


def refused(answer, status, *parts, field=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "field"}
    for part in parts:
        assert part in error["message"]
    if field is not None:
        assert error["field"] == field


# predict


def test_predictions_are_the_bundles(server, ranker):
    rows = log(9, seed=4)
    answer = server.post("/v1/predict", {"rows": rows_of(rows)})
    assert answer.status_code == 200
    found = answer.json()["predictions"]
    np.testing.assert_allclose([one["score"] for one in found], ranker.score(rows), rtol=1e-6)
    np.testing.assert_allclose([one["prediction"] for one in found], ranker.predict(rows), rtol=1e-6)


def test_unseen_and_absent_values_are_answered(server, ranker):
    row = {"user": "nobody", "history": None, "device": None, "item": 77, "genres": [], "price": None, "more": "x"}
    frame = pl.DataFrame({k: [v] for k, v in row.items()}, schema_overrides={"history": pl.String, "device": pl.String})
    found = server.post("/v1/predict", {"rows": [row]}).json()["predictions"]
    frame = frame.with_columns(genres=pl.lit(""), price=pl.lit(None, pl.Float64))
    assert found[0]["score"] == pytest.approx(ranker.score(frame)[0], rel=1e-5)


def test_several_labels_by_name(build):
    import dataclasses

    schema = dataclasses.replace(SCHEMA, more_labels=(Label("stars", task="regression"),))
    bundle = build(FM(embedding_dim=3), schema=schema)
    rows = log(3, seed=4)
    found = client(Service(bundle)).post("/v1/predict", {"rows": rows_of(rows)}).json()["predictions"]
    for number, (score, prediction) in enumerate(zip(bundle.score(rows), bundle.predict(rows), strict=True)):
        for column, name in enumerate(("click", "stars")):
            assert found[number][f"{name}.score"] == pytest.approx(score[column], rel=1e-6)
            assert found[number][f"{name}.prediction"] == pytest.approx(prediction[column], rel=1e-6)


# recommend


@pytest.mark.parametrize(
    "more", [{}, {"exclude": ["i3", "x"]}, {"where": {"genres": ["g1"]}}, {"candidates": ["i4", "i5"]}]
)
def test_recommendations_are_the_cascades(server, cascade, more):
    answer = server.post("/v1/recommend", {"context": CONTEXT, "k": 4, "prerank": 9, **more})
    assert answer.status_code == 200, answer.text
    found = cascade.recommend(Query(context={**CONTEXT, "history": "i1|i2"}, k=4, prerank=9, **more))
    items = answer.json()["items"]
    assert [item["id"] for item in items] == found.items["item"].to_list()
    np.testing.assert_allclose([item["prediction"] for item in items], found.items["prediction"], rtol=1e-6)
    assert all(item["fields"]["title"] == f"Title {item['id'][1:]}" for item in items)
    assert answer.json()["counts"] == found.counts
    assert set(answer.json()["milliseconds"]) == {"encode", "filter", "prerank", "rank"}


def test_a_known_user_brings_its_fields_and_given_ones_count_first(server):
    by_user = server.post("/v1/recommend", {"user": "u1", "context": {"device": "tv"}}).json()["items"]
    by_hand = server.post("/v1/recommend", {"context": CONTEXT}).json()["items"]
    assert by_user == by_hand
    other = server.post("/v1/recommend", {"user": "u1", "context": {"device": "tv", "history": ["i7"]}}).json()["items"]
    assert other != by_hand
    assert other == server.post("/v1/recommend", {"context": {**CONTEXT, "history": ["i7"]}}).json()["items"]


def test_without_an_index_or_users(ranker):
    bare = client(Service(ranker))
    refused(bare.post("/v1/recommend", {"context": CONTEXT}), 404, "has no items to recommend")
    refused(bare.get("/v1/items/i1/similar"), 404, "has no items to recommend")
    refused(bare.post("/v1/explain", {"context": CONTEXT, "items": ["i1"]}), 404, "no items to recommend")
    assert bare.get("/readyz").json()["items"] == 0
    with pytest.raises(ConfigError, match="needs a bundle that scores"):
        Service()


def test_without_users(ranker, cascade):
    refused(client(Service(ranker, cascade)).post("/v1/recommend", {"user": "u1"}), 422, "has no users", field="user")


def test_a_tower_alone_recommends_and_scores(tower, cascade):
    alone = client(Service(cascade=Cascade(tower, cascade.index)))
    found = alone.post("/v1/recommend", {"context": CONTEXT, "k": 3}).json()["items"]
    scores = tower.score(catalogue().with_columns(user=pl.lit("u1"), history=pl.lit("i1|i2"), device=pl.lit("tv")))
    assert [int(item["id"][1:]) for item in found] == np.argsort(-scores, kind="stable")[:3].tolist()
    assert all("prediction" not in item for item in found)


def test_users_are_named_once():
    with pytest.raises(DataError, match="must have the column 'id'"):
        TableStore("id", USERS)
    with pytest.raises(DataError, match=r"found 'u1' in column 'user' .*occurs twice"):
        TableStore("user", pl.concat([USERS, USERS]))


# explain, similar


def test_explanations_are_those_of_the_command(server, ranker):
    rows = log(3, seed=4)
    found = server.post("/v1/explain", {"rows": rows_of(rows)}).json()["explanations"]
    expected = explain(ranker, rows)
    for number, one in enumerate(found):
        row = expected.row(number)
        assert one["score"] == pytest.approx(row["score"], rel=1e-6)
        assert [f["field"] for f in one["fields"]] == [f["field"] for f in row["fields"]]
        assert len(one["pairs"]) == 15
        assert one["sentence"] == row["sentence"]


def test_recommended_items_are_explained(server):
    items = server.post("/v1/recommend", {"context": CONTEXT, "k": 2}).json()["items"]
    ask = {"context": CONTEXT, "items": [item["id"] for item in items]}
    found = server.post("/v1/explain", ask).json()["explanations"]
    for one, item in zip(found, items, strict=True):
        assert one["prediction"] == pytest.approx(item["prediction"], rel=1e-5)
        values = {f["field"]: f["value"] for f in one["fields"]}
        assert (values["item"], values["user"], values["device"]) == (item["id"], "u1", "tv")


def test_items_of_every_type(tmp_path, tower, ranker):
    """A catalogue with dates, decimals and durations: what comes back filters, and what cannot is named."""
    day = pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 1, 30), eager=True)
    more = catalogue().with_columns(
        item=pl.Series(range(30)), day=day, paid=pl.Series(["1.50"] * 30).cast(pl.Decimal(10, 2)), took=day - day[0]
    )
    cascade = Cascade(tower, build_index(tower, more, tmp_path / "ix")[0], ranker)
    mixed = client(Service(ranker, cascade))
    found = mixed.post("/v1/recommend", {"context": CONTEXT, "k": 1, "candidates": [7, 8.0, "9"]}).json()
    assert found["counts"]["candidates"] == 3
    (item,) = found["items"]
    assert item["fields"]["day"] == f"2026-01-{int(item['id']) + 1:02}"
    for column in ("day", "paid", "item"):
        where = {column: [item["fields"][column]]}
        again = mixed.post("/v1/recommend", {"context": CONTEXT, "k": 1, "where": where}).json()
        assert again["counts"]["filtered"] == (30 if column == "paid" else 1)
    refused(
        mixed.post("/v1/recommend", {"context": CONTEXT, "where": {"took": ["1"]}}), 422, "'took'", field="where.took"
    )
    why = mixed.post("/v1/explain", {"context": CONTEXT, "items": [int(item["id"])]}).json()["explanations"][0]
    assert why["prediction"] == pytest.approx(item["prediction"], rel=1e-5)


def test_directions_are_computed_once(server, ranker, monkeypatch):
    expected = effects(ranker)
    assert server.get("/v1/effects").json()["effects"] == [{"numbers": None} | one for one in expected]
    monkeypatch.setattr("fieldwise.serving.service.effect", None)
    assert [one["field"] for one in server.get("/v1/effects").json()["effects"]] == [one["field"] for one in expected]


def test_directions_need_sample_rows(ranker):
    bare = client(Service(dataclasses.replace(ranker, samples=ranker.samples.head(0))))
    refused(bare.get("/v1/effects"), 422, "the bundle has no sample rows")


def test_similar_items_have_the_nearest_heads(server, cascade):
    heads = cascade.index.stored.heads.numpy()
    unit = heads / np.linalg.norm(heads, axis=2, keepdims=True)
    own = unit[4]
    similarity = np.array([np.mean([max(float(h @ g) for g in other) for h in own]) for other in unit])
    similarity[4] = -1
    best = np.argsort(-similarity, kind="stable")[:5]
    found = server.get("/v1/items/i4/similar?k=5").json()["items"]
    assert [item["id"] for item in found] == [f"i{b}" for b in best]
    np.testing.assert_allclose([item["similarity"] for item in found], similarity[best], rtol=1e-5)
    assert len(server.get("/v1/items/i4/similar?k=100").json()["items"]) == 29


# what is refused

PREDICT = {
    "no rows": ({"rows": []}, "rows"),
    "no body": ({}, "rows"),
    "a list": ([], None),
    "null": (None, None),
    "rows of text": ({"rows": "x"}, "rows"),
    "a row of text": ({"rows": ["x"]}, "rows[0]"),
    "an unknown key": ({"rows": [ROW], "row": 1}, "row"),
    "a missing field": ({"rows": [ROW, {k: v for k, v in ROW.items() if k != "device"}]}, "rows[1].device"),
    "a list for one value": ({"rows": [{**ROW, "user": ["u"]}]}, "rows[0].user"),
    "an object": ({"rows": [{**ROW, "user": {"a": 1}}]}, "rows[0].user"),
    "text for a number": ({"rows": [{**ROW, "price": "cheap"}]}, "rows[0].price"),
    "a list of lists": ({"rows": [{**ROW, "genres": [["g"]]}]}, "rows[0].genres"),
    "a number beyond floats": ({"rows": [{**ROW, "price": 1e39}]}, "rows[0].price"),
    "too many rows": ({"rows": [ROW] * 1001}, "rows"),
}


def test_rows_that_cannot_be_scored(subtests, server):
    for case in PREDICT:
        with subtests.test(case=case):
            body, field = PREDICT[case]
            refused(server.post("/v1/predict", body), 422, field=field)


RECOMMEND = {
    "no context": ({}, 422, "context.user"),
    "a field missing": ({"context": {"user": "u1", "device": "tv"}}, 422, "context.history"),
    "an unknown user": ({"user": "u9", "context": {"device": "tv"}}, 404, "user"),
    "k of 0": ({"context": CONTEXT, "k": 0}, 422, "k"),
    "k above the catalogue": ({"context": CONTEXT, "k": 31}, 422, "k"),
    "k above the limit": ({"context": CONTEXT, "k": 5000}, 422, "k"),
    "k of text": ({"context": CONTEXT, "k": "many"}, 422, "k"),
    "prerank above the limit": ({"context": CONTEXT, "prerank": 10_001}, 422, "prerank"),
    "too many values": (
        {"context": CONTEXT, "where": {"genres": ["g"] * 60_000, "title": ["t"] * 50_000}},
        422,
        "where",
    ),
    "too many ids": ({"context": CONTEXT, "exclude": ["i"] * 100_001}, 422, "exclude"),
    "an unknown candidate": ({"context": CONTEXT, "candidates": ["i1", "i99"]}, 422, "candidates[1]"),
    "an unknown column": ({"context": CONTEXT, "where": {"genre": ["g1"]}}, 422, "where.genre"),
    "a filter of text": ({"context": CONTEXT, "where": {"genres": "g1"}}, 422, "where.genres"),
    "a context of text": ({"context": "x"}, 422, "context"),
    "an object in a context": ({"context": {**CONTEXT, "user": {}}}, 422, "context.user"),
}


def test_recommendations_that_cannot_be_made(subtests, server):
    for case in RECOMMEND:
        with subtests.test(case=case):
            body, status, field = RECOMMEND[case]
            refused(server.post("/v1/recommend", body), status, field=field)


def test_other_requests_that_cannot_be_answered(server):
    for body in ({}, {"rows": [ROW], "items": ["i1"]}):
        refused(server.post("/v1/explain", body), 422, "either rows or items")
    refused(server.post("/v1/explain", {"rows": [ROW] * 51}), 422, "at most 50, found 51", field="rows")
    refused(server.post("/v1/explain", {"rows": [ROW], "user": "u1"}), 422, "is only for items", field="user")
    refused(server.get("/v1/items/none/similar"), 404, "found 'none'", field="id")
    refused(server.get("/v1/items/i1/similar?k=0"), 422, field="k")
    refused(server.get("/v1/nothing"), 404)
    refused(server.get("/v1/predict"), 405)
    for content in (b"{", b"\xff", b"", b'{"rows": [{"price": NaN}]}'):
        answer = server.ask("POST", "/v1/predict", content=content, headers={"content-type": "application/json"})
        refused(answer, 400 if content == b"\xff" else 422)


def test_a_body_that_is_not_said_to_be_json_is_told_so(server):
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = server.ask("POST", "/v1/predict", content=b'{"rows": []}', headers=headers)
        refused(answer, 422, "Content-Type: application/json", field="body")


def test_halves_of_characters_are_named(server):
    headers = {"content-type": "application/json"}
    context = '"context": {"user": "u1", "history": [], "device": "tv"}'
    for path, body in (
        ("/v1/predict", '{"rows": [{"user": "\\ud800"}]}'),
        ("/v1/recommend", '{"user": "\\ud800"}'),
        ("/v1/recommend", f'{{{context}, "exclude": ["\\ud800"]}}'),
        ("/v1/recommend", f'{{{context}, "where": {{"genres": ["\\ud800"]}}}}'),
        ("/v1/recommend", f'{{{context}, "where": {{"\\ud800": ["a"]}}}}'),
        ("/v1/recommend", '{"\\ud800": 1}'),
    ):
        answer = server.ask("POST", path, content=body.encode(), headers=headers)
        refused(answer, 422)


def test_bodies_that_are_too_large_are_not_read_to_their_end(ranker):
    small = client(Service(ranker), max_body=100)
    refused(small.post("/v1/predict", {"rows": [ROW] * 9}), 413, "100 bytes")
    sent = []

    async def body():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 50

    refused(small.ask("POST", "/v1/predict", content=body()), 413)
    assert len(sent) < 10


def test_a_token_is_asked_for(ranker):
    closed = client(Service(ranker), token="secret")
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        answer = closed.post("/v1/predict", {"rows": [ROW]}, headers=headers)
        refused(answer, 401, "Authorization: Bearer TOKEN")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert closed.get("/metrics").status_code == 401
    assert closed.post("/v1/predict", {"rows": [ROW]}, headers={"Authorization": "Bearer secret"}).status_code == 200
    assert closed.get("/healthz").json() == {"status": "ok"}
    assert closed.get("/readyz").status_code == 200


def test_within_another_application(ranker):
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/inner", create_app(Service(ranker), ServerSettings(token="secret")))

    async def ask(path, **headers):
        transport = httpx.ASGITransport(app=outer)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            return (await asking.get(path, headers=headers)).status_code

    assert asyncio.run(ask("/inner/healthz")) == 200
    assert asyncio.run(ask("/inner/")) == 200
    assert asyncio.run(ask("/inner/v1/about")) == 401
    assert asyncio.run(ask("/inner/v1/about", authorization="bearer secret")) == 200


def test_the_document_says_where_the_application_is_mounted(ranker):
    from fastapi import FastAPI

    outer, inner = FastAPI(), create_app(Service(ranker))
    outer.mount("/inner", inner)

    async def ask(app, path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as asking:
            return (await asking.get(path)).json()

    for _ in range(2):
        plain = asyncio.run(ask(inner, "/openapi.json"))
        assert asyncio.run(ask(outer, "/inner/openapi.json")) == plain | {"servers": [{"url": "/inner"}]}
        assert asyncio.run(ask(inner, "/openapi.json")) == plain


def test_k_left_out_is_what_there_is(tmp_path, tower, ranker):
    few = Cascade(tower, build_index(tower, catalogue(4), tmp_path / "ix")[0], ranker)
    asked = client(Service(ranker, few))
    assert len(asked.post("/v1/recommend", {"context": CONTEXT}).json()["items"]) == 4
    refused(asked.post("/v1/recommend", {"context": CONTEXT, "k": 10}), 422, field="k")


def test_a_body_that_does_not_arrive_is_given_up(ranker):
    slow = client(Service(ranker), timeout=0.05)

    async def body():
        yield b"{"
        await asyncio.sleep(0.5)
        yield b"}"

    refused(slow.ask("POST", "/v1/predict", content=body()), 408, "must arrive within 0.05 s", field="body")


def test_only_so_many_explanations_wait(ranker):
    app = create_app(Service(ranker), ServerSettings(max_waiting=2))

    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as asking:
            body = {"rows": [ROW]}
            found = await asyncio.gather(*(asking.post("/v1/explain", json=body) for _ in range(12)))
            return [(one.status_code, one.headers.get("retry-after")) for one in found]

    assert sorted(asyncio.run(ask())) == [(200, None)] * 2 + [(503, "1")] * 10


def test_an_answer_that_takes_too_long_is_given_up(ranker):
    slow = Service(ranker)
    slow.predict_all = lambda _: time.sleep(0.3)
    refused(client(slow, timeout=0.05).post("/v1/predict", {"rows": [ROW]}), 503, "may take 0.05 s")


def test_an_error_of_ours_is_a_500_without_a_traceback(ranker):
    broken = Service(ranker)
    broken.predict_all = lambda _: 1 / 0
    answer = client(broken).post("/v1/predict", {"rows": [ROW]})
    assert answer.status_code == 500
    assert "Traceback" not in answer.text


def test_an_error_before_a_request_begins_is_answered_and_counted_too(ranker, monkeypatch):
    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(ServerSettings, "bears_token", fail)
    broken = client(Service(ranker))
    answer = broken.get("/v1/about")
    assert answer.status_code == 500
    assert answer.json()["error"]["field"] == "server"
    counted = {"method": "GET", "path": "other", "status": "500"}
    assert broken.app.state.registry.get_sample_value("fieldwise_requests_total", counted) == 1


def test_what_is_counted(ranker):
    counted = client(Service(ranker))
    counted.post("/v1/predict", {"rows": [ROW]})
    counted.post("/v1/predict", {"rows": []})
    counted.get("/v1/items/a/similar")
    counted.get("/secret/path")
    text = counted.get("/metrics").text
    for labels, count in (
        ('method="POST",path="/v1/predict",status="200"', 1),
        ('method="POST",path="/v1/predict",status="422"', 1),
        ('method="GET",path="/v1/items/{id}/similar",status="404"', 1),
        ('method="GET",path="other",status="404"', 1),
    ):
        assert f"fieldwise_requests_total{{{labels}}} {count}.0" in text
    assert 'fieldwise_seconds_count{path="/v1/predict"} 2.0' in text


def test_who_asks_for_metrics_again_and_again_gets_those_of_a_moment_ago(ranker, monkeypatch):
    """About a twentieth of the time goes into their text, which takes 10 ms here: five at once, then five a second."""
    now, made = [100.0], []

    def make(_):
        now[0] += 0.01
        made.append(b"%d" % len(made))
        return made[-1]

    metrics = Metrics(Live(Service(ranker)))
    monkeypatch.setattr("fieldwise.serving.metrics.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("fieldwise.serving.metrics.generate_latest", make)
    assert [metrics.exposition() for _ in range(8)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"5", b"5"]
    until = now[0] + 4.0
    while now[0] < until:
        assert metrics.exposition() == made[-1]
        now[0] += 0.001
    assert 18 < len(made) - 6 < 24
    now[0] += 10
    metrics.exposition()
    assert metrics.exposition() == made[-1] == b"%d" % (len(made) - 1)


def test_the_published_document_has_every_answer(server):
    document = server.get("/openapi.json").json()
    model = {"/v1/predict", "/v1/recommend", "/v1/explain", "/v1/items/{id}/similar"}
    assert set(document["paths"]) == model | {"/v1/about", "/v1/effects", "/v1/users", "/v1/users/{id}", "/v1/items"}
    for path in document["paths"].values():
        for operation in path.values():
            assert {"200", "401", "404", "405", "413", "422", "503"} <= set(operation["responses"])
    assert server.get("/redoc").status_code == 404


def test_the_published_document_has_a_request_and_its_answer(server, ranker):
    """From the served bundle's sample rows."""
    operation = server.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]
    asked, answer = (
        one["content"]["application/json"]["example"]
        for one in (operation["requestBody"], operation["responses"]["200"])
    )
    assert asked["rows"] == [
        {name: row[name] for name in asked["rows"][0]} for row in ranker.samples.head(2).to_dicts()
    ]
    assert server.post("/v1/predict", asked).json() == answer
    wanted = ranker.score(ranker.samples.head(2)).tolist()
    assert [one["score"] for one in answer["predictions"]] == pytest.approx(wanted, abs=1e-6)


def test_the_published_document_states_the_limits_of_the_options(ranker, cascade):
    limits = ServerSettings(max_rows=3, max_k=4, max_prerank=5, max_ids=6, max_explained=2)
    app = create_app(Service(ranker, cascade), limits)
    assert app.openapi() is app.openapi()
    schemas = app.openapi()["components"]["schemas"]
    found = {name: schemas[name]["properties"] for name in ("PredictRequest", "RecommendRequest", "ExplainRequest")}
    assert found["PredictRequest"]["rows"]["maxItems"] == 3
    assert found["RecommendRequest"]["k"]["maximum"] == 4
    assert found["RecommendRequest"]["prerank"]["maximum"] == 5
    assert found["RecommendRequest"]["exclude"]["maxItems"] == 6
    assert found["RecommendRequest"]["candidates"]["anyOf"][0]["maxItems"] == 6
    assert found["ExplainRequest"]["items"]["maxItems"] == found["ExplainRequest"]["rows"]["maxItems"] == 2
    (k,) = [p for p in app.openapi()["paths"]["/v1/items/{id}/similar"]["get"]["parameters"] if p["name"] == "k"]
    assert k["schema"]["maximum"] == 4


# anything at all


@pytest.mark.parametrize("path", BODIES)
@given(data=st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_no_body_is_a_fault_of_ours(server, path, data):
    body = data.draw(BODIES[path] | CELLS)
    headers = {"content-type": "application/json"}
    answer = server.ask("POST", path, content=json.dumps(body).encode(), headers=headers)
    assert answer.status_code in (200, 404, 422), answer.text
    if answer.status_code != 200:
        refused(answer, answer.status_code)


@given(item=st.text(min_size=1, max_size=20), k=st.text(max_size=6))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_no_path_is_a_fault_of_ours(server, item, k):
    answer = server.get(f"/v1/items/{quote(item, safe='')}/similar", params={"k": k})
    assert answer.status_code in (200, 404, 422), answer.text


# the command


def test_the_command_serves_and_stops(tmp_path, tower, ranker):
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")
    USERS.write_csv(tmp_path / "users.csv")
    arguments = ["ranker", "--prerank", "tower", "--index", "ix", "--users", "users.csv", "--user-id", "user"]
    started = subprocess.Popen(
        [sys.executable, "-m", "fieldwise", "serve", *arguments, "--port", "0"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FIELDWISE_TOKEN": "t"},
    )
    assert started.stderr is not None
    try:
        first = started.stderr.readline()
        place = re.search(r"http://\S+", first)
        assert place is not None, first
        headers = {"Authorization": "Bearer t"}
        ask = {"user": "u1", "context": {"device": "tv"}, "k": 2}
        for _ in range(100):
            try:
                answer = httpx.post(f"{place[0]}/v1/recommend", json=ask, headers=headers, timeout=20)
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["items"]) == 2
        assert httpx.get(f"{place[0]}/v1/items/i1/similar").status_code == 401
    finally:
        started.send_signal(signal.SIGTERM)
        rest = started.communicate(timeout=30)[1]
    assert started.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in rest
