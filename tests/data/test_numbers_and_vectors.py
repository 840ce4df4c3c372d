"""Decimal commas, marks between thousands, durations and vectors: from the file to predictions."""

from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.number_format import number_formats, plain_numbers
from fieldwise.data.read.sliced import SlicedTable
from fieldwise.data.read.tables import as_table
from fieldwise.data.read.vectors import MOST_POSITIONS
from fieldwise.errors import DataError, SchemaError
from fieldwise.schema import Categorical, Label, Numeric, Schema


def test_numbers_as_people_write_them(subtests):
    for form, cells, numbers in [
        ("1.234,5", ["1.234,5", "12,25", "7", "-1.234.567", "1234,5"], [1234.5, 12.25, 7, -1234567, 1234.5]),
        ("1,234.5", ["1,234.5", "12.25", "+7", "1,234,567"], [1234.5, 12.25, 7, 1234567]),
        ("1 234,5", ["1 234,5", "1\u00a0234", "1\u202f234,5", "0,5"], [1234.5, 1234, 1234.5, 0.5]),
        ("1'234.5", ["1'234.5", "1\u2019234", "0.5"], [1234.5, 1234, 0.5]),
    ]:
        with subtests.test(form=form, cells=cells, numbers=numbers):
            found = as_number(pl.Series([*cells, None, " "]), "column 'x'", form=form).to_list()
            assert found == [*numbers, None, None]
            assert form in number_formats(pl.Series(cells))


def test_what_does_not_fit_the_format_is_an_error(subtests):
    for form, cell in [
        ("1.234,5", "1.5"),
        ("1.234,5", "12.34,5"),
        ("1,234.5", "1,23"),
        ("1,234.5", "x"),
        ("1 234,5", "1 23"),
    ]:
        with subtests.test(form=form, cell=cell):
            assert plain_numbers(pl.Series([cell]), form).item() == "?"
            with pytest.raises(
                DataError, match=rf"holds the text '{cell}' in row 1 .*change the field's number_format"
            ):
                as_number(pl.Series(["7", cell]), "column 'x'", form=form)


def test_plain_numbers_and_words_have_no_format() -> None:
    for cells in (["1.5", "2"], ["x", "1,5"], [None], ["1,5", "1.5"]):
        assert number_formats(pl.Series(cells, dtype=pl.String)) == []


def test_text_without_its_format_is_told_the_format() -> None:
    with pytest.raises(DataError, match=r"number_format = '1\.234,5' and in number_format = '1 234,5': set it"):
        as_number(pl.Series(["1,5", "2,25"]), "column 'x'")
    with pytest.raises(SchemaError, match="number_format must be one of"):
        Numeric("x", number_format=",")
    with pytest.raises(SchemaError, match="number_format must be one of"):
        Label("x", number_format=",")


def with_label(n: int = 200, **columns: object) -> pl.DataFrame:
    return pl.DataFrame({"shop": [k % 5 for k in range(n)], **columns, "label": [k % 2 for k in range(n)]})


def test_infer_finds_the_format_or_asks() -> None:
    guess = infer_schema(with_label(price=[f"{k},{k % 9}5" for k in range(200)]))
    assert guess.schema.fields[1] == Numeric(
        "price",
        role="item",
        encoding="quantile",
        transform="none",
        bins=8,
        point_masses=True,
        number_format="1.234,5",
    )
    assert Schema.from_toml(guess.to_toml()) == guess.schema
    asked = infer_schema(with_label(price=[f"{k},{k + 100}" for k in range(1, 201)]))
    assert [f.name for f in asked.schema.fields] == ["shop"]
    assert "'1,101' is a number with either a thousands separator or a decimal comma" in asked.doubts["price"]
    assert "# CHECK: column 'price' is omitted" in asked.to_toml()


def test_a_label_with_decimal_commas() -> None:
    frame = pl.DataFrame({"x": [1, 2, 1, 2], "rating": ["4,5", "3,0", "2,5", "5,0"]})
    label = infer_schema(frame).schema.label
    assert label == Label("rating", positive_above=3, number_format="1.234,5")
    rows = read_label(frame, label)
    assert (rows.main.tolist(), rows.dropped) == ([1, 0, 0, 1], 0)


def test_durations_are_seconds() -> None:
    column = pl.Series("d", [timedelta(seconds=90), timedelta(milliseconds=500), None])
    assert as_number(column, "d").to_list() == [90, 0.5, None]
    assert as_text(column).to_list() == ["90", "0.5", None]
    guess = infer_schema(with_label(stay=[timedelta(seconds=k) for k in range(200)]))
    assert (guess.schema.fields[1].name, guess.schema.fields[1].kind) == ("stay", "numeric")


def vectors(n: int = 200, size: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((n, size)).round(3)


@pytest.mark.parametrize("kind", [pl.List(pl.Float64), pl.List(pl.Float32), pl.Array(pl.Float64, 3)])
def test_a_vector_becomes_a_column_a_position(kind, tmp_path: Path) -> None:
    frame = with_label(embedding=pl.Series(vectors().tolist(), dtype=kind))
    table = as_table(frame)
    assert table.columns == ["shop", "embedding", "label", "embedding[0]", "embedding[1]", "embedding[2]"]
    np.testing.assert_allclose(table.select(table.columns[3:]).to_numpy(), vectors(), rtol=1e-6)
    assert isinstance(table.schema["embedding"], pl.List)
    frame.write_parquet(tmp_path / "t.parquet")
    sliced = SlicedTable(tmp_path / "t.parquet")
    assert sliced.empty.columns == table.columns
    parts = pl.concat(list(sliced.slices(["embedding[2]", "shop"], 64)))
    assert parts.equals(table.select("embedding[2]", "shop"))
    schema = infer_schema(frame).schema
    assert [(f.name, f.kind) for f in schema.fields][1:] == [(f"embedding[{k}]", "numeric") for k in range(3)]


def test_a_slice_whose_vectors_differ_in_length_is_an_error(tmp_path: Path) -> None:
    cells = [[0.5, 1.0]] * 150 + [[0.5]]
    pl.DataFrame({"v": cells}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError):
        list(SlicedTable(tmp_path / "t.parquet").slices(["v[1]"], 64))


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([[0.5] * (MOST_POSITIONS + 1)] * 200, "a vector of 65 numbers; at most 64 can become fields"),
        ([[0.5] * (1 + k % 3) for k in range(200)], "neither categories nor of equal length"),
        ([f"[{k}, {k + 1}]" for k in range(200)], "lists written as text"),
    ],
)
def test_lists_that_are_no_field_are_said(cells, why) -> None:
    guess = infer_schema(with_label(v=cells))
    assert [f.name for f in guess.schema.fields] == ["shop"]
    assert why in guess.notes["v"]


def test_fixed_size_lists_of_whole_numbers_are_bags() -> None:
    frame = with_label(tags=pl.Series([[k % 4, k % 3] for k in range(200)], dtype=pl.Array(pl.Int64, 2)))
    assert infer_schema(frame).schema.fields[1].kind == "bag"


def test_the_parts_of_a_vector_are_of_one_side() -> None:
    rng = np.random.default_rng(0)
    item = rng.integers(0, 20, 400)
    frame = pl.DataFrame({"item_id": item, "v": vectors(20)[item].tolist(), "label": rng.integers(0, 2, 400)})
    assert [f.role for f in infer_schema(frame).schema.fields] == ["item"] * 4


def test_a_categorical_of_durations_can_be_encoded() -> None:
    from fieldwise.data.encode.encoder import Encoder

    schema = Schema(fields=(Categorical("d"),), label=Label("y"))
    frame = pl.DataFrame({"d": [timedelta(minutes=1), timedelta(minutes=2)]})
    assert Encoder.fit(frame, schema).transform(frame).ids.ravel().tolist() == [3, 2]  # as texts, 120 comes first
