"""One row has one prediction by every way to score it: bundles with weights, samples, vectors and trees."""

import importlib.util

import numpy as np
import onnxruntime
import polars as pl
import pytest
from serving.asgi import client

from fieldwise import (
    FM,
    Bundle,
    Categorical,
    IntTower,
    Label,
    LightGBM,
    Numeric,
    Recommender,
    Sampled,
    Schema,
    TrainingSettings,
    Vector,
)
from fieldwise.bundle.export import export_bundle
from fieldwise.bundle.score_file import score_file
from fieldwise.scoring.recommend import recommend
from fieldwise.serving import Ranker, build_index, item_table
from fieldwise.serving.service import Service

WIDTH = 40
VECTORS = np.random.default_rng(0).normal(size=(6, WIDTH)).astype(np.float32)
ITEMS = pl.DataFrame(
    {
        "item": [f"i{k}" for k in range(6)],
        "price": np.arange(6) * 1.5,
        "text": VECTORS,
    }
)
IDS = (Categorical("user", role="user"), Categorical("item", role="item"))
PRICE = Numeric("price", role="item")
TOWER = IntTower(embedding_dim=4, hidden=(6, 4), user_heads=1, item_heads=1)


def log() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    rows = pl.DataFrame({"user": rng.integers(0, 5, 120), "item": rng.choice(ITEMS["item"], 120)})
    return rows.join(ITEMS, on="item", maintain_order="left").with_columns(
        click=pl.Series(rng.integers(0, 2, 120)), importance=pl.Series(rng.integers(1, 4, 120))
    )


def by_id(folder):
    np.save(folder / "v.npy", VECTORS)
    np.save(folder / "v.ids.npy", ITEMS["item"].to_numpy().astype("U"))
    return Vector("text", role="item", column="item", vectors=str(folder / "v.npy"))


def case(name, folder):
    """A model and the schema of a bundle with what the name says."""
    lists = Vector("text", role="item")
    shown = Sampled(positives=1.0, negatives=0.1)
    cases = {
        "weights": (TOWER, (*IDS, PRICE), {"weight": "importance"}),
        "a sample": (FM(embedding_dim=4), (*IDS, PRICE), {"label": Label("click", sampled=shown)}),
        "vectors": (TOWER, (*IDS, lists), {}),
        "vectors by id": (TOWER, (*IDS, by_id(folder)), {}),
        "vectors by id and weights": (
            FM(embedding_dim=4),
            (*IDS, PRICE, by_id(folder)),
            {"weight": "importance"},
        ),
        "trees and weights": (
            LightGBM(min_data_in_leaf=5, max_trees=20),
            (*IDS, PRICE),
            {"weight": "importance"},
        ),
        "trees and vectors": (
            LightGBM(min_data_in_leaf=5, max_trees=20),
            (*IDS, by_id(folder)),
            {},
        ),
    }
    model, fields, more = cases[name]
    return model, Schema(
        fields=fields, **{"label": Label("click"), **more}, user="user", item="item"
    )


NAMES = (
    "weights",
    "a sample",
    "vectors",
    "vectors by id",
    "vectors by id and weights",
    "trees and weights",
    "trees and vectors",
)


def of_a_file(bundle, rows, folder):
    rows.write_parquet(folder / "rows.parquet")
    score_file(bundle, folder / "rows.parquet", folder / "out.parquet")
    return pl.read_parquet(folder / "out.parquet")["prediction"].to_numpy()


def of_recommend(bundle, rows):
    """Of all items for the user of the rows."""
    table = recommend(bundle, rows, users=[rows["user"][0]], n=len(rows), exclude_seen=False)
    found = dict(table.select("item", "prediction").iter_rows())
    return [found[item] for item in rows["item"]]


def of_requests(bundle, rows, ranker):
    """Of rows, and of the items of a recommendation."""
    server = client(Service(bundle, ranker))
    answer = server.post("/v1/predict", {"rows": rows.to_dicts()})
    assert answer.status_code == 200, answer.text
    yield "predict over HTTP", [row["prediction"] for row in answer.json()["predictions"]]
    answer = server.post("/v1/recommend", {"context": {"user": "3"}, "k": len(rows)})
    assert answer.status_code == 200, answer.text
    found = {item["id"]: item["prediction"] for item in answer.json()["items"]}
    assert "text" not in answer.json()["items"][0]["fields"]
    yield "recommend over HTTP", [found[item] for item in rows["item"]]


def of_an_export(bundle, rows, folder):
    """By ONNX Runtime and `encode.py`, in logits."""
    export_bundle(bundle, folder / "export")
    session = onnxruntime.InferenceSession(str(folder / "export" / "model.onnx"))
    spec = importlib.util.spec_from_file_location("encode", folder / "export" / "encode.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    arrays = program.encode(rows.to_dicts())
    names = {given.name for given in session.get_inputs()}
    [logit] = session.run(None, {name: x for name, x in arrays.items() if name in names})
    return bundle.prediction(np.asarray(logit, float).reshape(-1))


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_score_gives_one_figure(name, tmp_path, subtests):
    model, schema = case(name, tmp_path)
    training = TrainingSettings()
    if not name.startswith("trees"):
        training = TrainingSettings(epochs=2, batch_size=32)
    recommender = Recommender(schema, model, training=training).fit(log())
    recommender.bundle_.save(tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    items = ITEMS.select(column for column in ITEMS.columns if column in schema.columns)
    rows = items.with_columns(user=pl.lit(3), click=pl.lit(1), importance=pl.lit(1))
    expected = bundle.predict(rows)
    assert np.ptp(expected) > 0

    ways = {
        "estimator": recommender.predict_proba(rows)[:, 1],
        "candidates": bundle.prediction(bundle.score_candidates({"user": 3}, items)),
        "file": of_a_file(bundle, rows, tmp_path),
        "recommend": of_recommend(bundle, rows),
    }
    if isinstance(model, IntTower):
        index, _ = build_index(bundle, items, tmp_path / "index")
        ranker = Ranker(bundle, index, tower=bundle)
    else:
        ranker = Ranker(bundle, item_table(items, "item"))
    ways |= dict(of_requests(bundle, rows, ranker))
    if not name.startswith("trees"):
        ways["export"] = of_an_export(bundle, rows, tmp_path)
    for way, predictions in ways.items():
        with subtests.test(way=way):
            np.testing.assert_allclose(predictions, expected, atol=1e-6)
