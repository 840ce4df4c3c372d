"""Tables in and out, every kind of file and every way for delimited text to be broken."""

import gzip
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fieldwise.data.read.sliced import SlicedTable
from fieldwise.data.read.tables import as_table, write_table
from fieldwise.errors import DataError

FRAME = pl.DataFrame(
    {"id": [1, 2, None], "x": [0.5, None, -1e10], "zip": ["01234", "98765", None], "text": ['a,"b"', "c\nd", "é\t;"]}
)


def test_what_is_written_is_read_back(subtests, tmp_path):
    for name in ["t.csv", "t.tsv", "t.tab", "t.csv.gz", "t.TSV", "t.parquet", "t.arrow", "t.feather", "t.ipc"]:
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
    ]:
        with subtests.test(cells=cells, dtype=dtype, values=values):
            path = tmp_path / "t.csv"
            path.write_text("a,b\n" + "".join(f"{cell},\n" for cell in cells.split()) + ",\n")
            column = as_table(path).get_column("a")
            assert column.dtype == dtype
            assert pl.Series([*values, None], dtype=dtype).equals(column.alias(""), null_equal=True)


def test_a_late_row_changes_the_type_not_the_outcome(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n" + "1,2,3\n" * 50_000 + "1.5,word,04\n")
    frame = as_table(path)
    assert frame.dtypes == [pl.Float64, pl.String, pl.String]
    assert frame.row(-1) == (1.5, "word", "04")


def test_a_ragged_line_is_named(subtests, tmp_path):
    for content, line, found in [
        (b"a,b,c\n1,2,3\n4,5\n6,7,8\n", 3, 2),
        (b"a,b,c\n1,2,3\n4,5,6,7\n6,7,8\n", 3, 4),
        (b"a,b,c\n1,2,3\n4,5,6,\n", 3, 4),
        (b"a,b,c\n1,2,3\n4,5,6,", 3, 4),
        (b"a,b,c\n1,2,3\n4,5", 3, 2),
        (b"a,b\n1\n2,3,", 2, 1),
        (b"a,b\r\n1,2\r\n\r\n3,4\r\n", 3, 0),
        (b"\n\na,b\n1,2\n3\n", 5, 1),
        (b'a,b\n"1,5","x\ny"\n3\n', 4, 1),
        (b'"a\nb",c\n1,2\n1\n', 4, 1),
        (b'a,b\n",,,",1\n2\n', 3, 1),
    ]:
        with subtests.test(content=content, line=line, found=found):
            path = tmp_path / "t.csv"
            path.write_bytes(content)
            with pytest.raises(DataError, match=re.escape(f"{path} line {line} has {found};")):
                as_table(path)
            packed = tmp_path / "t.csv.gz"
            packed.write_bytes(gzip.compress(content))
            with pytest.raises(DataError, match=re.escape(f"{packed} line {line} has {found};")):
                as_table(packed)


def test_a_broken_quote_is_named(subtests, tmp_path):
    for content, line in [
        (b'a,b\nx,1\n3,"z" w\n', 3),
        (b'a,"b\nx,1\n', 1),
        (b'a,b"\nx,1\n', 1),
        (b'a,b\nx,2\n3,"z w\n4,5\n', 3),
        (b'a,b\nx"y,2\n3,z" w\n', 2),
    ]:
        with subtests.test(content=content, line=line):
            path = tmp_path / "t.csv"
            path.write_bytes(content)
            with pytest.raises(DataError, match=f"quotes must .*line {line} "):
                as_table(path)


def test_other_faults_of_delimited_text(subtests, tmp_path):
    for content, message in [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,a,b\n1,2,3\n", "header of .* repeats 'a'"),
        (b"a,b\r1,2\r", "bare CR"),
        (b"a,b\nok,1\nx\xe9,2\n", "line 3 holds the byte 0xe9.*encoding='iso-8859-1'"),
        (b"a,b\nx\x93,2\n", "line 2 holds the byte 0x93.*encoding='cp1252'"),
        (b"a\xe9,b\nx,2\n", "line 1 holds the byte 0xe9"),
        ("a,b\nü,2\n".encode("utf-16"), "encoding='utf-16'"),
    ]:
        with subtests.test(content=content, message=message):
            path = tmp_path / "t.csv"
            path.write_bytes(content)
            with pytest.raises(DataError, match=message) as e:
                as_table(path)
            assert "t.csv" in str(e.value)


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
            found = as_table(path)
            assert_frame_equal(found, as_table(path, separator=separator))
            assert found.height == content.rstrip().count("\n") - content.count("\n\t")
            assert_frame_equal(SlicedTable(path).empty, found.clear())


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


def test_arrow_streams_are_read(tmp_path: Path) -> None:
    FRAME.write_ipc_stream(tmp_path / "t.arrow")
    assert_frame_equal(as_table(tmp_path / "t.arrow"), FRAME)


# "\r" is left out: the csv module that scans for a bad line takes it for a line end.
CELL = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6))
NUMBER = st.one_of(st.none(), st.integers(-(2**62), 2**62))
TABLE = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.tuples(NUMBER, *[CELL] * (width - 1)), min_size=1, max_size=8)
)


def _csv(folder: Path, rows: list[tuple[object, ...]]) -> tuple[Path, pl.DataFrame]:
    names = ["n", *(f"c{k}" for k in range(1, len(rows[0])))]
    frame = pl.DataFrame(rows, schema={name: pl.Int64 if name == "n" else pl.String for name in names}, orient="row")
    # A letter in front keeps text from looking like a number.
    frame = frame.with_columns((pl.lit("t") + pl.col(name)).alias(name) for name in names[1:])
    path = folder / "t.csv"
    write_table(frame, path)
    return path, frame


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=TABLE)
def test_any_table_survives_csv(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    path, frame = _csv(tmp_path, rows)
    empty = frame.get_column("n").null_count() == frame.height
    assert_frame_equal(as_table(path), frame.with_columns(pl.col("n").cast(pl.String if empty else pl.Int64)))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=TABLE, data=st.data(), more=st.booleans(), last_end=st.booleans())
def test_any_broken_line_is_named(
    tmp_path: Path, rows: list[tuple[object, ...]], data: st.DataObject, more: bool, last_end: bool
) -> None:
    path, frame = _csv(tmp_path, rows)
    broken = data.draw(st.integers(0, frame.height - 1))
    before, after = frame.head(broken).write_csv(), frame.tail(-broken - 1 or 0) if broken + 1 < frame.height else None
    bad = "x" + ",1" * (frame.width if more else data.draw(st.integers(0, frame.width - 2))) + "\n"
    rest = "" if after is None else after.write_csv(include_header=False)
    text = before + bad + rest
    path.write_bytes((text if last_end else text.removesuffix("\n")).encode())
    line = before.count("\n") + 1
    with pytest.raises(DataError, match=re.escape(f"{path} line {line} has {bad.count(',') + 1};")):
        as_table(path)


def test_pandas_frames_without_pyarrow_name_the_extra() -> None:
    pytest.importorskip("pandas")
    script = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import pandas
from fieldwise.data.read.sliced import SlicedTable
from fieldwise.data.read.tables import as_table
from fieldwise.errors import MissingExtraError
try:
    as_table(pandas.DataFrame({"a": ["x", "y"]}))
except MissingExtraError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pandas frames are read through pyarrow, which is not installed")
    assert done.stdout.endswith("pip install 'fieldwise[pandas]'\n")


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
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                frame = as_table(path)
            assert bool(found) == looks
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
