"""Rows of items by their values, against a loop over the cells."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import DataError
from fieldwise.scoring import items as module
from fieldwise.scoring.items import ItemFilters

VALUES = ["a", "b", "c", "ä", ""]
ITEMS = st.lists(
    st.tuples(
        st.sampled_from([*VALUES, None]), st.lists(st.sampled_from(VALUES), max_size=3) | st.none()
    ),
    min_size=1,
    max_size=12,
)


@given(
    ITEMS,
    st.lists(st.sampled_from([*VALUES, "z"]), max_size=3),
    st.lists(st.sampled_from(VALUES), max_size=3),
)
def test_rows_are_those_of_a_loop(cells, texts, lists):
    items = pl.DataFrame(
        {"text": [one for one, _ in cells], "list": [more for _, more in cells]},
        schema={"text": pl.String, "list": pl.List(pl.String)},
    )
    filters = ItemFilters(items, {})
    has_text = [row for row, (one, _) in enumerate(cells) if one in texts and one]
    has_list = [
        row for row, (_, more) in enumerate(cells) if more and set(more) & set(lists) - {""}
    ]
    assert filters.rows({"text": texts}).tolist() == has_text
    assert filters.rows({"list": lists}).tolist() == has_list
    assert filters.rows({"text": texts, "list": lists}).tolist() == [
        row for row in has_text if row in has_list
    ]
    assert filters.rows({}).tolist() == list(range(len(cells)))


def test_a_list_that_has_a_value_twice_is_one_row():
    items = pl.DataFrame(
        {"tags": [["b", "a", "b"], ["a"], ["b", "b"]], "genres": ["x|y|x", "y", None]}
    )
    filters = ItemFilters(items, {"genres": "|"})
    for where, rows in (
        ({"tags": ["b"]}, [0, 2]),
        ({"genres": ["x"]}, [0]),
        ({"tags": ["b", "a", "b"]}, [0, 1, 2]),
        ({"tags": ["b"], "genres": ["x", "x"]}, [0]),
    ):
        assert filters.rows(where).tolist() == rows


def test_answers_are_kept_within_bounds(monkeypatch):
    items = pl.DataFrame({"one": ["x"] * 10, "number": list(range(10))})
    filters = ItemFilters(items, {})
    assert filters.rows({"one": ["x"]}) is filters.rows({"one": ["x"]})
    for number in range(50):
        filters.rows({"one": ["x"], "number": [str(k) for k in range(10) if k != number % 10]})
        assert (
            sum(len(rows) for rows in filters._answers.values()) <= module.CACHED_ROWS_PER_ITEM * 10
        )
    monkeypatch.setattr(module, "MAX_CACHED_FILTERS", 3)
    for number in range(10):
        filters.rows({"number": [str(number)]})
    assert len(filters._answers) == 3
    filters.rows({"number": [str(number) for number in range(1000)]})
    assert len(filters._answers) == 3
    assert filters.rows({"number": ["1", "2", "2"]}) is filters.rows({"number": ["2", "1"]})


def test_columns_that_cannot_filter():
    filters = ItemFilters(pl.DataFrame({"genres": ["a|b"], "blob": [b"x"]}), {"genres": "|"})
    assert filters.rows({"genres": ["b"]}).tolist() == [0]
    with pytest.raises(DataError, match="found 'genre': did you mean 'genres'"):
        filters.rows({"genre": ["a"]})
    with pytest.raises(DataError, match="found column 'blob' of type Binary: filter by another"):
        filters.rows({"blob": ["a"]})


def test_numbers_and_booleans_are_texts():
    items = pl.DataFrame({"year": [2001.0, 2002.5, None], "stock": [True, False, True]})
    filters = ItemFilters(items, {})
    assert filters.rows({"year": ["2001"]}).tolist() == [0]
    assert filters.rows({"stock": ["true"], "year": ["2001", "2002.5"]}).tolist() == [0]
    assert np.array_equal(filters.rows({"stock": ["true", "false"]}), [0, 1, 2])
