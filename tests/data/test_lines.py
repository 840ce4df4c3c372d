"""Rows of a text file's table are named by their lines, also behind quoted line ends and rows that were dropped."""

import re
from pathlib import Path

import polars as pl
import pytest

from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.split_settings import TimeSplit
from fieldwise.data.read.lines import naming_lines, renumbering_rows
from fieldwise.data.read.tables import as_table
from fieldwise.errors import DataError
from fieldwise.schema import Categorical, Label, Schema


def line_of(path, row, columns=None):
    """The line that an error about a row names; None if there is no such row."""
    with pytest.raises(DataError) as e, naming_lines(path, columns=columns):
        raise DataError(f"row {row} (counting from 0)")
    found = re.fullmatch(rf"line (\d+) of {re.escape(str(path))}", str(e.value))
    if found is None:
        assert str(e.value) == f"row {row} (counting from 0)"
    return found and int(found[1])


@pytest.mark.filterwarnings("ignore:the first line")
def test_the_line_of_each_row(subtests, tmp_path):
    for text, lines, header in [
        ("a,b\n1,x\n2,y\n", [2, 3], True),
        ("a,b\r\n1,x\r\n2,y\r\n", [2, 3], True),
        ("\n\na,b\n1,x\n2,y\n", [4, 5], True),
        ('a,b\n1,"x\n\n"\n2,y\n3,z\n', [2, 5, 6], True),
        ('"a\nA",b\n1,x\n', [3], True),
        ("1,x\n2,y\n", [1, 2], False),
    ]:
        with subtests.test(text=text, lines=lines, header=header):
            path = tmp_path / "t.csv"
            path.write_bytes(text.encode())
            columns = None if header else ["a", "b"]
            table = as_table(path, columns=columns)
            assert [line_of(path, row, columns) for row in range(table.height)] == lines
            assert line_of(path, table.height, columns) is None
            written = path.read_bytes().split(b"\n")
            for row, line in enumerate(lines):
                assert written[line - 1].startswith(str(table.row(row)[0]).encode())


def test_one_column_with_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n\n2\n")
    assert as_table(path).get_column("a").to_list() == [1, None, 2]
    assert [line_of(path, row) for row in range(3)] == [2, 3, 4]


def test_other_errors_and_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"^nothing of rows$"), naming_lines(tmp_path / "t.csv"):
        raise DataError("nothing of rows")
    with pytest.raises(DataError, match=r"bad cell in line 2 of .*t\.csv; mend"), naming_lines(tmp_path / "t.csv"):
        raise DataError("bad cell in row 0 (counting from 0); mend")
    with pytest.raises(DataError, match=r"in row 0 \(counting from 0\)"), naming_lines(tmp_path / "t.parquet"):
        raise DataError("bad cell in row 0 (counting from 0)")
    with pytest.raises(DataError, match=r"in row 7 \(counting from 0\)"), renumbering_rows([3, 7]):
        raise DataError("bad cell in row 1 (counting from 0)")


def test_rows_that_the_label_drops_are_counted() -> None:
    frame = pl.DataFrame({"x": [1, 2] * 10, "t": [*range(15), None, *range(4)], "y": [3, 1] + [3, 5, 1] * 6})
    schema = Schema(fields=(Categorical("x"),), label=Label("y", positive_above=3, drop_values=(3,)), time="t")
    with pytest.raises(DataError, match=r"in row 15 \(counting from 0\)"):
        prepare(frame, schema, split=TimeSplit(), seed=0)


def test_a_row_of_several_files_is_named_with_its_file(tmp_path):
    def told(pattern, row, **reading):
        with pytest.raises(DataError) as e, naming_lines(tmp_path / pattern, **reading):
            raise DataError(f"bad cell in row {row} (counting from 0); mend it")
        return str(e.value).replace(str(tmp_path) + "/", "")

    (tmp_path / "a.csv").write_text("x,y\n1,2\n\n\n")
    (tmp_path / "b.csv").write_text('x,y\n3,"q\nr"\n5,6\n')
    for k, rows in enumerate((3, 2)):
        pl.DataFrame({"n": range(rows)}).write_parquet(tmp_path / f"{k}.parquet")
    assert as_table(tmp_path / "*.csv").height == 3
    assert [told("*.csv", row) for row in range(3)] == [
        f"bad cell in line {line}; mend it" for line in ("2 of a.csv", "2 of b.csv", "4 of b.csv")
    ]
    assert told("*.parquet", 3) == "bad cell in row 0 (counting from 0) of 1.parquet; mend it"
