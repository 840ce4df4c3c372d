"""Benchmarks give LightGBM the fields as they are meant."""

import numpy as np
import polars as pl
import pytest
from benchmarks.tree_columns import features, left_out
from chunks_lab import prepare

from fieldwise import (
    Bag,
    Categorical,
    Label,
    Numeric,
    RandomSplit,
    Schema,
    Sequence,
)

FIELDS = (
    Categorical("a"),
    Numeric("x", encoding="quantile"),
    Bag("tags"),
    Sequence("past"),
    Categorical("b"),
)


@pytest.fixture(scope="module")
def schema():
    return Schema(fields=FIELDS, label=Label("y"))


@pytest.fixture(scope="module")
def prepared(schema):
    rng = np.random.default_rng(0)
    rows = 600
    a, b, x = rng.integers(0, 5, rows), rng.integers(0, 4, rows), rng.random(rows)
    frame = pl.DataFrame(
        {
            "a": [f"a{k}" for k in a],
            "b": [None if k == 3 else f"b{k}" for k in b],
            "x": [None if v < 0.05 else float(v) for v in x],
            "tags": [["u", "v"] if k % 2 else ["w"] for k in range(rows)],
            "past": ["p|q"] * rows,
            "y": (rng.random(rows) < np.where((a + b) % 2, 0.9, 0.1)).astype(int),
        }
    )
    return prepare(frame, schema, split=RandomSplit(valid=0.2, test=0.2), seed=0)


def test_features_are_codes_numbers_and_a_column_a_tag(prepared, schema):
    frame = prepared.train.frame
    x, categories = features(prepared.train, schema)
    width = prepared.encoder.layout.fields[2].rows
    assert x.shape == (frame.height, 3 + width)
    assert categories == [0, 2 + width]
    # Equal codes are equal values, absent ones are no number.
    for column, name in ((0, "a"), (2 + width, "b")):
        pairs = {
            (c, v)
            for c, v in zip(x[:, column].tolist(), frame[name].to_list(), strict=True)
            if v is not None
        }
        assert len(pairs) == frame[name].drop_nulls().n_unique()
        np.testing.assert_array_equal(np.isnan(x[:, column]), frame[name].is_null().to_numpy())
    np.testing.assert_array_equal(x[:, 1], frame["x"].fill_null(float("nan")).to_numpy())
    tags = x[:, 2 : 2 + width]
    assert sorted(tags.sum(axis=0).astype(int).tolist())[-3:] == sorted(
        frame["tags"].explode().value_counts()["count"].to_list()
    )
    assert left_out(prepared.train) == ["past"]
