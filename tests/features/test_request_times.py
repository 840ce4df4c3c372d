"""Hours and weekdays: of a log's rows, of requests to a server, and of features that come late."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from serving.asgi import client

from fieldwise import Label, Numeric, Recipe, Schema, prepare_recipe, simulate
from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.features import Count, Hour, Weekday, compute
from fieldwise.features.latest import backfilled, late_features, skew
from fieldwise.features.log_features import LogFeatures
from fieldwise.features.request_times import RequestTimes
from fieldwise.runs.pipeline import train_recipe
from fieldwise.serving.service import Service

ZONE = "Australia/Adelaide"
OF_ROWS = [Hour(name="h"), Weekday(name="day"), Hour(name="there", time_zone=ZONE)]
FEATURES = [*OF_ROWS, Count(key="user_id")]
SCHEMA = Schema(
    time="timestamp", fields=(Numeric("user_id_count"),), label=Label("liked"), user="user_id"
)


def log() -> pl.DataFrame:
    return simulate(1_000, users=40, items=20)


def expected(seconds: int) -> dict[str, object]:
    moment = datetime.fromtimestamp(seconds, UTC)
    there = moment.astimezone(ZoneInfo(ZONE))
    return {"h": moment.hour, "day": f"{moment:%A}", "there": there.hour}


def test_parts_of_times_are_those_of_the_standard_library() -> None:
    made = compute(log(), FEATURES, time="timestamp")
    assert made["h"].to_list() == made["hour"].to_list(), "as the simulation has it"
    for row in made.iter_rows(named=True):
        assert {name: row[name] for name in ("h", "day", "there")} == expected(row["timestamp"])


def test_a_time_zone_that_there_is_not_is_refused(subtests) -> None:
    for zone in ("Mars", "", "../etc/passwd", "\0"):
        with subtests.test(zone), pytest.raises(ConfigError, match="needs a time zone such as"):
            Hour(time_zone=zone)


def test_late_features_have_the_hour_of_the_request() -> None:
    of = LogFeatures(features=FEATURES, schema=SCHEMA)
    on_time = backfilled(log(), of)
    late = late_features(on_time, log(), of, "5h")
    names = [feature.label for feature in OF_ROWS]
    assert late.select(names).equals(on_time.select(names))
    assert not late["user_id_count"].equals(on_time["user_id_count"])
    assert skew(on_time.select("timestamp", *names), log(), of)["unequal"].sum() == 0


def test_requests_state_their_time_or_are_of_the_present(subtests) -> None:
    plain = [{"kind": "hour", "name": "h"}, {"kind": "weekday", "name": "day"}]
    of_recipe = RequestTimes.of_recipe({"features": plain}, SCHEMA)
    first = {"timestamp": 1_700_000_000, "h": 7}
    rows = [first, {"timestamp": 1_700_000_000}, {"user_id": "u1"}]
    made = of_recipe.complete(rows)
    assert made[0] == {**first, "day": "Tuesday"}, "what is given stays"
    assert (made[1]["h"], made[1]["day"]) == (22, "Tuesday")
    present = [datetime.now(UTC).hour, (datetime.now(UTC).hour - 1) % 24]
    assert made[2]["h"] in present
    text = of_recipe.complete([{"timestamp": "2026-11-28 21:00"}])
    assert text[0] == {"timestamp": "2026-11-28 21:00", "h": 21, "day": "Saturday"}
    counts = [{"kind": "count", "key": "user_id"}]
    assert RequestTimes.of_recipe({"features": counts}, SCHEMA) is None
    for cells in (["soon"], [None], [[1]], [1_700_000_000, "2026-11-28"], [1], [float("nan")]):
        with subtests.test(str(cells)), pytest.raises(DataError, match="a request's time"):
            of_recipe.complete([{"timestamp": cell} for cell in cells])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    settings = {
        "data": {"name": "simulated", "rows": 1_000, "users": 40, "items": 20},
        "split": {"kind": "time"},
        "model": {"name": "lr"},
        "training": {"epochs": 1},
        "schema": {
            "user": "user_id",
            "item": "item_id",
            "time": "timestamp",
            "fields": [
                {"kind": "categorical", "name": "gender", "role": "user"},
                {"kind": "categorical", "name": "h"},
                {"kind": "categorical", "name": "day"},
            ],
            "label": {"column": "liked"},
        },
        "features": [{"kind": "hour", "name": "h"}, {"kind": "weekday", "name": "day"}],
    }
    recipe = Recipe.from_dict(settings, "hours")
    folder = tmp_path_factory.mktemp("hours")
    prepared = prepare_recipe(recipe, folder, log())
    trained = train_recipe(recipe, prepared)
    trained.bundle.save(folder / "bundle")
    return Bundle.load(folder / "bundle")


def test_a_server_makes_the_hour_of_a_request(bundle) -> None:
    server = client(Service(bundle))
    rows = compute(log(), OF_ROWS[:2], time="timestamp").head(20)
    requests = rows.select("gender", "timestamp").to_dicts()
    answer = server.post("/v1/predict", {"rows": requests}).json()
    served = [one["prediction"] for one in answer["predictions"]]
    np.testing.assert_allclose(served, bundle.predict(rows), atol=1e-6)
    assert len(set(served)) > 4
    explained = server.post("/v1/explain", {"rows": requests[:2]}).json()["explanations"]
    assert f"{rows['h'][0]}" in str(explained[0])
    assert server.post("/v1/predict", {"rows": [{"gender": "f"}]}).status_code == 200
    wrong = server.post("/v1/predict", {"rows": [{"gender": "f", "timestamp": "soon"}]})
    assert wrong.status_code == 422
    assert "column 'timestamp' holds 'soon'" in wrong.json()["error"]["message"]
