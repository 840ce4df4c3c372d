"""Rows that stand in training and test against plain joins, and what does not make them equal."""

import numpy as np
import polars as pl

from fieldwise import Bag, Categorical, Label, Numeric, Schema
from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.data.prepare.settings import NegativeSampling, PreparationSettings
from fieldwise.data.prepare.split_settings import ColumnSplit

SCHEMA = Schema(fields=(Categorical("user"), Categorical("item"), Bag("tags"), Numeric("price")), label=Label("liked"))


def log(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "row": [f"r{k}" for k in range(rows)],
            "user": rng.integers(0, 6, rows),
            "item": rng.integers(0, 5, rows),
            "tags": [[f"t{k}"] if k else None for k in rng.integers(0, 3, rows)],
            "price": pl.Series(rng.integers(0, 4, rows) / 2).replace(0.5, None),
            "liked": rng.integers(0, 2, rows),
            "at": rng.integers(0, 50, rows),
            "part": rng.choice(["train", "valid", "test"], rows, p=[0.4, 0.2, 0.4]),
        }
    )


def joined(frame, part, columns):
    known = frame.filter(part="train").select(columns).unique()
    return frame.filter(part=part).join(known, on=columns, how="semi", nulls_equal=True).height


def test_counts_are_those_of_a_plain_join(subtests):
    for keys in [(), ("row",), ("at",), ("row", "at")]:
        with subtests.test(keys=keys):
            frame = log()
            schema = Schema(fields=SCHEMA.fields, label=SCHEMA.label, keys=keys)
            prepared = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0)
            columns = ["user", "item", "tags", "price", "liked", *(["at"] if "at" in keys else [])]
            for part in ("valid", "test"):
                expected = joined(frame, part, columns)
                assert prepared.counts[f"{part}_rows_in_train"] == expected > 0
                assert expected < prepared.counts[f"{part}_rows"]


def test_rows_of_their_own_times_are_events_of_their_own():
    frame = log().with_columns(at=pl.int_range(900))
    schema = Schema(fields=SCHEMA.fields, label=SCHEMA.label, time="at")
    counts = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0).counts
    assert not any("in_train" in name for name in counts)
    assert repeat_sentences(counts) == []


def test_sampled_negatives_are_no_rows_of_the_log():
    frame = log().with_columns(liked=pl.lit(1), at=pl.int_range(900), item=pl.int_range(900) % 300)
    schema = Schema(fields=(Categorical("user"), Categorical("item")), label=Label("liked"), time="at")
    drawn = NegativeSampling(user="user", item="item", per_positive=1, parts=("train", "valid", "test"))
    counts = prepare(
        frame, schema, split=ColumnSplit(column="part"), seed=0, add=PreparationSettings(negatives=drawn)
    ).counts
    assert counts["negatives_drawn"] > 0
    assert "test_rows_in_train" not in counts


def test_sentences_name_rows_and_share():
    counts = {"valid_rows": 4000, "valid_rows_in_train": 2, "test_rows": 5000, "test_rows_in_train": 312}
    valid, test = repeat_sentences(counts)
    assert valid.startswith("2 of 4,000 validation rows (less than .1 %) equal a training row")
    assert test.startswith("312 of 5,000 test rows (6.2 %) equal a training row in all fields and the label")
