"""Features for a server: equal to those of training at the same moment, and missing when they are too old."""

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from features.click_log import USER_RATE, log, recipe_text
from polars.testing import assert_frame_equal

from fieldwise import Categorical, Label, Numeric, Schema
from fieldwise.cli import run
from fieldwise.errors import ConfigError, DataError
from fieldwise.features import Count, Distinct, Last, Rate, TimeSince, compute
from fieldwise.features.latest import backfilled, late_features, latest_features, skew
from fieldwise.features.log_features import LogFeatures
from fieldwise.serving.stores import Lookup, StoreFacts, Stores, TableStore

FEATURES = [
    Count(key="user_id", windows=("30d", "all")),
    Rate(key="user_id", value="liked", delay="1h"),
    Last(key="user_id", value="item_id"),
    TimeSince(key="user_id"),
    Distinct(key="user_id", value="genres"),
    Count(key="item_id"),
]
OF_USERS = [name for feature in FEATURES[:-1] for name in feature.columns]
SCHEMA = Schema(
    user="user_id",
    item="item_id",
    time="timestamp",
    fields=(Numeric("user_id_count_all", role="user"),),
    label=Label("liked"),
)
OF = LogFeatures(features=FEATURES, schema=SCHEMA)
COUNTS = LogFeatures(features=[Count(key="item_id")], schema=SCHEMA)


def iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def test_served_is_trained() -> None:
    trained = compute(log(), FEATURES, time="timestamp")
    compared = 0
    first_seen = trained.group_by("user_id").agg(pl.col("timestamp").min()).rows()
    for moment in trained["timestamp"].sample(40, seed=1):
        served = latest_features(log(), OF, "user_id", at=iso(moment))
        known = {user for user, first in first_seen if first < moment}
        assert set(served["user_id"]) == known
        rows = trained.filter((pl.col("timestamp") == moment) & pl.col("user_id").is_in(known))
        for row in rows.iter_rows(named=True):
            (answer,) = served.filter(pl.col("user_id") == row["user_id"]).iter_rows(named=True)
            assert {name: answer[name] for name in OF_USERS} == {
                name: row[name] for name in OF_USERS
            }
            compared += 1
    assert compared >= 30


def test_the_default_moment_sees_the_whole_log() -> None:
    served = latest_features(log(), OF, "item_id")
    counts = log().group_by("item_id").len().sort("item_id")
    assert served["item_id_count"].to_list() == counts["len"].to_list()
    assert "features_ttl" in served.columns
    assert served["features_time"].unique().to_list() == [log()["timestamp"].max() + 1]


def test_a_past_moment_has_the_fields_of_rows_before_it() -> None:
    schema = Schema(**{**vars(SCHEMA), "fields": (Categorical("country", role="user"),)})
    table = pl.DataFrame(
        {
            "user_id": ["a", "b", "a"],
            "item_id": ["x"] * 3,
            "timestamp": [1_700_000_000, 1_700_000_100, 1_700_000_200],
            "country": ["FI", "SE", "NO"],
            "liked": [1, 0, 1],
        }
    )
    of = LogFeatures(features=[Count(key="user_id")], schema=schema)
    served = latest_features(table, of, "user_id", at=iso(1_700_000_100))
    assert served.select("user_id", "country", "user_id_count").rows() == [("a", "FI", 1)]
    with pytest.raises(ConfigError, match="must lie after the log's first row"):
        latest_features(table, of, "user_id", at=iso(1_700_000_000))


@pytest.mark.parametrize("rule", [{}, {"positive_above": 3}, {"positive_values": ("yes",)}])
@pytest.mark.parametrize("empty", ["some", "all"])
def test_events_without_a_label_yet_count_where_no_label_is_needed(rule, empty) -> None:
    words = {"positive_above": ("5", "1"), "positive_values": ("yes", "no")}
    yes, no = words.get(next(iter(rule), ""), ("1", "0"))
    table = log().with_columns(
        liked=pl.when(pl.col("liked") == 1).then(pl.lit(yes)).otherwise(pl.lit(no))
    )
    is_new = pl.int_range(pl.len()) >= (2_900 if empty == "some" else 0)
    live = table.with_columns(
        liked=pl.when(is_new & (pl.int_range(pl.len()) % 2 == 0)).then(pl.lit("")).when(~is_new).then("liked")
    )  # fmt: skip
    schema = Schema(**{**vars(SCHEMA), "label": Label("liked", **rule)})
    of = LogFeatures(features=FEATURES, schema=schema)
    served = latest_features(live, of, "user_id")
    whole = latest_features(table, of, "user_id")
    rates = ["user_id_liked_rate"]
    assert_frame_equal(served.drop(rates), whole.drop(rates))
    labelled = table.filter(~is_new)
    if labelled.is_empty():
        assert served["user_id_liked_rate"].null_count() == served.height
        return
    moment = iso(log()["timestamp"].max() + 1)
    of_labelled = latest_features(labelled, of, "user_id", at=moment)
    assert_frame_equal(served.select("user_id", *rates), of_labelled.select("user_id", *rates))


def test_backfill_has_a_range_as_of_each_row() -> None:
    first, last = (int(log()["timestamp"].quantile(share)) for share in (0.3, 0.6))
    made = backfilled(log(), OF, since=iso(first), until=iso(last))
    whole = compute(log(), FEATURES, time="timestamp")
    assert_frame_equal(made, whole.filter(pl.col("timestamp").is_between(first, last, "left")))


def test_what_cannot_be_computed_is_refused(subtests) -> None:
    cases = {
        "features of the key 'device'": {"column": "device"},
        "a moment is written as": {"at": "yesterday"},
        "--ttl must be a number with a unit": {"ttl": "soon"},
    }
    for words, changes in cases.items():
        settings = {"column": "user_id", **changes}
        with subtests.test(words), pytest.raises(ConfigError, match=words):
            latest_features(log(), OF, **settings)
    with pytest.raises(ConfigError, match="the key of the latest features must be in the log"):
        latest_features(log().drop("item_id"), COUNTS, "item_id")
    with pytest.raises(DataError, match="those of a log's rows, found none"):
        latest_features(log().head(0).drop("liked"), COUNTS, "item_id")
    with pytest.raises(ConfigError, match="features that are 400d late know nothing"):
        late_features(backfilled(log(), OF), log(), OF, "400d")
    with pytest.raises(ConfigError, match="a share of 0 of the keys has none"):
        skew(backfilled(log(), OF), log(), OF, share=0)


def test_features_beyond_their_time_to_live_are_missing_and_counted() -> None:
    hours_ago = time.time() - 7200
    table = pl.DataFrame(
        {
            "user_id": ["old", "new", "ever"],
            "age": [1, 2, 3],
            "user_id_count": [5, 6, 7],
            "features_time": [hours_ago, time.time(), hours_ago],
            "features_ttl": [3600.0, 3600.0, None],
            "age_added_later": [1, 2, 3],
        }
    )
    stores = Stores(users=Lookup("users", TableStore("user_id", table)), on_failure="refuse")
    fields = [Numeric("age", role="user"), Numeric("user_id_count", role="user")]
    requests = [{"user_id": name} for name in ("old", "new", "ever")]
    fields.append(Numeric("age_added_later", role="user"))
    rows, facts = asyncio.run(stores.rows(requests, fields, features=["user_id_count"]))
    assert [row["user_id_count"] for row in rows] == [None, 6, 7]
    assert [row["age"] for row in rows] == [1, 2, 3]
    assert [row["age_added_later"] for row in rows] == [1, 2, 3]
    (one,) = facts.degraded
    assert (one.store, one.ids, one.columns, one.reason) == (
        "users",
        ["old"],
        ["user_id_count"],
        "stale",
    )
    assert "older than their time to live" in one.message
    assert facts.features_age == {"users": pytest.approx(7200, abs=60)}, "the oldest that was used"
    given, facts = asyncio.run(
        stores.rows(
            [{"user_id": "old", "user_id_count": 9}], fields[:2], features=["user_id_count"]
        )
    )
    assert (given[0]["user_id_count"], facts) == (9, StoreFacts())


@pytest.mark.parametrize(
    ("computed", "time_to_live"), [("today", None), (float("nan"), 3600.0), (None, 3600.0)]
)
def test_features_whose_time_cannot_be_read_are_missing(computed, time_to_live) -> None:
    table = pl.DataFrame(
        {
            "user_id": ["a"],
            "features_time": [computed],
            "features_ttl": [time_to_live],
            "user_id_count": [5],
        }
    )
    stores = Stores(users=Lookup("users", TableStore("user_id", table)))
    fields = [Numeric("user_id_count", role="user")]
    rows, facts = asyncio.run(stores.rows([{"user_id": "a"}], fields, features=["user_id_count"]))
    assert rows[0]["user_id_count"] is None
    assert [one.reason for one in facts.degraded] == ["stale"]
    assert facts.features_age == {}


def test_late_features_are_those_of_an_earlier_moment() -> None:
    table = log().tail(200)
    late = late_features(backfilled(table, OF), log(), OF, "2d")
    for row in late.sample(40, seed=0).iter_rows(named=True):
        served = latest_features(log(), OF, "user_id", at=iso(row["timestamp"] - 2 * 86_400))
        (answer,) = served.filter(pl.col("user_id") == row["user_id"]).iter_rows(named=True)
        assert {name: answer[name] for name in OF_USERS} == {name: row[name] for name in OF_USERS}


def test_the_skew_of_what_a_server_logged() -> None:
    logged = backfilled(log(), OF).select("user_id", "item_id", "timestamp", *OF_USERS)
    exact = skew(logged, log(), OF)
    assert exact["feature"].to_list() == OF_USERS
    assert exact["unequal"].sum() == 0
    stale = logged.with_columns(
        pl.col("user_id_count_all") - 1,
        user_id_liked_rate=pl.when(pl.col("user_id") == "u0003").then(None).otherwise("user_id_liked_rate"),
        user_id_item_id_last=pl.lit("nothing"),
    )  # fmt: skip
    of_u3 = (logged["user_id"] == "u0003") & logged["user_id_liked_rate"].is_not_null()
    figures = {row["feature"]: row for row in skew(stale, log(), OF).to_dicts()}
    assert figures["user_id_count_all"]["unequal"] == 3_000
    assert figures["user_id_count_all"]["largest"] == 1
    assert figures["user_id_liked_rate"]["unequal"] == of_u3.sum()
    assert figures["user_id_item_id_last"]["unequal"] == 3_000
    assert figures["user_id_time_since"]["unequal"] == 0
    of_window = logged.select("user_id", "timestamp", "user_id_count_30d")
    assert skew(of_window, log(), OF)["feature"].to_list() == ["user_id_count_30d"]
    unreadable = of_window.with_columns(user_id_count_30d=pl.lit("n/a"))
    assert skew(unreadable, log(), OF)["unequal"].to_list() == [3_000]
    some = skew(stale, log(), OF, share=0.5)
    assert 0 < some["rows"][0] < 3_000
    with pytest.raises(ConfigError, match="found none of"):
        skew(log(), log(), OF)


RECIPE = recipe_text(
    ["categorical gender user", "categorical item_id item", "numeric user_id_liked_rate user"],
    [USER_RATE],
)


def test_the_commands_write_what_a_server_reads(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    log().write_csv("log.csv")
    Path("recipe.toml").write_text(RECIPE)
    of_bundle = ["log.csv", "--bundle", "bundle", "--out"]
    for command in (
        ["train", "recipe.toml", "--out", "bundle"],
        ["features", "latest", *of_bundle, "users.parquet", "--id", "user_id", "--ttl", "1d"],
        ["features", "backfill", *of_bundle, "rows.parquet"],
        ["predict", "bundle", "--data", "rows.parquet", "--out", "scores.parquet"],
    ):
        assert run(command) == 0, (command, capsys.readouterr())
    suggested = "log.csv --bundle bundle --id user_id --out users.parquet"
    assert suggested in capsys.readouterr().err, "as log.csv has no features to serve"
    for command in (
        ["predict", "bundle", "--data", "log.csv", "--out", "raw.parquet"],
        ["evaluate", "bundle", "--data", "log.csv"],
        ["recommend", "bundle", "--log", "log.csv", "--out", "raw.parquet"],
        ["explain", "bundle", "--data", "log.csv"],
        ["explain", "bundle", "--data", "log.csv", "--why-not", "m0001", "--user", "u0001"],
        ["serve", "bundle", "--log", "log.csv"],
    ):
        assert run(command) == 2, command
        said = capsys.readouterr().err
        assert "found no column 'user_id_liked_rate': write them with `fieldwise features b" in said
    again = ["features", "backfill", *of_bundle, "rows.parquet"]
    assert run(again) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run([*again, "--overwrite"]) == 0
    capsys.readouterr()
    assert run(["features", "check", "rows.parquet", "--log", "log.csv", "--bundle", "bundle"]) == 0
    assert "user_id_liked_rate: 0 of 3,000 rows differ" in capsys.readouterr().out
    assert run(["evaluate", "bundle", "--json"]) == 0
    on_time = json.loads(capsys.readouterr().out)["metrics"]["auc"]
    delays = ["features", "delay", "bundle", "--by", "30d,1h", "--json", "--picture", "late.svg"]
    Path("late.svg").touch()
    assert run(delays) == 2
    assert "give --overwrite to replace it, or another --picture" in capsys.readouterr().err
    assert run([*delays, "--overwrite"]) == 0
    late = json.loads(capsys.readouterr().out)["metrics"]
    assert list(late) == ["on time", "30d late", "1h late"]
    assert "auc by the delay of the features" in Path("late.svg").read_text()
    assert late["on time"]["auc"] == on_time
    assert late["30d late"]["auc"] != on_time
    users = pl.read_parquet("users.parquet")
    assert users.columns == [
        "user_id", "gender", "features_time", "features_ttl", "user_id_liked_rate",
    ]  # fmt: skip
    assert users.height == 60
    assert users["gender"].null_count() == 0
    assert pl.read_parquet("scores.parquet").height == 3_000
