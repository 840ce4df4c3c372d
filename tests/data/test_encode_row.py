"""One row without a table is what a table of that row gives."""

import datetime
import math

import numpy as np
import polars as pl
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fieldwise import Bag, Categorical, Encoder, Label, Numeric, Schema, Sequence
from fieldwise.data.encode.encoder import encode_row

SCHEMA = Schema(
    fields=(
        Categorical("user"),
        Sequence("history", max_length=2, shares="item"),
        Categorical("item"),
        Categorical("zip", hash_buckets=5),
        Bag("tags"),
        Numeric("price"),
        Numeric("cost", missing="vector", transform="log"),
        Numeric("hour", encoding="quantile", bins=3),
        Numeric("time", column="hour", encoding="piecewise", bins=3, transform="log"),
    ),
    label=Label("y"),
)
TRAIN = pl.DataFrame(
    {
        "user": ["1", "2", "a", "true", ""],
        "history": ["i1;i2", "", "i1", "i2", None],
        "item": ["i1", "i2", "i1", "i3", "i1"],
        "zip": ["1", "2", "3", "4", "5"],
        "tags": ["t1|t2", "t2", "", "t3", "t1"],
        "price": [1.0, 2.0, None, 4.0, 5.0],
        "cost": [1.0, 2.0, None, 4.0, 5.0],
        "hour": [1, 5, 9, 13, 20],
    }
)
ENCODER = Encoder.fit(TRAIN, SCHEMA)
SPACES = ["", " ", " i1 ", "\u00a0", "\x1f", "\u2003x"]
WORDS = st.sampled_from(["1", "2", "a", "i1", "i2", "t1", "t1|t2", "i1;i2", "1.5", "x", *SPACES])
WHOLE = st.integers(-(2**126), 2**126)  # those of a table
SCALARS = (
    st.none()
    | WORDS
    | st.booleans()
    | WHOLE
    | st.floats()
    | st.sampled_from([1.0, 2.5, 2.0**53, 1e39])
)
NUMBERS = st.none() | st.integers() | st.floats() | WORDS | st.booleans()
LISTS = (
    st.none()
    | WORDS
    | st.lists(st.none() | WORDS, max_size=4)
    | st.lists(st.integers(0, 3), max_size=2)
    | st.lists(st.floats(), max_size=2)
)
PLAIN = {
    "user": "a",
    "history": ["i1", "i2", "i9"],
    "item": 3,
    "zip": "77",
    "tags": "t1| t2 |",
    "price": 2,
    "cost": None,
    "hour": 7.5,
}
CELLS = st.fixed_dictionaries(
    dict.fromkeys(("user", "item", "zip"), SCALARS)
    | dict.fromkeys(("history", "tags"), LISTS)
    | dict.fromkeys(("price", "cost", "hour"), NUMBERS)
)
# of more, few rows would do without a table
CHANGED = st.sets(st.sampled_from(list(PLAIN)), max_size=2)
ROWS = st.builds(
    lambda cells, changed: PLAIN | {name: cells[name] for name in changed}, CELLS, CHANGED
)


def by_table(row):
    frame = pl.DataFrame({name: [value] for name, value in row.items()})
    return ENCODER.transform(frame, part=ENCODER.layout).batch(torch.tensor([0]))[0]


@given(ROWS)
def test_a_row_is_what_its_table_is(row):
    result = encode_row(ENCODER, ENCODER.layout, row)
    assume(result is not None)
    expected = by_table(row)
    for ours, theirs in zip(result, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, theirs)


def test_plain_rows_need_no_table(subtests):
    for change in [
        {}, {"user": None}, {"user": True}, {"user": 2.0}, {"user": 2.5}, {"user": math.nan}, {"user": 2**70},
        {"history": []}, {"tags": None}, {"tags": [1, 2]}, {"tags": ["\u00a0t1", "t2\x1f"]},
    ]:  # fmt: skip
        with subtests.test(change=change):
            row = PLAIN | change
            result = encode_row(ENCODER, ENCODER.layout, row)
            assert result is not None
            np.testing.assert_array_equal(result.bag_ids, by_table(row).bag_ids)
            np.testing.assert_array_equal(result.ids, by_table(row).ids)


def test_others_are_left_to_a_table(subtests):
    for change in [
        {"user": datetime.date(2026, 1, 1)},
        {"price": "2.5"},
        {"price": True},
        {"price": math.inf},
        {"history": ("i1",)},
    ]:
        with subtests.test(change=change):
            assert encode_row(ENCODER, ENCODER.layout, PLAIN | change) is None


def test_some_of_the_fields():
    from fieldwise.layers.candidates import Split

    split = Split.at(ENCODER.layout, [0, 4, 5])
    row = {name: PLAIN[name] for name in ("user", "tags", "price")}
    result = encode_row(ENCODER, split.context.layout, row)
    expected = ENCODER.transform(
        pl.DataFrame({k: [v] for k, v in row.items()}), part=split.context.layout
    )
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_array_equal(result.values, expected.values)
    np.testing.assert_array_equal(result.bag_ids, expected.bag_ids)
