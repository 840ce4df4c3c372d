"""Reading tables: files and frames, numbers with separators, vectors, libFM."""

import csv
import gzip
import io
import math
import re
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fieldwise import (
    Categorical,
    DataError,
    Encoder,
    Label,
    MissingExtraError,
    Numeric,
    Schema,
    SchemaError,
    as_table,
    infer_schema,
)
from fieldwise.data.encode.columns import as_number, as_text, number_formats, plain_numbers
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.formats.libfm import read_libfm
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.data.read.table_writer import write_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import ByteSource
from fieldwise.errors import Row
from fieldwise.schema.fields import LONGEST_VECTOR
from fieldwise.storage.scratch import NO_LIMIT

FRAME = pl.DataFrame(
    {
        "id": [1, 2, None],
        "x": [0.5, None, -1e10],
        "zip": ["01234", "98765", None],
        "text": ['a,"b"', "c\nd", "é\t;"],
    }
)


def test_what_is_written_is_read_back(subtests, tmp_path):
    for name in [
        "t.csv",
        "t.tsv",
        "t.tab",
        "t.csv.gz",
        "t.TSV",
        "t.parquet",
        "t.arrow",
        "t.feather",
        "t.ipc",
    ]:
        with subtests.test(name=name):
            write_table(FRAME, tmp_path / name)
            assert_frame_equal(as_table(tmp_path / name), FRAME)
            assert_frame_equal(as_table(str(tmp_path / name)), FRAME)
            assert [p.name for p in tmp_path.iterdir()] == [name]
            (tmp_path / name).unlink()


def test_frames_of_other_libraries() -> None:
    pandas = pytest.importorskip("pandas")
    expected = pl.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, None]})
    assert_frame_equal(as_table(expected), expected)
    assert_frame_equal(as_table(expected.lazy()), expected)
    assert_frame_equal(as_table(expected.to_arrow()), expected)
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, math.nan]}, index=[7, 9])
    assert_frame_equal(as_table(frame), expected)
    assert as_table(pandas.DataFrame([[1, 2]])).columns == ["0", "1"]


def test_frames_with_repeated_columns_or_mixed_values() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(DataError, match="pandas frame repeats 'a'"):
        as_table(pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(DataError, match="column 'b' does not"):
        as_table(pandas.DataFrame({"a": [1, 2], "b": [1, "x"]}, dtype=object))
    with pytest.raises(DataError, match="pyarrow table repeats 'a'"):
        as_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(DataError, match=r"found builtins\.int"):
        as_table(3)


def test_the_whole_column_decides_its_type(subtests, tmp_path):
    for cells, dtype, values in [
        ("1 2 -3", pl.Int64, [1, 2, -3]),
        ("1 2.5 nan", pl.Float64, [1.0, 2.5, math.nan]),
        ("01234 98765", pl.String, ["01234", "98765"]),
        ("-007 1", pl.String, ["-007", "1"]),
        ("0 0.5", pl.Float64, [0.0, 0.5]),
        ("00.5 1", pl.String, ["00.5", "1"]),
        ("10000169349117863715 1", pl.String, ["10000169349117863715", "1"]),
        ("true false", pl.Boolean, [True, False]),
        ("-0 +5", pl.Int64, [0, 5]),
        ("12345678901234567 0.5", pl.String, ["12345678901234567", "0.5"]),
        ("1 true", pl.String, ["1", "true"]),
        ("999 1.604 12.500", pl.String, ["999", "1.604", "12.500"]),
        ("1604 1.604", pl.Float64, [1604.0, 1.604]),
        ("0.604 1.604", pl.Float64, [0.604, 1.604]),
        ("1.60 1.604", pl.Float64, [1.6, 1.604]),
    ]:
        with subtests.test(cells=cells, dtype=dtype, values=values):
            path = tmp_path / "t.csv"
            path.write_text("a,b\n" + "".join(f"{cell},\n" for cell in cells.split()) + ",\n")
            column = as_table(path).get_column("a")
            assert column.dtype == dtype
            assert pl.Series([*values, None], dtype=dtype).equals(column.alias(""), null_equal=True)


def test_a_value_is_what_the_schema_says_whatever_the_file(tmp_path: Path) -> None:
    cells = ["4.10", "4.1", "1E2", "100", "+7", "7", "007", "-0", "0", "1.0", "2026-01-01", None]
    text = pl.DataFrame(
        {
            "code": cells,
            "user_id": cells,
            "price": ["1.604", "999", "12.512"] * 4,
            "y": ["0", "1"] * 6,
        }
    )
    text.write_csv(tmp_path / "t.csv")
    text.write_csv(tmp_path / "t.tsv", separator="\t")
    text.write_parquet(tmp_path / "t.parquet")
    price = Numeric("price", number_format="1.234,5", transform="none")
    schema = Schema(fields=(Categorical("code"), price), label=Label("y"))
    encoder = Encoder.fit(tmp_path / "t.parquet", schema)
    expected = encoder.transform(text)
    assert encoder.fitted[0].values == tuple(sorted(cells[:-1]))
    assert expected.values.ravel().tolist() == [1604, 999, 12512] * 4
    for name in ("t.csv", "t.tsv", "t.parquet"):
        fitted = Encoder.fit(tmp_path / name, schema)
        assert fitted == encoder, name
        table = as_table(tmp_path / name, text_columns=schema.text_columns)
        result = fitted.transform(table)
        np.testing.assert_array_equal(result.ids, expected.ids, err_msg=name)
        np.testing.assert_array_equal(result.values, expected.values, err_msg=name)
        assert_frame_equal(
            as_table(tmp_path / name, text_columns=schema.text_columns).select("user_id"),
            text.select("user_id"),
        )


def test_whole_numbers_and_booleans_of_text_columns_are_as_fast_as_before(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,flag\n7,true\n-12,false\n,\n")
    assert as_table(tmp_path / "t.csv", text_columns=["id", "flag"]).dtypes == [
        pl.Int64,
        pl.Boolean,
    ]


def test_faults_of_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        as_table(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="does not exist"):
        as_table(tmp_path / "absent.parquet")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder .* holds no file"):
        as_table(tmp_path / "folder.csv")
    for name in ("t.xlsx", "t.parquet.gz", "t"):
        with pytest.raises(DataError, match="must be one of csv"):
            as_table(tmp_path / name)
        with pytest.raises(DataError, match="written as one of csv"):
            write_table(FRAME, tmp_path / name)
    for name in ("t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes(b"ARROW1 not at all")
        with pytest.raises(DataError, match="is not a whole"):
            as_table(tmp_path / name)
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match="is empty"):
            as_table(tmp_path / name)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n")[:-9])
    with pytest.raises(DataError, match="not a whole gzip"):
        as_table(tmp_path / "t.csv.gz")
    with pytest.raises(DataError, match="column 'l' holds List"):
        write_table(pl.DataFrame({"l": [[1]]}), tmp_path / "l.csv")


def test_the_separator_of_a_csv_is_detected(subtests, tmp_path: Path) -> None:
    for separator, content in [
        (";", 'Preis;Name\n1,50;a\n2,75;"b, c"\n'),  # decimal commas
        (",", 'price,name\n1.5,"a;b"\n2,"c;d"\n'),  # semicolons within cells
        (",", "price,tags\n1.5,a;b\n2,c;d\n"),
        (",", "id,genres|tags\n1,a|b|c\n2,d\n"),
        ("\t", 'name\ttext\nx\t"one\n\ttwo"\ny\tz\n'),  # a tab within a quoted cell of two lines
        ("|", "a|b\n1|2\n\n\n"),
        (";", "\n\ufeffa;b\n1;2\n"[1:]),
        (",", "text\none; two\nthree; four\n"),  # one column
        (",", "text\n" + "x; " * 60_000 + "\n"),
    ]:
        with subtests.test(content=content[:20]):
            path = tmp_path / "t.csv"
            path.write_text(content, encoding="utf-8")
            result = as_table(path)
            assert_frame_equal(result, as_table(path, separator=separator))
            assert result.height == content.rstrip().count("\n") - content.count("\n\t")
            assert_frame_equal(SlicedTable(path).empty, result.clear())


def test_without_a_header_the_columns_decide_the_separator(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2;3,4\n5,6;7,8\n")
    assert as_table(tmp_path / "t.csv", columns=["a", "b"])["b"].to_list() == ["3,4", "7,8"]
    assert as_table(tmp_path / "t.csv", columns=["a", "b", "c"])["b"].to_list() == ["2;3", "6;7"]


def test_encodings_separators_and_byte_order_marks(tmp_path: Path) -> None:
    expected = pl.DataFrame({"ä": ["é"], "b": [2]})
    path = tmp_path / "t.txt"
    for encoding in ("iso-8859-1", "utf-16", "cp1252"):
        path.write_bytes("ä,b\né,2\n".encode(encoding))
        assert_frame_equal(as_table(path, encoding=encoding), expected)
    path.write_bytes("ä,b\né,2\n".encode("utf-8-sig"))
    assert_frame_equal(as_table(path), expected)
    for separator in "\t;,|":
        path.write_text(f"ä{separator}b\né{separator}2\n", encoding="utf-8")
        assert_frame_equal(as_table(path), expected)
    with pytest.raises(DataError, match="separator must be one ASCII character, found '::'"):
        as_table(path, separator="::")
    with pytest.raises(DataError, match=r"'latin-9000' .* is unknown"):
        as_table(path, encoding="latin-9000")
    path.write_text("ä,b\né,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="not in encoding ascii: line 1"):
        as_table(path, encoding="ascii")


def test_blank_lines_at_the_end_and_a_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\r\n1,2\r\n\r\n\r\n")
    assert as_table(path).rows() == [(1, 2)]
    path.write_bytes(b"a,b\n")
    assert as_table(path).shape == (0, 2)
    path.write_bytes(b"a\n1\n\n2\n")
    assert as_table(path).get_column("a").to_list() == [1, None, 2]


def test_a_header_that_begins_as_packed_bytes_do(subtests, tmp_path):
    path = tmp_path / "t.csv"
    for mark in ["^2", "\x01", "\u0686"]:  # with x in front, in UTF-8: zlib's first two bytes
        with subtests.test(mark=mark):
            path.write_text(f"x{mark},y\n1,0\n2,1\n", encoding="utf-8")
            assert_frame_equal(as_table(path), pl.DataFrame({f"x{mark}": [1, 2], "y": [0, 1]}))
            path.write_text(f"n,y\nx{mark},0\nx{mark}2,1\n", encoding="utf-8")
            chunks = table_files_of([path], TextFormat()).chunks(ChunkLimits(chunk_bytes=4))
            assert pl.concat(chunk for _, chunk in chunks).get_column("n").to_list() == [
                f"x{mark}",
                f"x{mark}2",
            ]
    path.write_bytes(b"n,y\n1,2\n\xef\xbb\xbf1,3\n")
    chunks = table_files_of([path], TextFormat()).chunks(ChunkLimits(chunk_bytes=4))
    assert pl.concat(chunk for _, chunk in chunks).get_column("n").to_list() == ["1", "\ufeff1"]


def test_a_first_line_that_names_the_separator(subtests, tmp_path):
    expected = pl.DataFrame({"user_id": ["u1", "u2"], "price": ["1,5", "2,5"]})
    path = tmp_path / "t.csv"
    for first, mark, encoding in [
        ("sep=;\n", ";", "utf-8"),
        ("\ufeffsep=;\r\n", ";", "utf-8"),
        ('"sep=;"\n', ";", "utf-8"),
        ("SEP=#\n", "#", "utf-8"),
        ("sep=\t\n", "\t", "utf-8"),
        ("sep=;\n", ";", "utf-16"),
    ]:
        with subtests.test(first=first, encoding=encoding):
            rows = [f"{user}{mark}{price}" for user, price in expected.rows()]
            text = first + "\n".join([f"user_id{mark}price", *rows]) + "\n"
            path.write_text(text, encoding=encoding, newline="")
            assert_frame_equal(as_table(path, encoding=encoding), expected)
            assert_frame_equal(as_table(path, encoding=encoding, separator=mark), expected)
            assert_frame_equal(
                SlicedTable(path, TextFormat(encoding=encoding)).empty, expected.clear()
            )
            chunks = table_files_of([path], TextFormat(encoding=encoding)).chunks(
                ChunkLimits(chunk_bytes=3)
            )
            assert_frame_equal(pl.concat(chunk for _, chunk in chunks), expected)
            path.write_text(first + "\n".join(rows) + "\n", encoding=encoding, newline="")
            assert_frame_equal(
                as_table(path, encoding=encoding, columns=expected.columns), expected
            )
    path.write_text("sep=;\na;b\n1;2\n1;2;3\n")
    with pytest.raises(DataError, match="line 4 has 3"):
        as_table(path)
    path.write_text("sep=;\na;b\n1;2\nx;0\n")
    with pytest.raises(DataError, match=f"line 4 of {re.escape(str(path))}"), naming_lines(path):
        raise DataError(Row(1))
    path.write_text("sep=x\n1\n")  # a letter is no delimiter
    assert as_table(path).columns == ["sep=x"]


def test_the_work_on_text_does_not_grow_with_the_square_of_its_columns(tmp_path):
    path, calls = tmp_path / "t.csv", {}
    for width in [20, 200]:
        cells = ["7", "0.5", "u1", "012", "true"]
        header = ",".join(f"c{k}" for k in range(width))
        path.write_text(f"{header}\n{','.join(cells[k % 5] for k in range(width))}\n")
        frame_schema = pl.DataFrame.schema.fget
        with (
            mock.patch.object(
                pl.DataFrame, "schema", property(mock.Mock(wraps=frame_schema))
            ) as schema,
            mock.patch.object(
                pl.LazyFrame, "collect", autospec=True, side_effect=pl.LazyFrame.collect
            ) as collect,
        ):
            assert set(as_table(path).dtypes) == {pl.Int64, pl.Float64, pl.String, pl.Boolean}
        calls[width] = schema.fget.call_count, collect.call_count
    assert calls[20] == calls[200], "each asks polars for all columns"


# "\r" is left out: the csv module that scans for a bad line takes it for a line end.
CELL = st.one_of(
    st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)
)
NUMBER = st.one_of(st.none(), st.integers(-(2**62), 2**62))
TABLE = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.tuples(NUMBER, *[CELL] * (width - 1)), min_size=1, max_size=8)
)


def _csv(folder: Path, rows: list[tuple[object, ...]]) -> tuple[Path, pl.DataFrame]:
    names = ["n", *(f"c{k}" for k in range(1, len(rows[0])))]
    frame = pl.DataFrame(
        rows, schema={name: pl.Int64 if name == "n" else pl.String for name in names}, orient="row"
    )
    # A letter in front keeps text from looking like a number.
    frame = frame.with_columns((pl.lit("t") + pl.col(name)).alias(name) for name in names[1:])
    path = folder / "t.csv"
    write_table(frame, path)
    return path, frame


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=TABLE)
def test_any_table_survives_csv(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path, frame = _csv(tmp_path, rows)
    empty = frame.get_column("n").null_count() == frame.height
    assert_frame_equal(
        as_table(path), frame.with_columns(pl.col("n").cast(pl.String if empty else pl.Int64))
    )


def test_pandas_frames_without_pyarrow_name_the_extra(monkeypatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        MissingExtraError, match=r"^pandas frames .* pyarrow, which is not installed.*\[pandas\]'$"
    ):
        as_table(pandas.DataFrame({"a": ["x", "y"]}))


def test_a_header_that_looks_like_a_row_is_warned_of(subtests, tmp_path):
    for text, looks in [
        ("1,193,5\n2,7,4\n", True),
        ("u1,i3,0.5\nu2,i4,1\nu1,i9,2\n", True),
        ("2019,2020\n1,2\n", True),
        ("user,2019,2020\nu,1,2\n", False),
        ("0,1,2\n5,6,7\n", False),
        ("1,2\n5,6\n", False),
        ("a,b\nb,a\n", False),
    ]:
        with subtests.test(text=text, looks=looks):
            path = tmp_path / "t.csv"
            path.write_text(text)
            with warnings.catch_warnings(record=True) as result:
                warnings.simplefilter("always")
                frame = as_table(path)
            assert bool(result) == looks
            assert frame.height == text.count("\n") - 1
            names = [f"c{k}" for k in range(frame.width)]
            assert as_table(path, columns=names).columns == names
            assert as_table(path, columns=names).height == text.count("\n")


def test_dicts_of_lists_and_lists_of_dicts_are_tables(subtests):
    expected = pl.DataFrame({"user": ["a", "b"], "tags": [["x"], ["y", "z"]], "price": [1.5, None]})
    assert_frame_equal(as_table(expected.to_dict(as_series=False)), expected)
    rows = [{"user": "a", "tags": ["x"], "price": 1.5}, {"user": "b", "tags": ["y", "z"]}]
    assert_frame_equal(as_table(rows), expected)
    for data, message in [
        (
            {"user": "ab", "item": [1, 2]},
            r"needs a list of values for each column, found 'ab' for 'user': write a row as \[\{",
        ),
        ({"user": ["a"], "item": [1, 2]}, "one length: 'user' has 1 values, 'item' 2"),
        ({"user": ["a", 1]}, "one kind: 'user' does not"),
        ([], "a dict of lists or a list of dicts, found builtins.list"),
        ([{"user": 1}, 3], "found builtins.list"),
    ]:
        with subtests.test(data=data), pytest.raises(DataError, match=message):
            as_table(data)


def test_numbers_as_people_write_them(subtests):
    for form, cells, numbers in [
        (
            "1.234,5",
            ["1.234,5", "12,25", "7", "-1.234.567", "1234,5"],
            [1234.5, 12.25, 7, -1234567, 1234.5],
        ),
        ("1,234.5", ["1,234.5", "12.25", "+7", "1,234,567"], [1234.5, 12.25, 7, 1234567]),
        ("1 234,5", ["1 234,5", "1\u00a0234", "1\u202f234,5", "0,5"], [1234.5, 1234, 1234.5, 0.5]),
        ("1'234.5", ["1'234.5", "1\u2019234", "0.5"], [1234.5, 1234, 0.5]),
    ]:
        with subtests.test(form=form, cells=cells, numbers=numbers):
            result = as_number(pl.Series([*cells, None, " "]), "column 'x'", form=form).to_list()
            assert result == [*numbers, None, None]
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
                DataError,
                match=rf"holds the text '{cell}' in row 1 .*change the field's number_format",
            ):
                as_number(pl.Series(["7", cell]), "column 'x'", form=form)


def test_text_without_its_format_is_told_the_format() -> None:
    for cells in (["1.5", "2"], ["x", "1,5"], [None], ["1,5", "1.5"]):
        assert number_formats(pl.Series(cells, dtype=pl.String)) == []
    with pytest.raises(
        DataError, match=r"number_format = '1\.234,5' and in number_format = '1 234,5': set it"
    ):
        as_number(pl.Series(["1,5", "2,25"]), "column 'x'")
    with pytest.raises(SchemaError, match="number_format must be one of"):
        Numeric("x", number_format=",")
    with pytest.raises(SchemaError, match="number_format must be one of"):
        Label("x", number_format=",")


def with_label(n: int = 200, **columns: object) -> pl.DataFrame:
    return pl.DataFrame(
        {"shop": [k % 5 for k in range(n)], **columns, "label": [k % 2 for k in range(n)]}
    )


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
    assert (
        "'1,101' is a number with either a thousands separator or a decimal comma"
        in asked.doubts["price"]
    )
    assert "# CHECK: column 'price' is omitted" in asked.to_toml()


def test_a_label_with_decimal_commas() -> None:
    frame = pl.DataFrame({"x": [1, 2, 1, 2], "rating": ["4,5", "3,0", "2,5", "5,0"]})
    label = infer_schema(frame).schema.label
    assert label == Label("rating", positive_above=3, number_format="1.234,5")
    rows = read_label(frame, label, budget=NO_LIMIT)
    assert (rows.main.tolist(), rows.dropped) == ([1, 0, 0, 1], 0)


def test_durations_are_seconds() -> None:
    column = pl.Series("d", [timedelta(seconds=90), timedelta(milliseconds=500), None])
    assert as_number(column, "d").to_list() == [90, 0.5, None]
    assert as_text(column).to_list() == ["90", "0.5", None]
    guess = infer_schema(with_label(stay=[timedelta(seconds=k) for k in range(200)]))
    assert (guess.schema.fields[1].name, guess.schema.fields[1].kind) == ("stay", "numeric")


def vectors(n: int = 200, size: int = 3) -> np.ndarray:
    return np.random.default_rng(0).random((n, size)).round(3)


@pytest.mark.parametrize(
    "kind", [pl.List(pl.Float64), pl.List(pl.Float32), pl.Array(pl.Float64, 3)]
)
def test_a_list_of_floats_is_a_vector(kind, tmp_path: Path) -> None:
    frame = with_label(embedding=pl.Series(vectors().tolist(), dtype=kind))
    table = as_table(frame)
    assert table.columns == ["shop", "embedding", "label"]
    assert isinstance(table.schema["embedding"], pl.List)
    frame.write_parquet(tmp_path / "t.parquet")
    sliced = SlicedTable(tmp_path / "t.parquet")
    assert sliced.empty.columns == table.columns
    parts = pl.concat(list(sliced.slices(["embedding", "shop"], 64)))
    assert parts.equals(table.select("embedding", "shop"))
    guess = infer_schema(frame)
    assert [(f.name, f.kind) for f in guess.schema.fields][1:] == [("embedding", "vector")]
    assert "vectors of 3 numbers" in guess.notes["embedding"]


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (
            [[0.5] * (LONGEST_VECTOR + 1)] * 200,
            "no vectors of one length up to 4,096",
        ),
        ([[0.5] * (1 + k % 3) for k in range(200)], "no vectors of one length"),
        ([f"[{k}, {k + 1}]" for k in range(200)], "lists written as text"),
    ],
)
def test_lists_that_are_no_field_are_said(cells, why) -> None:
    guess = infer_schema(with_label(v=cells))
    assert [f.name for f in guess.schema.fields] == ["shop"]
    assert why in guess.notes["v"]


def test_fixed_size_lists_of_whole_numbers_are_bags() -> None:
    frame = with_label(
        tags=pl.Series([[k % 4, k % 3] for k in range(200)], dtype=pl.Array(pl.Int64, 2))
    )
    assert infer_schema(frame).schema.fields[1].kind == "bag"


def test_the_vectors_of_items_are_of_their_side() -> None:
    rng = np.random.default_rng(0)
    item = rng.integers(0, 20, 400)
    frame = pl.DataFrame(
        {"item_id": item, "v": vectors(20)[item].tolist(), "label": rng.integers(0, 2, 400)}
    )
    assert [f.role for f in infer_schema(frame).schema.fields] == ["item"] * 2


LINES = ["1 0:1 12:0.5", "-1 3:1", "0.25", "+2e1  7:-1.5e-3 8:.5 "]


def test_lines_become_rows(subtests, tmp_path):
    rows = []  # the plain reference, a row at a time
    for line in LINES:
        label, *pairs = line.split()
        split = [pair.split(":") for pair in pairs]
        rows.append((float(label), [int(i) for i, _ in split], [float(v) for _, v in split]))
    for last, packed, end in [
        (True, False, "\n"),
        (False, False, "\r\n"),
        (True, True, "\r\n"),
        (False, True, "\n"),
    ]:
        with subtests.test(last=last, packed=packed, end=end):
            content = (end.join(LINES) + (end if last else "")).encode()
            path = tmp_path / ("t.libfm.gz" if packed else "t.libfm")
            path.write_bytes(gzip.compress(content) if packed else content)
            frame = read_libfm(ByteSource(path=path))
            assert frame.schema == {
                "label": pl.Float64,
                "ids": pl.List(pl.Int64),
                "values": pl.List(pl.Float64),
            }
            assert frame.rows() == rows
            assert as_table(path).equals(frame)


def lines(rows: list[tuple[int, list[tuple[int, float]]]]) -> str:
    return "".join(f"{y} {' '.join(f'{i}:{v:g}' for i, v in pairs)}\n" for y, pairs in rows)


def test_one_id_a_row_of_each_range_is_a_column(subtests, tmp_path) -> None:
    rng = np.random.default_rng(0)
    users, items, hours = (
        rng.integers(0, 40, 90),
        rng.integers(40, 60, 90),
        rng.integers(60, 63, 90),
    )
    prices = rng.random(90).round(3)
    triples = list(zip(users, items, hours, strict=True))
    fields = {"f1_id": users, "f2_id": items, "f3_id": hours}
    numbers = [(1, [(7, p), (i, 1.0)]) for p, i in zip(prices, items, strict=True)]
    for name, rows, expected in [
        ("fields", [(1, [(int(i), 1.0) for i in ids]) for ids in triples], fields),
        ("descending", [(1, [(int(i), 1.0) for i in ids[::-1]]) for ids in triples],
         {"f1_id": hours, "f2_id": items, "f3_id": users}),
        ("with a number", numbers, {"f1_id": [7] * 90, "f2_id": items, "f1_value": prices, "f2_value": [1.0] * 90}),
        ("in no order", [(1, [(int(i), 1.0) for i in rng.permutation(ids)]) for ids in triples], None),
        ("of two lengths", [(1, [(int(i), 1.0) for i in ids[: 2 + (k < 80)]]) for k, ids in enumerate(triples)], None),
    ]:  # fmt: skip
        for suffix in ("libfm", "libsvm", "svm"):
            with subtests.test(name=name, suffix=suffix):
                path = tmp_path / f"t.{suffix}"
                path.write_text(lines(rows))
                result = as_table(path)
                if expected is None:
                    assert result.columns == ["label", "ids", "values"]
                else:
                    assert_frame_equal(result, pl.DataFrame({"label": [1.0] * 90, **expected}))
                chunks = [
                    frame
                    for _, frame in table_files_of([path], TextFormat()).chunks(
                        ChunkLimits(chunk_bytes=100)
                    )
                ]
                assert len(chunks) > 5
                assert_frame_equal(pl.concat(chunks), result)


def test_a_malformed_line_is_named(subtests, tmp_path):
    for bad, message in [
        ("1 2", "go on with id:value: {} line 2 holds '2'"),
        ("1 2:1:1", "line 2 holds '2:1:1'"),
        ("1 -2:1", "line 2 holds '-2:1'"),
        ("1 a:1", "line 2 holds 'a:1'"),
        ("1 2:x", "line 2 holds '2:x'"),
        ("x 2:1", "begin with a number: {} line 2 holds 'x'"),
        (" 1 2:1", "begin with a number: {} line 2 holds ''"),
        ("1\t2:1", "line 2 holds"),
        ("", "line 2 is blank"),
        ("1 99999999999999999999:1", "fit in 64 bits: {} line 2"),
    ]:
        with subtests.test(bad=bad, message=message):
            path = tmp_path / "t.libfm"
            path.write_text(f"1 0:1\n{bad}\n1 1:1\n")
            with pytest.raises(DataError, match=re.escape(message.format(path))):
                read_libfm(ByteSource(path=path))


def test_empty_and_wrongly_encoded_files(tmp_path: Path) -> None:
    path = tmp_path / "t.libfm"
    for content in (b"", b"\n\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is empty"):
            read_libfm(ByteSource(path=path))
    path.write_bytes(b"1 0:1\n1 \xe9:1\n")
    with pytest.raises(DataError, match="line 2 holds the byte 0xe9"):
        read_libfm(ByteSource(path=path))


def test_intervals_and_periods_of_pandas_are_texts():
    pandas = pytest.importorskip("pandas")
    ages = pandas.cut(pandas.Series([5, 15, None, 25]), [0, 10, 20, 30])
    days = pandas.period_range("2026-01-30", periods=4, freq="D").to_series(index=range(4))
    days[1] = pandas.NaT
    frame = as_table(
        pandas.DataFrame({"age": ages, "interval": pandas.array(ages), "day": days, "n": range(4)})
    )
    assert frame["age"].to_list() == ["(0, 10]", "(10, 20]", None, "(20, 30]"]
    assert frame["interval"].to_list() == frame["age"].to_list()
    assert frame["day"].to_list() == ["2026-01-30", None, "2026-02-01", "2026-02-02"]
    assert as_text(frame["age"]).null_count() == 1


_SPACED_CELLS = st.text(alphabet='ab ,"\n', max_size=5)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(_SPACED_CELLS, _SPACED_CELLS, _SPACED_CELLS), min_size=1, max_size=5),
    spaces=st.integers(1, 3),
    names=st.sampled_from(["n1, n2, n3", "n1,n2,n3", 'n1,  "n 2", n3']),
    chunk=st.sampled_from([1, 20, 1 << 20]),
)
def test_spaces_after_delimiters_are_read_as_by_python(
    tmp_path: Path, rows, spaces, names, chunk
) -> None:
    def cell(text: str) -> str:
        quoted = any(mark in text for mark in ',"\n') or text != text.strip() or not text
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [names, *((("," + " " * spaces).join(map(cell, row))) for row in rows)]
    content = "\n".join(lines) + "\n"
    (tmp_path / "x.csv").write_text(content, "utf-8")
    header, *expected = csv.reader(io.StringIO(content), skipinitialspace=True)
    source = table_files_of([tmp_path / "x.csv"], TextFormat(separator=","))
    frame = pl.concat(part for _, part in source.chunks(ChunkLimits(chunk_bytes=chunk)))
    assert frame.columns == header
    assert [list(row) for row in frame.rows()] == expected


def test_a_space_between_byte_order_mark_and_name_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\ufeff user, item\n u1, i2\n u2, i3\n", "utf-8")
    assert as_table(tmp_path / "t.csv").to_dict(as_series=False) == {
        "user": ["u1", "u2"],
        "item": ["i2", "i3"],
    }


def test_spaces_are_left_out_only_if_all_rows_have_them(subtests, tmp_path: Path) -> None:
    for text, expected in [
        (
            "user, item, n\nu1, i2, 3\nu2, , 4\n",
            {"user": ["u1", "u2"], "item": ["i2", None], "n": [3, 4]},
        ),
        ("user;item;n\nu1; i2 ; 3\n", {"user": ["u1"], "item": ["i2 "], "n": [3]}),
        ("user,item,n\nu1, i2,3\n", {"user": ["u1"], "item": [" i2"], "n": [3]}),
        (
            "user,item,n\nu1, i2, 3\nu2,i2, 3\n",
            {"user": ["u1", "u2"], "item": [" i2", "i2"], "n": [" 3", " 3"]},
        ),
        ('user, n\n"a, b", 3\n', {"user": ["a, b"], "n": [3]}),
        ('user,n\n"a, b",3\n', {"user": ["a, b"], "n": [3]}),
        ('user,n\n"a,b", "  x"\n', {"user": ["a,b"], "n": ["  x"]}),
    ]:
        with subtests.test(text=text):
            (tmp_path / "x.csv").write_text(text)
            assert as_table(tmp_path / "x.csv").to_dict(as_series=False) == expected
    (tmp_path / "x.csv").write_text("user, item\nu1, i1\nu2, i2, i3\n")
    with pytest.raises(DataError, match=r"line 3 has 3"):
        as_table(tmp_path / "x.csv")
    many = "".join(f"u{k}, i{k}\n" for k in range(90_000))
    (tmp_path / "x.csv").write_text(f"user, item\n{many}u,i\nv,  j\n")
    assert as_table(tmp_path / "x.csv")["item"].to_list()[-3:] == ["i89999", "i", "j"], (
        "the first rows decide"
    )
