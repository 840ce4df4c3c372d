"""The server's answers against the bundles themselves; errors name the part of the request."""

import asyncio
import dataclasses
import threading

import numpy as np
import polars as pl
import pytest
from random_bundle import random_bundle

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from fastapi import FastAPI
from serving.asgi import client, client_of, patient_app, talking
from serving.conftest import SCHEMA, catalogue, log
from serving.hostile import ROW

from fieldwise import FM, Bag, Categorical, ConfigError, Label, Numeric, Schema
from fieldwise.explain import effects, explain
from fieldwise.serving import Ranker, build_index, item_table, routes
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}
USERS = pl.DataFrame({"user": ["u1", "u2"], "history": ["i1|i2", None]})


@pytest.fixture(scope="module")
def server(ranker, cascade):
    return client(
        Service(ranker, cascade), Stores(users=Lookup("users", TableStore("user", USERS)))
    )


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


def test_predictions_are_the_bundles(server, ranker):
    rows = log(9, seed=4)
    answer = server.post("/v1/predict", {"rows": rows_of(rows)})
    assert answer.status_code == 200
    result = answer.json()["predictions"]
    np.testing.assert_allclose([one["score"] for one in result], ranker.score(rows), rtol=1e-6)
    np.testing.assert_allclose(
        [one["prediction"] for one in result], ranker.predict(rows), rtol=1e-6
    )
    row = {
        "user": "nobody",
        "history": None,
        "device": None,
        "item": 77,
        "genres": [],
        "price": None,
        "more": "x",
    }
    absent = pl.DataFrame(row | {"user": "nobody", "item": "77", "genres": ""}).cast(
        {"history": pl.String}
    )
    result = server.post("/v1/predict", {"rows": [row]}).json()["predictions"]
    expected = ranker.score(absent.cast({"device": pl.String, "price": pl.Float64}))[0]
    assert result[0]["score"] == pytest.approx(expected, rel=1e-5)


def test_fields_with_unknown_values_are_named(server):
    """As docs/values.md says: 1.0 is the category 1, but true and the text "1.0" are other values."""
    flags = pl.DataFrame(
        {"flag": [0, 1, 1, 0], "tags": ["a|b", "b", "a", None], "click": [0, 1, 1, 0]}
    )
    schema = Schema(
        fields=(Categorical("flag"), Bag("tags"), Numeric("size")), label=Label("click")
    )
    bundle = random_bundle(FM(embedding_dim=2), schema, flags.with_columns(size=1.5))
    asked = {
        (1, "a"): None,
        (1.0, "b"): None,
        (None, None): None,
        (True, "a|b"): ["flag"],
        ("1.0", "a|z"): ["flag", "tags"],
        (0, "z"): ["tags"],
    }
    rows = [{"flag": flag, "tags": tags, "size": 7} for flag, tags in asked]
    result = client(Service(bundle)).post("/v1/predict", {"rows": rows}).json()["predictions"]
    assert [one.get("unknown") for one in result] == list(asked.values())
    as_numbers = pl.DataFrame({"flag": [1, 1], "tags": ["a", "b"], "size": [7.0, 7.0]})
    np.testing.assert_allclose(
        [one["score"] for one in result[:2]], bundle.score(as_numbers), rtol=1e-6
    )


def test_several_labels_by_name(build):
    schema = dataclasses.replace(SCHEMA, more_labels=(Label("stars", task="regression"),))
    bundle = build(FM(embedding_dim=3), schema=schema)
    rows = log(3, seed=4)
    result = (
        client(Service(bundle)).post("/v1/predict", {"rows": rows_of(rows)}).json()["predictions"]
    )
    for number, (score, prediction) in enumerate(
        zip(bundle.score(rows), bundle.predict(rows), strict=True)
    ):
        for column, name in enumerate(("click", "stars")):
            assert result[number][f"{name}.score"] == pytest.approx(score[column], rel=1e-6)
            assert result[number][f"{name}.prediction"] == pytest.approx(
                prediction[column], rel=1e-6
            )


def test_recommendations_are_the_cascades(server, cascade):
    for more in (
        {},
        {"exclude": ["i3", "x"], "where": {"genres": ["g1"]}},
        {"candidates": ["i4", "i5"]},
    ):
        answer = server.post("/v1/recommend", {"context": CONTEXT, "k": 4, "prerank": 9, **more})
        assert answer.status_code == 200, answer.text
        result = cascade.recommend(context={**CONTEXT, "history": "i1|i2"}, k=4, prerank=9, **more)
        items = answer.json()["items"]
        assert [item["id"] for item in items] == result.items["item"].to_list()
        np.testing.assert_allclose(
            [item["prediction"] for item in items], result.items["prediction"], rtol=1e-6
        )
        assert all(item["fields"]["title"] == f"Title {item['id'][1:]}" for item in items)
        assert answer.json()["counts"] == result.counts
        assert set(answer.json()["milliseconds"]) == {"encode", "filter", "prerank", "rank"}
    more = server.post("/v1/recommend", {"context": CONTEXT, "k": 12, "prerank": 5}).json()
    assert len(more["items"]) == 12, "at least k are pre-ranked"


def test_a_known_user_brings_its_fields_and_given_ones_count_first(server):
    by_user = server.post("/v1/recommend", {"user": "u1", "context": {"device": "tv"}}).json()[
        "items"
    ]
    by_hand = server.post("/v1/recommend", {"context": CONTEXT}).json()["items"]
    assert by_user == by_hand
    other = server.post(
        "/v1/recommend", {"user": "u1", "context": {"device": "tv", "history": ["i7"]}}
    ).json()["items"]
    assert other != by_hand
    assert (
        other
        == server.post("/v1/recommend", {"context": {**CONTEXT, "history": ["i7"]}}).json()["items"]
    )


def test_without_an_index_or_users(ranker, cascade):
    refused(
        client(Service(ranker, cascade)).post("/v1/recommend", {"user": "u1"}),
        422,
        "has no users",
        field="user",
    )
    bare = client(Service(ranker))
    refused(bare.post("/v1/recommend", {"context": CONTEXT}), 404, "has no items to recommend")
    refused(bare.get("/v1/items/i1/similar"), 404, "has no items to recommend")
    refused(
        bare.post("/v1/explain", {"context": CONTEXT, "items": ["i1"]}),
        404,
        "no items to recommend",
    )
    assert bare.get("/readyz").json()["items"] == 0
    with pytest.raises(ConfigError, match="needs a bundle that scores"):
        Service()


def test_a_tower_alone_recommends_and_scores(tower, cascade):
    alone = client(Service(ranker=Ranker(None, cascade.index, tower=tower)))
    result = alone.post("/v1/recommend", {"context": CONTEXT, "k": 3}).json()["items"]
    scores = tower.score(
        catalogue().with_columns(user=pl.lit("u1"), history=pl.lit("i1|i2"), device=pl.lit("tv"))
    )
    assert [int(item["id"][1:]) for item in result] == np.argsort(-scores, kind="stable")[
        :3
    ].tolist()
    assert all("prediction" not in item for item in result)
    about = alone.get("/v1/about").json()
    assert (about["model"]["name"], about["items"]["ranked"]) == ("inttower", False)


def test_explanations_are_those_of_the_command(server, ranker):
    rows = log(3, seed=4)
    result = server.post("/v1/explain", {"rows": rows_of(rows)}).json()["explanations"]
    expected = explain(ranker, rows)
    for number, one in enumerate(result):
        row = expected.row(number)
        assert one["score"] == pytest.approx(row["score"], rel=1e-6)
        assert [f["field"] for f in one["fields"]] == [f["field"] for f in row["fields"]]
        assert len(one["pairs"]) == 15
        assert one["sentence"] == row["sentence"]
    items = server.post("/v1/recommend", {"context": CONTEXT, "k": 2}).json()["items"]
    ask = {"context": CONTEXT, "items": [item["id"] for item in items]}
    for one, item in zip(
        server.post("/v1/explain", ask).json()["explanations"], items, strict=True
    ):
        assert one["prediction"] == pytest.approx(item["prediction"], rel=1e-5)
        values = {f["field"]: f["value"] for f in one["fields"]}
        assert (values["item"], values["user"], values["device"]) == (item["id"], "u1", "tv")


def test_items_of_every_type(tmp_path, tower, ranker):
    """A catalogue with dates, decimals and durations: what comes back filters, and what cannot is named."""
    day = pl.date_range(pl.date(2026, 1, 1), pl.date(2026, 1, 30), eager=True)
    more = catalogue().with_columns(
        item=pl.Series(range(30)),
        day=day,
        paid=pl.Series(["1.50"] * 30).cast(pl.Decimal(10, 2)),
        took=day - day[0],
    )
    cascade = Ranker(ranker, build_index(tower, more, tmp_path / "ix")[0], tower=tower)
    mixed = client(Service(ranker, cascade))
    result = mixed.post(
        "/v1/recommend", {"context": CONTEXT, "k": 1, "candidates": [7, 8.0, "9"]}
    ).json()
    assert result["counts"]["candidates"] == 3
    (item,) = result["items"]
    assert item["fields"]["day"] == f"2026-01-{int(item['id']) + 1:02}"
    for column in ("day", "paid", "item"):
        where = {column: [item["fields"][column]]}
        again = mixed.post("/v1/recommend", {"context": CONTEXT, "k": 1, "where": where}).json()
        assert again["counts"]["filtered"] == (30 if column == "paid" else 1)
    refused(
        mixed.post("/v1/recommend", {"context": CONTEXT, "where": {"took": ["1"]}}),
        422,
        "'took'",
        field="where.took",
    )
    why = mixed.post("/v1/explain", {"context": CONTEXT, "items": [int(item["id"])]}).json()[
        "explanations"
    ][0]
    assert why["prediction"] == pytest.approx(item["prediction"], rel=1e-5)


def test_directions_are_computed_once(server, ranker, monkeypatch):
    bare = client(Service(dataclasses.replace(ranker, samples=ranker.samples.head(0))))
    refused(bare.get("/v1/effects"), 422, "the bundle has no sample rows")
    expected = effects(ranker)
    assert server.get("/v1/effects").json()["effects"] == [
        {"numbers": None} | one for one in expected
    ]
    monkeypatch.setattr("fieldwise.serving.service.effect", None)
    assert [one["field"] for one in server.get("/v1/effects").json()["effects"]] == [
        one["field"] for one in expected
    ]


def test_similar_items_have_the_nearest_heads(server, cascade):
    heads = cascade.index.stored.heads.numpy()
    unit = heads / np.linalg.norm(heads, axis=2, keepdims=True)
    own = unit[4]
    similarity = np.array(
        [np.mean([max(float(h @ g) for g in other) for h in own]) for other in unit]
    )
    similarity[4] = -1
    best = np.argsort(-similarity, kind="stable")[:5]
    result = server.get("/v1/items/i4/similar?k=5").json()["items"]
    assert [item["id"] for item in result] == [f"i{b}" for b in best]
    np.testing.assert_allclose([item["similarity"] for item in result], similarity[best], rtol=1e-5)
    assert len(server.get("/v1/items/i4/similar?k=100").json()["items"]) == 29


PREDICT = [
    ({"rows": []}, "rows"),
    (None, None),
    ({"rows": [ROW], "row": 1}, "row"),
    ({"rows": [ROW, {k: v for k, v in ROW.items() if k != "device"}]}, "rows[1].device"),
    ({"rows": [{**ROW, "user": ["u"]}]}, "rows[0].user"),
    ({"rows": [{**ROW, "price": 1e39}]}, "rows[0].price"),
    ({"rows": [ROW] * 1001}, "rows"),
]
RECOMMEND = [
    ({}, 422, "context.user"),
    ({"context": {"user": "u1", "device": "tv"}}, 422, "context.history"),
    ({"user": "u9", "context": {"device": "tv"}}, 404, "user"),
    ({"context": CONTEXT, "k": 31}, 422, "k"),  # more than there are items
    ({"context": CONTEXT, "k": 5000}, 422, "k"),
    ({"context": CONTEXT, "prerank": 10_001}, 422, "prerank"),
    (
        {"context": CONTEXT, "where": {"genres": ["g"] * 60_000, "title": ["t"] * 50_000}},
        422,
        "where",
    ),
    ({"context": CONTEXT, "exclude": ["i"] * 100_001}, 422, "exclude"),
    ({"context": CONTEXT, "candidates": ["i1", "i99"]}, 422, "candidates[1]"),
    ({"context": CONTEXT, "where": {"genre": ["g1"]}}, 422, "where.genre"),
    ({"context": {**CONTEXT, "user": {}}}, 422, "context.user"),
    ({"context": {**CONTEXT, "histroy": []}}, 422, "context.histroy"),
]


def test_rows_that_cannot_be_scored_and_recommendations_that_cannot_be_made(
    subtests, server, ranker, cascade
):
    cases = [("predict", body, 422, field) for body, field in PREDICT]
    cases += [("recommend", *case) for case in RECOMMEND]
    for path, body, status, field in cases:
        with subtests.test(path=path, field=field):
            refused(server.post(f"/v1/{path}", body), status, field=field)
    users = TableStore("user", USERS.with_columns(email=pl.lit("a@b")))
    other = client(Service(ranker, cascade), Stores(users=Lookup("users", users)))
    assert other.post("/v1/recommend", {"context": {**CONTEXT, "email": "c@d"}}).status_code == 200
    answer = other.post("/v1/recommend", {"context": {**CONTEXT, "emial": "c@d", "x": 1}})
    refused(answer, 422, "found 'emial': ", "history", field="context.emial")
    assert "email" not in answer.text, "other columns of a store are not shown"
    few = Service(ranker, Ranker(ranker, item_table(catalogue(4), "item")))
    assert len(client(few).post("/v1/recommend", {"context": CONTEXT}).json()["items"]) == 4, (
        "k left out"
    )


def test_other_requests_that_cannot_be_answered(server):
    for body in ({}, {"rows": [ROW], "items": ["i1"]}):
        refused(server.post("/v1/explain", body), 422, "either rows or items")
    refused(
        server.post("/v1/explain", {"rows": [ROW] * 51}), 422, "at most 50, found 51", field="rows"
    )
    refused(
        server.post("/v1/explain", {"rows": [ROW], "user": "u1"}),
        422,
        "is only for items",
        field="user",
    )
    refused(server.get("/v1/items/none/similar"), 404, "found 'none'", field="id")
    refused(server.get("/v1/items/i1/similar?k=0"), 422, field="k")
    refused(server.get("/v1/nothing"), 404)
    refused(server.get("/v1/predict"), 405)
    context = '"context": {"user": "u1", "history": [], "device": "tv"}'
    for path, content in (
        ("predict", b"{"),
        ("predict", b'{"rows": [{"device": "\xff"}]}'),
        ("predict", b""),
        ("predict", b'{"rows": [{"price": NaN}]}'),
        ("predict", b'{"rows": [{"user": "\\ud800"}]}'),  # half of a character
        ("recommend", b'{"user": "\\ud800"}'),
        ("recommend", f'{{{context}, "exclude": ["\\ud800"]}}'.encode()),
        ("recommend", f'{{{context}, "where": {{"genres": ["\\ud800"]}}}}'.encode()),
        ("recommend", f'{{{context}, "where": {{"\\ud800": ["a"]}}}}'.encode()),
        ("recommend", b'{"\\ud800": 1}'),
    ):
        answer = server.ask(
            "POST", f"/v1/{path}", content=content, headers={"content-type": "application/json"}
        )
        refused(answer, 400 if b"\xff" in content else 422)
    for headers in ({}, {"content-type": "application/x-www-form-urlencoded"}):
        answer = server.ask("POST", "/v1/predict", content=b'{"rows": []}', headers=headers)
        refused(answer, 422, "Content-Type: application/json", field="body")


def test_bodies_that_are_too_large_are_not_read_to_their_end(ranker):
    small = client(Service(ranker), max_body=100)
    refused(small.post("/v1/predict", {"rows": [ROW] * 9}), 413, "100 bytes")

    def read(**headers):
        """How many parts of 50 bytes are read: of a part that comes and is not read the answer would be lost."""
        sent = []

        async def body():
            for _ in range(1000):
                sent.append(1)
                yield b"x" * 50

        refused(small.ask("POST", "/v1/predict", content=body(), headers=headers), 413)
        return len(sent)

    length, expect = {"Content-Length": "50000"}, {"Expect": "100-continue"}
    assert read() == read(**expect) == 3 + 8
    assert read(**length) == 8
    assert read(**length, **expect) == 0, "the client has not sent it, and waits for the answer"


def test_a_token_is_required(ranker):
    closed = client(Service(ranker), token="secret")
    for result in (
        None,
        "Bearer wrong",
        "secret",
        "Basic secret",
        "Bearer",
        "Bearer secret secret",
    ):
        headers = {} if result is None else {"Authorization": result}
        answer = closed.post("/v1/predict", {"rows": [ROW]}, headers=headers)
        refused(answer, 401, "Authorization: Bearer TOKEN")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert closed.get("/metrics").status_code == 401
    assert (
        closed.post(
            "/v1/predict", {"rows": [ROW]}, headers={"Authorization": "Bearer secret"}
        ).status_code
        == 200
    )
    assert closed.get("/healthz").json() == {"status": "ok"}
    assert closed.get("/readyz").status_code == 200


def test_within_another_application(ranker):
    """The token is required there too, and the document has the prefix of its paths."""
    inner, outer = create_app(Service(ranker), ServerSettings(token="secret")), FastAPI()
    outer.mount("/inner", inner)
    for path, status in {"healthz": 200, "": 200, "v1/about": 401}.items():
        assert client_of(outer).get(f"/inner/{path}").status_code == status
    assert (
        client_of(outer)
        .get("/inner/v1/about", headers={"authorization": "bearer secret"})
        .status_code
        == 200
    )
    for _ in range(2):
        plain = client_of(inner).get("/openapi.json").json()
        assert "servers" not in plain
        assert client_of(outer).get("/inner/openapi.json").json() == plain | {
            "servers": [{"url": "/inner"}]
        }


def test_a_body_that_does_not_arrive_is_given_up(ranker):
    slow = client(Service(ranker), timeout=0.05)

    async def body():
        yield b"{"
        await asyncio.sleep(600)

    refused(
        slow.ask("POST", "/v1/predict", content=body()),
        408,
        "must arrive within 0.05 s",
        field="body",
    )


def test_only_so_many_explanations_wait(ranker, monkeypatch):
    app, go = patient_app(Service(ranker), max_waiting=2), threading.Event()
    whole = routes.explanations
    monkeypatch.setattr(
        routes, "explanations", lambda *given, **more: go.wait(120) and whole(*given, **more)
    )

    async def ask():
        results = []
        async with talking(app) as asking:
            for one in asyncio.as_completed(
                [asking.post("/v1/explain", json={"rows": [ROW]}) for _ in range(12)]
            ):
                answer = await one
                results.append((answer.status_code, answer.headers.get("retry-after")))
                if len(results) == 10:
                    go.set()
        return results

    assert sorted(asyncio.run(ask())) == [(200, None)] * 2 + [(503, "1")] * 10


def test_an_answer_that_takes_too_long_is_given_up(ranker):
    slow, refuse = Service(ranker), threading.Event()
    slow.predict_all = lambda _: refuse.wait(120)
    refused(client(slow, timeout=1).post("/v1/predict", {"rows": [ROW]}), 503, "may take 1 s")
    refuse.set()


def test_an_internal_error_is_a_500_without_a_traceback(ranker, monkeypatch):
    broken = Service(ranker)
    broken.predict_all = lambda _: 1 / 0
    server = client(broken)
    answer = server.post("/v1/predict", {"rows": [ROW]})
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    # before a request's route is known
    monkeypatch.setattr(ServerSettings, "bears_token", lambda *_: 1 / 0)
    refused(server.get("/v1/about"), 500, field="server")
    counted = {"method": "GET", "path": "other", "status": "500"}
    assert server.app.state.registry.get_sample_value("fieldwise_requests_total", counted) == 1


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


def test_the_requests_of_the_published_document_are_answered(server, ranker):
    """Their examples are the served bundle's sample rows."""
    assert server.get("/redoc").status_code == 404
    paths = server.get("/openapi.json").json()["paths"]
    for operation in (one for path in paths.values() for one in path.values()):
        assert {"200", "401", "404", "405", "413", "422", "503"} <= set(operation["responses"])
    for path in ("/v1/predict", "/v1/recommend", "/v1/explain"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["example"]
        answer = server.post(path, body)
        assert answer.status_code == 200, answer.text
        if path == "/v1/predict":
            wanted = ranker.score(ranker.samples.head(2)).tolist()
            assert [one["score"] for one in answer.json()["predictions"]] == pytest.approx(
                wanted, abs=1e-6
            )


def test_the_published_document_states_the_limits_of_the_options(ranker, cascade):
    limits = ServerSettings(max_rows=3, max_k=4, max_prerank=5, max_ids=6, max_explained=2)
    app = create_app(Service(ranker, cascade), limits)
    assert app.openapi() is app.openapi()
    schemas = app.openapi()["components"]["schemas"]
    results = {
        name: schemas[name]["properties"]
        for name in ("PredictRequest", "RecommendRequest", "ExplainRequest")
    }
    recommended = results["RecommendRequest"]
    assert results["PredictRequest"]["rows"]["maxItems"] == 3
    assert recommended["k"]["anyOf"][0]["maximum"] == 4
    assert recommended["prerank"]["maximum"] == 5
    assert (
        recommended["exclude"]["maxItems"] == recommended["candidates"]["anyOf"][0]["maxItems"] == 6
    )
    assert (
        results["ExplainRequest"]["items"]["maxItems"]
        == results["ExplainRequest"]["rows"]["maxItems"]
        == 2
    )
    (k,) = [
        p
        for p in app.openapi()["paths"]["/v1/items/{id}/similar"]["get"]["parameters"]
        if p["name"] == "k"
    ]
    assert k["schema"]["maximum"] == 4
