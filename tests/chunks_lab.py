"""A small log with all kinds of fields, and preparations of it; for tests of preparation in chunks."""

import dataclasses
import functools
from typing import Any

import numpy as np
import polars as pl

from fieldwise import (
    Bag,
    Categorical,
    ColumnSplit,
    Label,
    LeaveLastOutSplit,
    NegativeSampling,
    Numeric,
    RandomSplit,
    Schema,
    Sequence,
    TimeSplit,
)
from fieldwise.data.prepare.preparation import Preparation
from fieldwise.data.prepare.prepared import Prepared, SplitPart
from fieldwise.data.prepare.settings import PARTS, HistorySettings, SplitSettings, TargetEncoding
from fieldwise.data.read.mapped_rows import MappedRows

ROWS = 900


def log(seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    item = np.minimum(draw.zipf(1.3, ROWS), 60)
    return pl.DataFrame(
        {
            "user": draw.integers(0, 40, ROWS),
            "item": item,
            "kind": pl.Series([f"kind {k % 7}" for k in item]),
            "tags": pl.Series(
                ["|".join(f"t{k}" for k in range(k % 5)) or None for k in draw.integers(0, 9, ROWS)]
            ),
            "price": pl.Series(np.round(draw.lognormal(2, 1, ROWS), 2)).set(
                pl.Series(draw.random(ROWS) < 0.1), None
            ),
            "text_price": pl.Series([str(x) for x in draw.integers(-5, 5, ROWS)]),
            "day": draw.integers(0, 300, ROWS),
            "rating": draw.integers(1, 6, ROWS),
            "minutes": draw.random(ROWS).round(3),
            "part": draw.choice(["train", "train", "train", "test"], ROWS),
        }
    )


SCHEMA = Schema(
    user="user",
    item="item",
    time="day",
    keys=("user", "item"),
    fields=(
        Categorical("user", role="user", min_count=3),
        Categorical("item", role="item"),
        Categorical("kind", role="item", hash_buckets=5),
        Bag("tags", separator="|"),
        Numeric("price", encoding="quantile", bins=6, point_masses=True),
        Numeric("scaled", column="price", transform="standard"),
        Numeric("logged", column="text_price", transform="log"),
        Numeric("even", column="text_price", encoding="uniform", bins=3),
        Numeric("pieces", column="price", encoding="piecewise", bins=6, point_masses=True),
    ),
    label=Label("rating", positive_above=3, drop_values=(3,)),
    more_labels=(Label("minutes", task="regression"),),
)
ONE_LABEL = dataclasses.replace(SCHEMA, more_labels=(), label=Label("rating", positive_above=3))
HISTORY = Sequence("history", shares="item", max_length=4)


def with_fields(schema: Schema, *more: Numeric | Sequence) -> Schema:
    return dataclasses.replace(schema, fields=(*schema.fields, *more))


CASES: dict[str, tuple[Schema, SplitSettings, dict[str, Any]]] = {
    "random": (SCHEMA, RandomSplit(), {}),
    "stratified": (SCHEMA, RandomSplit(stratify=True, valid=0.13, test=0.2), {}),
    "time": (SCHEMA, TimeSplit(), {}),
    "leave last out": (SCHEMA, LeaveLastOutSplit(min_train=10, valid_rows=2), {}),
    "column": (SCHEMA, ColumnSplit(column="part", valid_share=0.2, stratify=True), {}),
    "histories": (
        with_fields(SCHEMA, HISTORY),
        TimeSplit(),
        {"history": HistorySettings(max_length=4)},
    ),
    "target encoding": (
        with_fields(SCHEMA, Numeric("item_mean_label", transform="standard")),
        TimeSplit(),
        {"target_encoding": TargetEncoding(columns=("item",))},
    ),
    "negatives": (
        with_fields(ONE_LABEL, HISTORY),
        TimeSplit(valid=0.2, test=0.2),
        {
            "history": HistorySettings(max_length=4),
            "negatives": NegativeSampling(
                per_positive=2, parts=PARTS, item_columns=("kind", "price")
            ),
        },
    ),
    "negatives by popularity": (
        ONE_LABEL,
        TimeSplit(valid=0.2, test=0.2),
        {"negatives": NegativeSampling(per_positive=3, parts=PARTS, kind="mixed")},
    ),
}


def prepare(
    frame: pl.DataFrame, schema: Schema, *, split: SplitSettings, seed: int, **added: Any
) -> Prepared:
    """A table, prepared at once in memory; `added` as of `Preparation`."""
    return Preparation(schema=schema, split=split, seed=seed, **added).run(
        lambda _: MappedRows(frame=frame)
    )


def rows_of(case: str) -> pl.DataFrame:
    """The rows of a case."""
    rows = log()
    if "negatives" in CASES[case][2]:  # so that every user has unused items
        rows = rows.filter(pl.col("rating") > 3).unique(
            ["user", "item"], keep="first", maintain_order=True
        )
    return rows


@functools.cache
def prepared(case: str) -> Prepared:
    """A case, prepared at once in memory."""
    schema, split, added = CASES[case]
    return prepare(rows_of(case), schema, split=split, seed=3, **added)


def assert_equal(found: Prepared, wanted: Prepared) -> None:
    assert found.encoder.to_json() == wanted.encoder.to_json()
    assert found.counts == wanted.counts
    assert found.unseen == wanted.unseen
    for name in PARTS:
        assert_equal_parts(getattr(found, name), getattr(wanted, name))


def assert_equal_parts(one: SplitPart, other: SplitPart) -> None:
    for array in ("ids", "values", "bag_ids", "bag_offsets", "y"):
        np.testing.assert_array_equal(
            getattr(one.table, array), getattr(other.table, array), strict=True
        )
    np.testing.assert_array_equal(one.group, other.group, strict=True)
    assert one.frame.equals(other.frame)
    assert one.frame.schema == other.frame.schema
