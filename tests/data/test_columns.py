"""Columns against plain Python: one value has one text, faults name their row, hashes are the published FNV-1a."""

import datetime
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.encode.columns import WHITE, as_list, as_number, as_text, cell_list, cell_text, stable_hash
from fieldwise.errors import DataError

SRC = Path(__file__).parents[2] / "src" / "fieldwise"


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def test_one_id_has_one_text_whatever_its_type(subtests):
    for column in [["12"], [12], [12.0], [Decimal("12.00")], [Decimal("12")]]:
        with subtests.test(column=column):
            assert as_text(pl.Series(column)).to_list() == ["12"]
            assert as_list(pl.Series(column), "|").to_list() == [["12"]]
            assert as_list(pl.Series([column]), "|").to_list() == [["12"]]


def test_every_width_of_number_gives_the_same_text(subtests):
    for dtype in [pl.Int8, pl.UInt8, pl.Int32, pl.UInt64, pl.Float32, pl.Float64]:
        with subtests.test(dtype=dtype):
            assert as_text(pl.Series([0, 7, 100, None], dtype=dtype)).to_list() == ["0", "7", "100", None]


def test_large_ids_stay_apart_as_integers_and_as_floats(subtests):
    for value in [2**24, 2**24 + 1, 2**31 + 1, 2**53 - 1]:
        with subtests.test(value=value):
            assert as_text(pl.Series([value, value - 1])).to_list() == [str(value), str(value - 1)]
            assert as_text(pl.Series([float(value), float(value - 1)])).to_list() == [str(value), str(value - 1)]


def test_absent_values_become_null() -> None:
    assert as_text(pl.Series([1.5, float("nan"), None])).to_list() == ["1.5", None, None]
    assert as_text(pl.Series(["", "a", None])).to_list() == [None, "a", None]
    assert as_text(pl.Series(["", "a", None], dtype=pl.Categorical)).to_list() == [None, "a", None]
    assert as_text(pl.Series([None, None])).to_list() == [None, None]
    assert as_text(pl.Series([-0.0])).to_list() == ["0"]


def test_booleans_are_lower_case_in_cells_and_in_lists() -> None:
    assert as_text(pl.Series([True, False, None])).to_list() == ["true", "false", None]
    assert as_list(pl.Series([[True], [False, None]]), "|").to_list() == [["true"], ["false"]]


def test_the_name_of_the_column_stays() -> None:
    assert as_text(pl.Series("cell", [1])).name == "cell"
    assert as_text(pl.Series("^.*$", [1.0])).name == "^.*$"


def test_cells_of_several_values_are_refused_as_one_value(subtests: pytest.Subtests) -> None:
    for column in [pl.Series("x", [[1]]), pl.Series("x", [{"a": 1}]), pl.Series("x", [b"a"])]:
        with subtests.test(column=column):
            with pytest.raises(DataError, match=r"column 'x' is of type .*declare it a Bag"):
                as_text(column)
            with pytest.raises(DataError, match="a number is needed: column 'x' is of type"):
                as_number(column, "column 'x'")


def test_numbers_of_every_type() -> None:
    assert as_number(pl.Series([" 1", "2.5 ", "", "  ", None, "nan", "-1e3", "+5"]), "x").to_list() == [
        *(1.0, 2.5, None, None, None, None),
        *(-1000.0, 5.0),
    ]
    assert as_number(pl.Series(["1", "20", None], dtype=pl.Categorical), "x").to_list() == [1.0, 20.0, None]
    assert as_number(pl.Series([True, False]), "x").to_list() == [1.0, 0.0]
    assert as_number(pl.Series([Decimal("1.25")]), "x").to_list() == [1.25]
    assert as_number(pl.Series([float("nan"), 1.0]), "x").to_list() == [None, 1.0]


def test_times_count_in_seconds_whatever_their_unit(subtests: pytest.Subtests) -> None:
    for unit in ["ms", "us", "ns"]:
        with subtests.test(unit=unit):
            at, span = datetime.datetime(1970, 1, 2), datetime.timedelta(minutes=2)
            assert as_number(pl.Series([at]).cast(pl.Datetime(unit)), "x").to_list() == [86400.0]
            assert as_number(pl.Series([span]).cast(pl.Duration(unit)), "x").to_list() == [120.0]
            assert as_number(pl.Series([at.date()]), "x").to_list() == [86400.0]
            assert as_number(pl.Series([datetime.time(0, 1)]), "x").to_list() == [60.0]


def test_text_among_numbers_names_the_row(subtests):
    for text in ["old", "1,5", "1_000", "0x10", "--1"]:
        with (
            subtests.test(text=text),
            pytest.raises(DataError, match=f"column 'age' holds the text '{text}' in row 2 "),
        ):
            as_number(pl.Series(["1", None, text, "bad"]), "column 'age'")


def test_infinity_and_what_overflows_32_bits_name_the_row(subtests):
    for column in [[1.0, float("inf")], [1.0, float("-inf")], ["1", "inf"], ["1", "1e400"], [1.0, 1e39]]:
        with (
            subtests.test(column=column),
            pytest.raises(DataError, match=r"numbers must be finite .* column 'age' holds .* in row 1 "),
        ):
            as_number(pl.Series(column), "column 'age'")


def test_lists_lose_blanks_and_absent_values() -> None:
    column = pl.Series(["a| b ||c", "", None, "|", "a|a"])
    assert as_list(column, "|").to_list() == [["a", "b", "c"], [], [], [], ["a", "a"]]
    assert as_list(pl.Series([["a", None, ""], [], None, [" b"]]), "|").to_list() == [["a"], [], [], ["b"]]
    assert as_list(pl.Series([[], None]), "|").to_list() == [[], []]
    assert as_list(pl.Series(["1, 2"]), ",").to_list() == [["1", "2"]]
    assert as_list(pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), "|").to_list() == [["1", "2"]]


def test_a_cell_of_a_list_column_does_not_depend_on_other_cells() -> None:
    alone = as_list(pl.Series([[1.0, float("nan")]]), "|").to_list()
    beside = as_list(pl.Series([[1.0, float("nan")], [2.5]]), "|").to_list()
    assert alone == [["1"]]
    assert beside == [["1"], ["2.5"]]


def test_lists_of_lists_are_refused() -> None:
    with pytest.raises(DataError, match="column 'x' is of type List"):
        as_list(pl.Series("x", [[[1]]]), "|")


def test_hash_is_the_published_fnv1a(subtests: pytest.Subtests) -> None:
    for text, published in [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)]:
        with subtests.test(text=text, published=published):
            assert fnv1a(text) == published
            for buckets in (1, 7, 2**31, 2**62):
                assert stable_hash(pl.Series([text]), buckets).tolist() == [published % buckets]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)), st.integers(1, 2**40))
def test_hash_equals_a_plain_loop(texts: list[str], buckets: int) -> None:
    found = stable_hash(pl.Series(texts, dtype=pl.String), buckets)
    assert found.tolist() == [fnv1a(t) % buckets for t in texts]


def test_one_long_text_costs_the_others_nothing() -> None:
    texts = ["x" * 10_000, *map(str, range(1000))]
    assert stable_hash(pl.Series(texts), 1000).tolist() == [fnv1a(t) % 1000 for t in texts]


CELLS = st.none() | st.text(max_size=5) | st.booleans() | st.integers(-(2**126), 2**126) | st.floats()
ITEMS = st.lists(st.none() | st.text(" a|\t\x1f\u2003\u00a0", max_size=5), max_size=5) | st.lists(
    st.none() | st.floats(), max_size=3
)


@given(CELLS)
def test_the_text_of_a_cell_is_that_of_its_column(cell):
    assert cell_text(cell) == as_text(pl.Series([cell]))[0]


@given(ITEMS | st.none() | st.text(" a|\t\x1f\u2003", max_size=9), st.none() | st.integers(1, 3))
def test_the_list_of_a_cell_is_that_of_its_column(cell, newest):
    found = as_list(pl.Series([cell], dtype=pl.List(pl.String) if cell == [] else None), "|")[0].to_list()
    assert cell_list(cell, "|", newest=newest) == found[-newest if newest else 0 :]


def test_white_space_is_that_of_polars():
    letters = pl.Series([chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF])
    assert set(WHITE) == set(letters.filter(letters.str.strip_chars() == ""))


def test_other_cells_are_refused(subtests):
    for cell in [("a",), {"a": 1}, np.int64(3), datetime.date(2026, 1, 1), b"a"]:
        with subtests.test(cell=cell):
            with pytest.raises(TypeError, match="one value"):
                cell_text(cell)
            with pytest.raises(TypeError, match="a list of values"):
                cell_list(cell, "|")


def test_cells_become_text_and_lists_in_one_place():
    """Booleans are written, and text split at a field's separator, in one place each."""
    repeated = re.compile(r"str\(\w+\)\.lower\(\)|split\(\w*\.?separator")
    found = {path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py") if repeated.search(path.read_text())}
    assert found == {"data/encode/columns.py", "bundle/standalone.py"}, "an export runs without the package"
