"""Vectors of catalogue rows, of a request and by id: a served score is the bundle's; an index tells changes."""

import numpy as np
import polars as pl
import pytest
from serving.asgi import client

from fieldwise import Bundle, Categorical, IntTower, Label, Recommender, Schema, Vector
from fieldwise.serving import Ranker, build_index
from fieldwise.serving.service import Service

WIDTH = 40
VECTORS = np.random.default_rng(0).normal(size=(6, WIDTH)).astype(np.float32)
ITEMS = pl.DataFrame({"item": [f"i{k}" for k in range(6)], "text": VECTORS})


def bundle_of(field):
    rng = np.random.default_rng(1)
    rows = pl.DataFrame({"user": rng.integers(0, 5, 80), "item": rng.choice(ITEMS["item"], 80)})
    log = rows.join(ITEMS, on="item").with_columns(click=pl.Series(rng.integers(0, 2, 80)))
    fields = (Categorical("user", role="user"), Categorical("item", role="item"), field)
    schema = Schema(fields=fields, label=Label("click"), user="user", item="item")
    model = Recommender(
        schema, IntTower(embedding_dim=4, hidden=(6, 4), user_heads=1, item_heads=1)
    )
    return model.fit(log).bundle_


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle whose rows have vectors, and one that finds them by id, loaded from disk."""
    folder = tmp_path_factory.mktemp("vectors")
    np.save(folder / "v.npy", VECTORS)
    np.save(folder / "v.ids.npy", ITEMS["item"].to_numpy().astype("U"))
    by_id = Vector("text", role="item", column="item", vectors=str(folder / "v.npy"))
    bundle_of(by_id).save(folder / "b")
    return {"lists": bundle_of(Vector("text", role="item")), "by id": Bundle.load(folder / "b")}


@pytest.mark.parametrize("kind", ["lists", "by id"])
def test_every_way_to_score_gives_one_figure(bundles, kind, tmp_path):
    bundle = bundles[kind]
    index, _ = build_index(bundle, ITEMS, tmp_path / "ix")
    ranker = Ranker(bundle, index, tower=bundle)
    server = client(Service(bundle, ranker))
    expected = bundle.score(ITEMS.with_columns(user=pl.lit("3")))
    candidates = bundle.score_candidates({"user": "3"}, ITEMS)
    np.testing.assert_allclose(candidates, expected, atol=1e-5)
    rows = [{"user": 3, "item": item} for item in ITEMS["item"]]
    answer = server.post("/v1/predict", {"rows": rows})
    assert answer.status_code == 200, answer.text
    scores = [row["score"] for row in answer.json()["predictions"]]
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    answer = server.post("/v1/recommend", {"context": {"user": "3"}, "k": 6})
    assert answer.status_code == 200, answer.text
    found = {item["id"]: item["prediction"] for item in answer.json()["items"]}
    prediction = dict(zip(ITEMS["item"], bundle.prediction(expected), strict=True))
    assert found == pytest.approx(prediction, abs=1e-5)
    assert "text" not in answer.json()["items"][0]["fields"]


def test_a_vector_of_a_request(bundles):
    bundle = bundles["lists"]
    server = client(Service(bundle))
    vectors = [VECTORS[0].tolist(), None, [], VECTORS[1].tolist()]
    rows = [{"user": 3, "item": "i0", "text": vector} for vector in vectors]
    answer = server.post("/v1/predict", {"rows": rows}).json()
    frame = pl.DataFrame(rows, schema_overrides={"text": pl.List(pl.Float64)})
    scores = [row["score"] for row in answer["predictions"]]
    np.testing.assert_allclose(scores, bundle.score(frame), atol=1e-5)
    for wrong, words in (
        ([1.0], "has vectors of 40 numbers, and one of 1"),
        (["x"] * WIDTH, "must be a list of numbers or null"),
        (0.5, "must be a list of numbers or null"),
        ([1e300] * WIDTH, "a list of finite numbers"),
        ([0.0] * 5000, "a list of at most 4,096 numbers"),
    ):
        answer = server.post("/v1/predict", {"rows": [{**rows[0], "text": wrong}]})
        assert answer.status_code == 422
        assert words in answer.json()["error"]["message"]


def test_an_index_tells_which_vectors_changed(bundles, tmp_path):
    bundle = bundles["lists"]
    build_index(bundle, ITEMS, tmp_path / "ix")
    changed = VECTORS.copy()
    changed[2, 7] += 1
    _, changes = build_index(bundle, ITEMS.with_columns(text=changed), tmp_path / "ix")
    assert (changes.new, changes.changed) == (0, 1)
