"""Vectors of a request and ids of vectors, and an index that tells which vectors changed."""

import numpy as np
import polars as pl
import pytest
from serving.asgi import client

from fieldwise import Bundle, Categorical, IntTower, Label, Recommender, Schema, Vector
from fieldwise.serving import build_index
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


def test_a_request_gives_an_id_and_no_vector_to_a_field_by_id(bundles):
    server = client(Service(bundles["by id"]))
    rows = [{"user": 3, "item": "new"}]
    answer = server.post("/v1/predict", {"rows": rows}).json()
    assert answer["predictions"][0]["unknown"] == ["item", "text"]
    for name in ("item", "text"):
        body = {"rows": [*rows, {**rows[0], name: VECTORS[0].tolist()}]}
        answer = server.post("/v1/predict", body)
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert error["field"] == f"rows[1].{name}"
        assert "field 'text' finds vectors by the id in 'item'" in error["message"]
        assert "by Bundle.with_vectors" in error["message"]


def test_an_index_tells_which_vectors_changed(bundles, tmp_path):
    bundle = bundles["lists"]
    build_index(bundle, ITEMS, tmp_path / "ix")
    changed = VECTORS.copy()
    changed[2, 7] += 1
    _, changes = build_index(bundle, ITEMS.with_columns(text=changed), tmp_path / "ix")
    assert (changes.new, changes.changed) == (0, 1)
