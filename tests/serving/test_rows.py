"""Cells of a request: what each field takes, and how what it does not take is named."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import Bag, Categorical, Numeric, Sequence
from fieldwise.data.encode.columns import as_text, text_numbers
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.serving.rows import RequestError, request_frame, text_of

FIELDS = (
    Categorical("user"), Numeric("price"), Bag("tags"), Sequence("history", separator=";"),
    Numeric("hour", column="time"), Categorical("hour_of_day", column="time"),
)  # fmt: skip
ROW = {"user": "u", "price": 1, "tags": ["a"], "history": "a;b", "time": 3}


def test_every_column_has_one_type_whatever_the_values():
    other = {**ROW, "user": 5, "price": "2.5", "tags": "b|c", "time": None}
    frame = request_frame([ROW, other, dict.fromkeys(ROW), {**ROW, "more": {}}], FIELDS)
    lists = pl.List(pl.String)
    expected = {
        "user": pl.String,
        "price": pl.Float64,
        "tags": lists,
        "history": lists,
        "time": pl.Float64,
    }
    assert frame.schema == expected
    assert frame["user"].to_list() == ["u", "5", None, "u"]
    assert frame["price"].to_list() == [1.0, 2.5, None, 1.0]
    assert frame["tags"].to_list() == [["a"], ["b", "c"], None, ["a"]]
    assert frame["history"].to_list() == [["a", "b"], ["a", "b"], None, ["a", "b"]]
    assert request_frame([], FIELDS).schema == frame.schema


def test_categories_are_the_texts_that_a_file_would_give(subtests):
    for value, text in [
        (5, "5"),
        (5.0, "5"),
        (5.5, "5.5"),
        (True, "true"),
        ("", ""),
        (10**30, str(10**30)),
    ]:
        with subtests.test(value=value, text=text):
            assert request_frame([{"user": value}], FIELDS[:1])["user"].to_list() == [text]


BAD = [
    ("user", ["a"], "one value"),
    ("user", {"a": 1}, "one value"),
    ("user", math.nan, "a finite number"),
    ("user", "\ud800", "valid Unicode text"),
    ("tags", "a|\udfff", "valid Unicode text"),
    ("price", "cheap", "a finite number or null"),
    ("price", "1_0", "a finite number or null, found '1_0'"),
    ("price", "1970-01-02", "of a date its seconds since 1970, here 86400"),
    ("price", "1970-01-01T01:00+01:00", "of a date its seconds since 1970, here 0"),
    ("price", "\ud800", "valid Unicode text"),
    ("price", [1], "a number or null"),
    ("price", math.inf, "a finite number"),
    ("price", "inf", "a finite number"),
    ("price", 10**400, "a finite number"),
    ("tags", [["a"]], "one value"),
    ("tags", [math.nan], "a finite number"),
    ("history", {"a": 1}, "one value"),
]


def test_a_wrong_cell_is_named(subtests):
    for column, value, words in BAD:
        with subtests.test(column=column, value=value, words=words):
            with pytest.raises(RequestError, match=words) as caught:
                request_frame([ROW, {**ROW, column: value}], FIELDS)
            assert caught.value.field == f"rows[1].{column}"
            assert str(caught.value).startswith(f"rows[1].{column} must be ")
            assert len(str(caught.value)) < 200


def test_texts_of_numbers_are_read_as_in_tables_and_a_wrong_one_is_named():
    fields = Numeric("paid", number_format="€ 1.234,5"), Numeric("price")
    rows = [{"paid": f"{k},50 €", "price": ("NA", k, f" {k}")[k % 3]} for k in range(900)]
    frame = request_frame(rows, fields)
    assert frame["paid"].to_list() == [k + 0.5 for k in range(900)]
    assert frame["price"].to_list() == [None if k % 3 == 0 else k for k in range(900)]
    for field in fields:
        texts = pl.Series([str(row[field.column]) for row in rows])
        in_table, _ = text_numbers(texts, field.number_format, MISSING_MARKS)
        assert frame[field.column].to_list() == in_table.to_list()
    with pytest.raises(
        RequestError,
        match=r"^rows\[3\]\.paid must be a finite number in the format .* found '1,5 kg'$",
    ):
        request_frame([*rows[:3], {**rows[3], "paid": "1,5 kg"}], fields)


def test_a_missing_cell_is_named():
    with pytest.raises(RequestError, match=r"context\[0\]\.price is missing"):
        request_frame([{"user": "u"}], FIELDS, "context")
    two = (Categorical("diet"), Categorical("device"))
    for row, result in (({"diet": "x"}, ""), ({"diet": "x", "devise": "y"}, ", found 'devise'")):
        with pytest.raises(RequestError, match=rf"rows\[0\]\.device is missing{result}$"):
            request_frame([row], two)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60).map(float))
def test_floats_are_spelt_as_in_tables(value):
    assert text_of(value) == as_text(pl.Series([value]))[0]


def test_long_values_are_refused_and_of_a_sequence_the_newest_count():
    fields = (Bag("tags"), Sequence("history", max_length=3), Categorical("user"))
    row = {
        "tags": ["a"] * 1000,
        "history": [str(n) for n in range(5000)] + ["", None],
        "user": "x" * 10_000,
    }
    frame = request_frame([row], fields)
    assert frame["history"].to_list() == [[str(n) for n in range(4000, 5000)]]
    assert frame["tags"].list.len().to_list() == [1000]
    for column, value, words in (
        ("tags", ["a"] * 1001, "a list of at most 1,000 values"),
        ("tags", "|".join(["a"] * 1001), "a list of at most 1,000 values"),
        ("tags", ["a" * 10_001], "a text of at most 10,000 characters"),
        ("user", "x" * 10_001, "a text of at most 10,000 characters"),
    ):
        with pytest.raises(RequestError, match=words) as e:
            request_frame([{**row, column: value}], fields)
        assert e.value.field == f"rows[0].{column}"
