"""Features of a recipe: from its rows to a trained bundle, in memory and in a folder."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from features import click_log
from features.click_log import recipe_text
from polars.testing import assert_frame_equal

from fieldwise import Recipe, prepare_recipe, simulate
from fieldwise.cli import run
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.mapped_rows import MappedRows
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.features import Count, Last, Rate, TimeSince, compute
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.raw_table import preparation_of
from fieldwise.runs.row_digests import scored_rows_digest

FEATURES = [
    {"kind": "count", "key": "user_id", "windows": ["7d", "all"]},
    {"kind": "rate", "key": "item_id", "value": "liked", "delay": "1h", "prior_rows": 5},
    {"kind": "last", "key": "user_id", "value": "item_id", "name": "last_item"},
    {"kind": "time_since", "key": ["user_id", "genres"]},
]
AS_OBJECTS = [
    Count(key="user_id", windows=("7d", "all")),
    Rate(key="item_id", value="liked", delay="1h", prior_rows=5),
    Last(key="user_id", value="item_id", name="last_item"),
    TimeSince(key=("user_id", "genres")),
]
MADE = [name for feature in AS_OBJECTS for name in feature.columns]
NO_TABLE = {"kind": "last", "key": "item_id", "value": "price", "table": "no.csv", "time": "at"}
FIELDS = [
    {"kind": "categorical", "name": "user_id", "role": "user"},
    {"kind": "categorical", "name": "item_id", "role": "item"},
    *({"kind": "numeric", "name": name} for name in MADE if name != "last_item"),
    {"kind": "categorical", "name": "last_item", "role": "user"},
]


def tables(**changes: object) -> dict:
    schema = {
        "user": "user_id",
        "item": "item_id",
        "time": "timestamp",
        "fields": FIELDS,
        "label": {"column": "liked"},
        **changes.pop("schema", {}),
    }
    return {
        "data": {"name": "simulated", "rows": 3_000, "users": 60, "items": 30},
        "split": {"kind": "time"},
        "model": {"name": "fm"},
        "schema": schema,
        "features": FEATURES,
        **changes,
    }


def recipe(**changes: object) -> Recipe:
    return Recipe.from_dict(tables(**changes), "test")


def log() -> pl.DataFrame:
    return click_log.log().with_row_index("row")


def test_each_part_has_the_features_of_the_whole_log() -> None:
    prepared = prepare_recipe(recipe(split={"kind": "random"}), Path(), log())
    expected = compute(log(), AS_OBJECTS, time="timestamp")
    for name in PARTS:
        frame = getattr(prepared, name).frame
        assert frame.height
        assert_frame_equal(
            frame.select("row", *MADE), expected.select("row", *MADE).filter(
                pl.col("row").is_in(frame["row"].implode())
            ),
        )  # fmt: skip


def test_no_row_sees_its_own_label_or_a_later_one() -> None:
    prepared = prepare_recipe(recipe(), Path(), log())
    flipped = log().with_columns(
        liked=pl.when(pl.col("timestamp") >= prepared.test.frame["timestamp"].min())
        .then(1 - pl.col("liked"))
        .otherwise("liked")
    )
    again = prepare_recipe(recipe(), Path(), flipped)
    for name in ("train", "valid"):
        assert_frame_equal(
            getattr(prepared, name).frame.select(MADE), getattr(again, name).frame.select(MADE)
        )
    first = prepared.test.frame["timestamp"] < prepared.test.frame["timestamp"].min() + 3600
    assert first.any()
    rates = [one.test.frame.filter(first)["item_id_liked_rate"] for one in (prepared, again)]
    assert rates[0].to_list() == rates[1].to_list()


def test_a_folder_and_chunks_give_the_same_rows(tmp_path: Path) -> None:
    whole = prepare_recipe(recipe(), Path(), log())
    preparation = preparation_of(recipe(), folder=tmp_path, chunk_rows=lambda _: 170)
    chunked = preparation.run(lambda _: MappedRows(frame=log()))
    for name in PARTS:
        assert_frame_equal(
            getattr(whole, name).frame, getattr(chunked, name).frame, check_exact=True
        )


def test_a_table_larger_than_its_memory_is_mapped(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "prices.parquet"
    prices = log().select("item_id", "timestamp", price=pl.col("row") % 7)
    prices.write_parquet(path)
    of_table = {"table": str(path), "time": "timestamp"}
    last = {"kind": "last", "key": "item_id", "value": "price", "name": "price", **of_table}
    fields = [*FIELDS[:2], {"kind": "numeric", "name": "price"}]
    settings = recipe(features=[last], schema={"fields": fields})
    whole = prepare_recipe(settings, Path(), log())
    mapped = []

    def recorded(*arguments: object, memory: int, folder: Path) -> pl.DataFrame:
        mapped.append((memory, folder.is_relative_to(tmp_path)))
        return open_table(*arguments, memory=memory, folder=folder)

    monkeypatch.setattr("fieldwise.data.read.load_table.open_table", recorded)
    preparation = preparation_of(
        settings, folder=tmp_path, chunk_rows=lambda _: 170, table_memory=5_000
    )
    chunked = preparation.run(lambda _: MappedRows(frame=log()))
    assert mapped == [(5_000, True)]
    for name in PARTS:
        assert_frame_equal(getattr(whole, name).frame, getattr(chunked, name).frame)


def test_a_drawn_negative_has_the_features_of_its_own_item() -> None:
    counts = [{"kind": "count", "key": "item_id"}, {"kind": "count", "key": "user_id"}]
    fields = [*FIELDS[:2], *({"kind": "numeric", "name": f"{key}_id_count"} for key in ("item", "user"))]  # fmt: skip
    positives = log().filter(pl.col("liked") == 1).drop("liked")
    made = recipe(
        features=counts,
        negatives={"per_positive": 2, "parts": list(PARTS)},
        schema={"fields": fields},
    )
    train = prepare_recipe(made, Path(), positives).train.frame
    assert (train["liked"] == 0).sum() > 100
    for row in train.sample(300, seed=0).iter_rows(named=True):
        before = positives.filter(pl.col("timestamp") < row["timestamp"])
        for key in ("item_id", "user_id"):
            assert row[f"{key}_count"] == (before[key] == row[key]).sum()


def test_rates_of_aggregated_rows_are_those_of_single_ones() -> None:
    """A row of clicks among impressions is as many rows with one impression each."""
    aggregated = log().with_columns(shown=1 + pl.col("row") % 5)
    aggregated = aggregated.with_columns(clicks=pl.col("row") * 7 % (pl.col("shown") + 1))
    numbers = np.repeat(np.arange(aggregated.height), aggregated["shown"].to_numpy())
    single = aggregated[numbers].with_columns(
        clicked=(pl.int_range(pl.len()).over("row") < pl.col("clicks")).cast(pl.Int8)
    )
    windows = {"windows": ["7d", "all"], "delay": "1h", "value": "clicked"}
    features = [
        {"kind": "rate", "key": "item_id", "prior_rows": 5, **windows},
        {"kind": "rate", "key": "genres", "prior": 0.5, **windows},
        {"kind": "mean", "key": "user_id", **windows},
        {"kind": "sum", "key": "user_id", **windows},
    ]
    of_trials = {"name": "clicked", "column": "clicks", "trials": "shown"}
    made = [
        f"{one['key']}_clicked_{one['kind']}_{window}"
        for one in features
        for window in ("7d", "all")
    ]
    fields = [*FIELDS[:2], *({"kind": "numeric", "name": name} for name in made)]
    frames = []
    for label, table in ((of_trials, aggregated), ({"column": "clicked"}, single)):
        settings = recipe(features=features, schema={"label": label, "fields": fields})
        prepared = prepare_recipe(settings, Path(), table)
        of_parts = [getattr(prepared, part).frame.select("row", *made) for part in PARTS]
        frames.append(pl.concat(of_parts).unique().sort("row"))
    assert frames[0].height == 3_000
    assert_frame_equal(*frames)


def test_settings_have_a_plain_form_and_a_key_of_the_cache() -> None:
    plain = recipe().to_dict()
    assert Recipe.from_dict(plain, "test") == recipe()
    without = recipe(features=[], schema={"fields": FIELDS[:2]})
    assert "features" not in without.to_dict()
    assert data_settings(recipe()) != data_settings(recipe(features=FEATURES[:1]))
    frame = log()
    with_features = compute(frame, AS_OBJECTS, time="timestamp")
    assert scored_rows_digest(with_features, recipe()) == scored_rows_digest(frame, without)


def test_a_split_that_is_not_by_time_is_said(subtests) -> None:
    for kind in ("random", "leave-last-out"):
        with subtests.test(kind):
            (sentence,) = recipe(split={"kind": kind}).cautions()
            assert f"split.kind = '{kind}' lets training rows see labels" in sentence
            assert "in the features item_id_liked_rate: split by time" in sentence
    assert recipe().cautions() == []
    counts = {"features": FEATURES[:1], "schema": {"fields": FIELDS[:4]}}
    assert recipe(split={"kind": "random"}, **counts).cautions() == []


def test_rates_of_a_sampled_log_are_said_to_be_biased() -> None:
    label = {"column": "liked", "sampled": {"negatives": 0.1}}
    (sentence,) = recipe(schema={"label": label}).cautions()
    assert (
        "the log kept some of its rows, and the features item_id_liked_rate are of those"
        in sentence
    )
    counts = {"features": FEATURES[:1], "schema": {"label": label, "fields": FIELDS[:4]}}
    assert recipe(**counts).cautions() == []


def test_bad_input_is_refused_in_one_sentence(subtests) -> None:
    rate = {"kind": "rate", "key": "item_id", "value": "liked"}
    one_rate = [*FIELDS[:2], {"kind": "numeric", "name": "item_id_liked_rate"}]
    last = {**rate, "kind": "last", "delay": "1h"}
    of_trials = {"column": "liked", "trials": "length"}
    cases = [
        ({"schema": {"time": None}}, "the schema has none: set time"),
        ({"schema": {"fields": FIELDS[:3]}}, "a field must read each feature"),
        ({"features": [rate], "schema": {"fields": one_rate}}, "needs a delay"),
        ({"features": [{**rate, "key": "liked", "delay": "1h"}]}, "needs the row's own label"),
        ({"features": [{"kind": "count", "key": "usr"}]}, "must be in the log: 'usr' is not"),
        ({"features": [{"kind": "count", "key": "user_id", "delay": "999w"}]}, "a delay must be shorter"),
        ({"features": [{**rate, "delay": "1h", "known": "timestamp"}]}, "not both"),
        ({"features": [{"kind": "median", "key": "user_id"}]}, "kind = one of"),
        ({"features": [{"kind": "mean", "key": "user_id", "value": "title"}]}, "title"),
        ({"features": [{"kind": "count", "key": "user_id", "name": "title"}]}, "another name"),
        ({"features": [last], "schema": {"label": of_trials}}, "of a label with trials"),
        ({"negatives": {}}, "needs the label of every row"),
        ({"features": [NO_TABLE]}, "no.csv"),
    ]  # fmt: skip
    for changes, words in cases:
        changes = dict(changes)
        if "features" in changes:
            names = [one.get("name") or "_".join(
                [str(one["key"]), *([one["value"]] if "value" in one else []), one["kind"]]
            ) for one in changes["features"]]  # fmt: skip
            fields = [*FIELDS[:2], *({"kind": "numeric", "name": name} for name in names)]
            changes["schema"] = {"fields": fields, **changes.get("schema", {})}
        settings = tables(**changes)
        settings["schema"] = {k: v for k, v in settings["schema"].items() if v is not None}
        with (
            subtests.test(words),
            pytest.raises((ConfigError, DataError, SchemaError), match=words) as caught,
        ):
            prepare_recipe(Recipe.from_dict(settings, "test"), Path(), log())
        assert "\n" not in str(caught.value)


IDS = ["categorical user_id user", "categorical item_id item"]
OF_ITEMS = [
    '{ kind = "rate", key = "item_id", value = "liked", delay = "1h", windows = ["30d"] }',
    '{ kind = "last", key = "item_id", value = "price", table = "prices.csv", time = "since", name = "price" }',
]


def test_the_commands_take_a_recipe_with_features(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    table = simulate(2_000, users=60, items=30)
    table.write_csv("log.csv")
    start = table["timestamp"].min()
    table.select("item_id").unique(maintain_order=True).with_columns(
        since=start, price=pl.int_range(pl.len())
    ).write_csv("prices.csv")
    made = ["numeric item_id_liked_rate_30d context", "numeric price context"]
    Path("with.toml").write_text(recipe_text([*IDS, *made], OF_ITEMS))
    Path("without.toml").write_text(recipe_text(IDS, []))

    for command in (
        ["describe", "with.toml"],
        ["train", "with.toml", "--out", "bundle"],
        ["evaluate", "bundle"],
        ["compare", "without.toml", "with.toml", "--seeds", "1"],
    ):
        assert run(command) == 0, (command, capsys.readouterr())
