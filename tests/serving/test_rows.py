"""Cells of a request: what each field takes, and how what it does not take is named."""

import math

import polars as pl
import pytest

from fieldwise import Bag, Categorical, Numeric, Sequence
from fieldwise.serving.rows import RequestError, frame_of

FIELDS = (
    Categorical("user"),
    Numeric("price"),
    Bag("tags"),
    Sequence("history", separator=";"),
    Numeric("hour", column="time"),
    Categorical("hour_of_day", column="time"),
)
ROW = {"user": "u", "price": 1, "tags": ["a"], "history": "a;b", "time": 3}


def test_every_column_has_one_type_whatever_the_values():
    rows = [
        ROW,
        {**ROW, "user": 5, "price": "2.5", "tags": "b|c", "time": None},
        dict.fromkeys(ROW),
        {**ROW, "more": {}},
    ]
    frame = frame_of(rows, FIELDS)
    assert frame.schema == {
        "user": pl.String(),
        "price": pl.Float64(),
        "tags": pl.List(pl.String),
        "history": pl.List(pl.String),
        "time": pl.Float64(),
    }
    assert frame["user"].to_list() == ["u", "5", None, "u"]
    assert frame["price"].to_list() == [1.0, 2.5, None, 1.0]
    assert frame["tags"].to_list() == [["a"], ["b", "c"], None, ["a"]]
    assert frame["history"].to_list() == [["a", "b"], ["a", "b"], None, ["a", "b"]]
    assert frame_of([], FIELDS).schema == frame.schema


@pytest.mark.parametrize(
    ("value", "text"), [(5, "5"), (5.0, "5"), (5.5, "5.5"), (True, "true"), ("", ""), (10**30, str(10**30))]
)
def test_categories_are_the_texts_that_a_file_would_give(value, text):
    assert frame_of([{"user": value}], FIELDS[:1])["user"].to_list() == [text]


BAD = [
    ("user", ["a"], "one value"),
    ("user", {"a": 1}, "one value"),
    ("user", math.nan, "a finite number"),
    ("user", "\ud800", "whole characters"),
    ("tags", "a|\udfff", "whole characters"),
    ("price", "cheap", "a number or null"),
    ("price", "", "a number or null"),
    ("price", True, "a number or null"),
    ("price", [1], "a number or null"),
    ("price", math.inf, "a finite number"),
    ("price", "inf", "a finite number"),
    ("price", 10**400, "a number or null"),
    ("tags", 3, "a list of values"),
    ("tags", [["a"]], "one value"),
    ("tags", [math.nan], "a finite number"),
    ("history", {"a": 1}, "a list of values"),
]


@pytest.mark.parametrize(("column", "value", "words"), BAD)
def test_a_wrong_cell_is_named(column, value, words):
    with pytest.raises(RequestError, match=words) as caught:
        frame_of([ROW, {**ROW, column: value}], FIELDS)
    assert caught.value.field == f"rows[1].{column}"
    assert str(caught.value).startswith(f"rows[1].{column} must be ")
    assert len(str(caught.value)) < 200


def test_a_missing_cell_is_named():
    with pytest.raises(RequestError, match=r"context\[0\]\.price is missing"):
        frame_of([{"user": "u"}], FIELDS, "context")
