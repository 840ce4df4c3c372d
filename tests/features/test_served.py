"""Features that a server looks up are those of training: 1,000 requests over HTTP at the moments of the log's rows."""

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import httpx
import polars as pl
import pytest
from features import click_log
from features.click_log import USER_RATE, recipe_text
from serving.commands import serving

from fieldwise import Bundle
from fieldwise.cli import run
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.features import compute
from fieldwise.features.latest import latest_features
from fieldwise.features.log_features import LogFeatures
from fieldwise.runs.rows_of_run import recipe_of
from fieldwise.serving.stores import load_table, open_store

REQUESTS = 1_000
HALF_DAY_S = 43_200
RECIPE = recipe_text(
    [
        "categorical gender user",
        "categorical genres item",
        "numeric user_id_count_7d user",
        "numeric user_id_count_all user",
        "numeric user_id_liked_rate user",
        "categorical user_id_genres_last user",
        "numeric user_id_time_since user",
        "numeric item_id_count item",
        "numeric item_id_liked_rate_30d item",
    ],
    [
        '{ kind = "count", key = "user_id", windows = ["7d", "all"] }',
        USER_RATE,
        '{ kind = "last", key = "user_id", value = "genres" }',
        '{ kind = "time_since", key = "user_id" }',
        '{ kind = "count", key = "item_id" }',
        '{ kind = "rate", key = "item_id", value = "liked", delay = "1h", windows = ["30d"] }',
    ],
)


def write(rows: pl.DataFrame, url: str, column: str) -> None:
    rows.write_parquet("rows.parquet")
    load_table(SlicedTable(Path("rows.parquet")), open_store(url, column))


@pytest.mark.slow
def test_a_thousand_requests_get_what_training_had(tmp_path, monkeypatch, capsys, server) -> None:
    monkeypatch.chdir(tmp_path)
    # rows with equal times, which do not see each other
    log = click_log.log().with_columns(pl.col("timestamp") // HALF_DAY_S * HALF_DAY_S)
    log.write_csv("log.csv")
    Path("recipe.toml").write_text(RECIPE)
    assert run(["train", "recipe.toml", "--out", "bundle"]) == 0, capsys.readouterr()
    bundle = Bundle.load("bundle")
    recipe = recipe_of(bundle, Path("bundle"), "")
    features = LogFeatures(features=recipe.features, schema=recipe.schema)
    trained = compute(log, recipe.features, time="timestamp")
    trained = trained.with_columns(prediction=bundle.predict(trained))
    of_users = [name for name in features.made if name.startswith("user_id")]
    # a server knows the users and items of earlier rows
    for column in ("user_id", "item_id"):
        trained = trained.filter(pl.col("timestamp") > pl.col("timestamp").min().over(column))
    moments = trained["timestamp"].unique().sort().sample(fraction=1, shuffle=True, seed=0)

    urls = {column: server.url(f"served_{column}") for column in ("user_id", "item_id")}

    def write_as_of(moment: int, **settings: str) -> None:
        at = datetime.fromtimestamp(moment, UTC).isoformat()
        for column, url in urls.items():
            write(latest_features(log, features, column, at=at, **settings), url, column)

    write_as_of(int(moments[0]))
    stores = ["--users", urls["user_id"], "--items", urls["item_id"]]
    asked = 0
    with ExitStack() as context:
        running = context.enter_context(serving(tmp_path, "bundle", *stores))
        client = context.enter_context(httpx.Client(base_url=running.place, timeout=120))
        for moment in moments:
            if asked >= REQUESTS:
                break
            write_as_of(int(moment))
            for row in trained.filter(pl.col("timestamp") == moment).iter_rows(named=True):
                request = {"user_id": row["user_id"], "item_id": row["item_id"]}
                answer = client.post("/v1/predict", json={"rows": [request]}).json()
                assert answer["degraded"] == []
                assert answer["predictions"][0]["prediction"] == pytest.approx(
                    row["prediction"], abs=1e-6
                )
                served = client.get(f"/v1/users/{row['user_id']}").json()["fields"]
                for name in of_users:
                    expected = row[name]
                    if isinstance(expected, float):
                        expected = pytest.approx(expected, rel=1e-6)
                    assert served[name] == expected, name
                asked += 1
        assert asked >= REQUESTS
        age = answer["features_age"]["users"]
        asked_at = row["timestamp"]
        assert age == pytest.approx(datetime.now(UTC).timestamp() - asked_at, abs=600)

        write_as_of(asked_at, ttl="1h")
        late = client.post("/v1/predict", json={"rows": [request]}).json()
        assert late["predictions"][0]["prediction"] != pytest.approx(row["prediction"], abs=1e-6)
        assert {(one["store"], one["reason"]) for one in late["degraded"]} == {
            ("users", "stale"),
            ("items", "stale"),
        }
        metrics = client.get("/metrics").text
        assert 'fieldwise_degraded_total{reason="stale",store="users"} 1.0' in metrics
        count = f'fieldwise_features_age_seconds_count{{store="users"}} {2.0 * asked}'
        assert count in metrics
