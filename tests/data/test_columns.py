"""Columns as text, numbers, lists and codes, against plain Python; the table of integer keys against a dict."""

import datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise import Bag, Categorical, DataError, Encoder, Label, Numeric, Schema, Sequence
from fieldwise.data.encode import encoder as encoder_module
from fieldwise.data.encode.columns import (
    as_list,
    as_number,
    as_text,
    coded,
    stable_hash,
)
from fieldwise.data.encode.integer_lookup import MULTIPLIER
from fieldwise.data.encode.kinds import kind_of
from fieldwise.data.encode.portable import WHITE, cell_text, cell_texts
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.storage import machine


def category_ids(fitted, column):
    return kind_of(Categorical("c")).column(Categorical("c"), fitted, column, ()).ids.tolist()


def fnv1a(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def test_every_width_of_number_gives_the_same_text(subtests):
    for dtype in [pl.Int8, pl.UInt8, pl.Int32, pl.UInt64, pl.Float32, pl.Float64]:
        with subtests.test(dtype=dtype):
            assert as_text(pl.Series([0, 7, 100, None], dtype=dtype)).to_list() == [
                "0",
                "7",
                "100",
                None,
            ]


def test_absent_values_become_null() -> None:
    assert as_text(pl.Series([1.5, float("nan"), None])).to_list() == ["1.5", None, None]
    assert as_text(pl.Series(["", "a", None])).to_list() == [None, "a", None]
    assert as_text(pl.Series(["", "a", None], dtype=pl.Categorical)).to_list() == [None, "a", None]
    assert as_text(pl.Series([None, None])).to_list() == [None, None]
    assert as_text(pl.Series([-0.0])).to_list() == ["0"]


def test_the_name_of_the_column_stays() -> None:
    assert as_text(pl.Series("cell", [1])).name == "cell"
    assert as_text(pl.Series("^.*$", [1.0])).name == "^.*$"


def test_cells_of_several_values_are_refused_as_one_value(subtests: pytest.Subtests) -> None:
    for column in [pl.Series("x", [[1]]), pl.Series("x", [{"a": 1}]), pl.Series("x", [b"a"])]:
        with subtests.test(column=column):
            with pytest.raises(DataError, match=r"column 'x' is of type .*declare it a Bag"):
                as_text(column)
            with pytest.raises(
                DataError, match="a cell must hold one value: column 'x' is of type"
            ):
                coded(column)
            with pytest.raises(DataError, match="a number is needed: column 'x' is of type"):
                as_number(column, "column 'x'")


def test_numbers_of_every_type() -> None:
    assert as_number(
        pl.Series([" 1", "2.5 ", "", "  ", None, "nan", "-1e3", "+5"]), "x"
    ).to_list() == [
        *(1.0, 2.5, None, None, None, None),
        *(-1000.0, 5.0),
    ]
    assert as_number(pl.Series(["1", "20", None], dtype=pl.Categorical), "x").to_list() == [
        1.0,
        20.0,
        None,
    ]
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
    for column in [
        [1.0, float("inf")],
        [1.0, float("-inf")],
        ["1", "inf"],
        ["1", "1e400"],
        [1.0, 1e39],
    ]:
        with (
            subtests.test(column=column),
            pytest.raises(
                DataError, match=r"numbers must be finite .* column 'age' holds .* in row 1 "
            ),
        ):
            as_number(pl.Series(column), "column 'age'")


def test_lists_lose_blanks_and_absent_values() -> None:
    column = pl.Series(["a| b ||c", "", None, "|", "a|a"])
    assert as_list(column, "|").to_list() == [["a", "b", "c"], [], [], [], ["a", "a"]]
    assert as_list(pl.Series([["a", None, ""], [], None, [" b"]]), "|").to_list() == [
        ["a"],
        [],
        [],
        ["b"],
    ]
    assert as_list(pl.Series([[], None]), "|").to_list() == [[], []]
    assert as_list(pl.Series(["1, 2"]), ",").to_list() == [["1", "2"]]
    assert as_list(pl.Series([[1, 2]], dtype=pl.Array(pl.Int64, 2)), "|").to_list() == [["1", "2"]]


def test_a_cell_of_a_list_column_does_not_depend_on_other_cells() -> None:
    alone = as_list(pl.Series([[1.0, float("nan")]]), "|").to_list()
    beside = as_list(pl.Series([[1.0, float("nan")], [2.5]]), "|").to_list()
    assert alone == [["1"]]
    assert beside == [["1"], ["2.5"]]
    with pytest.raises(DataError, match="column 'x' is of type List"):
        as_list(pl.Series("x", [[[1]]]), "|")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8)), st.integers(1, 2**40)
)
def test_hash_equals_a_plain_loop(texts: list[str], buckets: int) -> None:
    result = stable_hash(pl.Series(texts, dtype=pl.String), buckets)
    assert result.tolist() == [fnv1a(t) % buckets for t in texts]


CELLS = (
    st.none() | st.text(max_size=5) | st.booleans() | st.integers(-(2**126), 2**126) | st.floats()
)
ITEMS = st.lists(st.none() | st.text(" a|\t\x1f\u2003\u00a0", max_size=5), max_size=5) | st.lists(
    st.none() | st.floats(), max_size=3
)


@settings(max_examples=50)
@given(
    CELLS, ITEMS | st.none() | st.text(" a|\t\x1f\u2003", max_size=9), st.none() | st.integers(1, 3)
)
def test_a_cell_is_what_its_column_is(cell, several, newest):
    assert cell_text(cell) == as_text(pl.Series([cell]))[0]
    result = as_list(
        pl.Series([several], dtype=pl.List(pl.String) if several == [] else None), "|"
    )[0].to_list()
    assert cell_texts(several, "|", newest=newest) == result[-newest if newest else 0 :]


def test_white_space_is_that_of_polars():
    letters = pl.Series([chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF])
    assert set(WHITE) == set(letters.filter(letters.str.strip_chars() == ""))


COLUMNS = [
    pl.Series(["a", "", None, "b", "a", " a"]),
    pl.Series(["b", None, "a"], dtype=pl.Categorical),
    pl.Series([3, None, -7, 3]),
    pl.Series([2**62, None, -(2**63), 2**63 - 1]),
    pl.Series([-(2**63), -(2**63) + 1]),
    # a lookup table some seven times as long as the column
    pl.Series([*range(-3500, 3500, 14), None, -3500]),
    pl.Series([*range(-4500, 4500, 18), None, -4500]),  # nine times
    pl.Series([-128, 127, None], dtype=pl.Int8),
    pl.Series([2**64 - 1, 2**64 - 2, None], dtype=pl.UInt64),
    pl.Series([0.0, -0.0, 1.0, 2.5, float("nan"), None, 1e300, float("inf")]),
    pl.Series([True, None, False]),
    pl.Series([datetime.date(2026, 1, 2), None]),
    pl.Series(["1.10", "1.1", None]).cast(pl.Decimal(10, 2)),
    pl.Series([None, None]),
    pl.Series([], dtype=pl.Int64),
    pl.Series([], dtype=pl.String),
]


def test_codes_stand_for_the_cells_texts(subtests):
    for column in COLUMNS:
        with subtests.test(column=column):
            cells, reference = coded(column), as_text(column).to_list()
            texts = [*cells.texts.to_list(), None]
            assert [texts[code] for code in cells.codes] == reference
            assert len(set(texts)) == len(texts)
            assert dict(zip(texts, cells.counts().tolist(), strict=False)) == {
                t: reference.count(t) for t in texts[:-1]
            }
            assert cells.look_up(
                np.arange(10, 10 + len(texts) - 1, dtype=np.int32), -1
            ).tolist() == [-1 if text is None else 10 + texts.index(text) for text in reference]


SCHEMA = Schema(
    fields=(
        Categorical("word", min_count=2),
        Categorical("number"),
        Categorical("hashed", column="word", hash_buckets=5),
        Numeric("x"),
        Numeric("bins", column="x", encoding="quantile", bins=3),
        Bag("tags"),
        Sequence("seen", shares="number", max_length=2),
    ),
    label=Label("y"),
)


def dirty(rows: int, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)

    def pick(values: list[object]) -> list[object]:
        return [values[k] for k in rng.integers(0, len(values), rows)]

    return pl.DataFrame(
        {
            "word": pick(["a", "b", "", " b", None, "12", "é"]),
            "number": pick([1, 2, 3, None, 2**40]),
            "x": pick([0.5, -1.0, None, 3.0, 2.0]),
            "tags": pick(["p|q", "", None, "q| r|", "p"]),
            "seen": pick([[1, 2, 3], [], None, [7], [None, 2]]),
        }
    )


@pytest.mark.parametrize("few", [0, 10**9], ids=["threads", "one thread"])
def test_threads_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    train, other = dirty(300, 0), dirty(200, 1)
    reference = Encoder.fit(train, SCHEMA)
    expected = reference.transform(train), reference.transform(other)
    monkeypatch.setattr(machine, "FEW_ROWS", few)
    monkeypatch.setattr(encoder_module, "ROWS_PER_BLOCK", 64)
    encoder = Encoder.fit(train, SCHEMA)
    assert encoder == reference
    for result, rows in zip(
        (encoder.transform(train), encoder.transform(other)), expected, strict=True
    ):
        for name in ("ids", "values", "bag_ids", "bag_offsets"):
            np.testing.assert_array_equal(getattr(result, name), getattr(rows, name), strict=True)
    table, at = expected[1], {f.name: f.offset + 1 for f in reference.layout.fields}
    cells = np.split(table.bag_ids, table.bag_offsets[1:-1])  # tags and seen of each row
    unknown = {
        "word": table.ids[:, 0] == at["word"],
        "number": table.ids[:, 1] == at["number"],
        "tags": np.concatenate(cells[::2]) == at["tags"],
        "seen": np.concatenate(cells[1::2]) == at["seen"],
    }
    assert encoder.unseen_counts(table) == {
        name: (one.sum(), len(one)) for name, one in unknown.items()
    }


def test_of_several_bad_fields_the_first_is_named_by_threads_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "FEW_ROWS", 0)
    schema = Schema(fields=(Categorical("ok"), Numeric("bad"), Numeric("worse")), label=Label("y"))
    frame = pl.DataFrame({"ok": ["a"], "bad": ["x"], "worse": ["y"]})
    with pytest.raises(DataError, match="column 'bad'"):
        Encoder.fit(frame, schema)


def test_keys_that_begin_at_one_place_are_all_found() -> None:
    # The place is the top of key * MULTIPLIER modulo 2**64: small products k share the place 0.
    inverse = pow(int(MULTIPLIER), -1, 2**64)
    keys = np.array([k * inverse % 2**64 for k in range(40)], dtype=np.uint64).view(np.int64)
    fitted = Vocabulary(values=tuple(map(str, keys[:30].tolist())))
    assert category_ids(fitted, pl.Series(keys)) == [
        *range(2, 32),
        *[1] * 10,
    ]


VALUES = (
    "7",
    "-3",
    "007",
    "+5",
    "1.0",
    "x",
    "",
    "9223372036854775807",
    "9223372036854775808",
    "12",
    "0",
    "-0",
)
KINDS = [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_have_the_ids_of_their_texts(kind: type[pl.DataType]) -> None:
    cells = [7, 5, 12, 0, 1, None, 100, 8, 7]
    cells += [] if kind in (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64) else [-3, -5]
    cells += [2**63 - 1, 2**62] if kind in (pl.Int64, pl.UInt64) else []
    cells += [2**63, 2**64 - 1] if kind == pl.UInt64 else []
    column = pl.Series("c", cells, dtype=kind)
    place = {value: row for row, value in enumerate(VALUES, 2)} | {None: 0}
    wanted = [place.get(None if cell is None else str(cell), 1) for cell in cells]
    assert category_ids(Vocabulary(values=VALUES), column) == wanted


def test_many_unfamiliar_integers_are_unknown() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice(2**31, 5000, replace=False)
    cells = rng.choice(np.concatenate([values[:4000], rng.integers(0, 2**31, 4000)]), 20_000)
    place = {int(value): row for row, value in enumerate(values, 2)}
    fitted = Vocabulary(values=tuple(map(str, values)))
    column = pl.Series("c", cells.astype(np.int64))
    assert category_ids(fitted, column) == [place.get(int(cell), 1) for cell in cells]
