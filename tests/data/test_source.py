"""Tables of many files, larger than memory, in slices, and samples of them."""

import csv
import datetime as dt
import gzip
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from decimal import Context, Decimal
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fieldwise import DataError, MissingExtraError, SchemaError, as_table, infer_schema
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read import sliced_table, table_sample
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.delimited_text import read_delimited
from fieldwise.data.read.formats import table_files, table_files_of
from fieldwise.data.read.load_table import open_files, open_table, whole_table
from fieldwise.data.read.mapped_rows import RowsWriter, map_rows
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.data.read.table_sample import sample_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import ByteSource
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.reports import Reports
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.inputs import Inputs, data_files

pa = pytest.importorskip("pyarrow")


def zst(content: bytes) -> bytes:
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as out:
        out.write(content)
    return packed.getvalue().to_pybytes()


def test_a_whole_table_beyond_its_memory_is_mapped_and_equal(tmp_path: Path) -> None:
    rows = pl.DataFrame({"n": range(50_000), "text": [f"t{k % 7}" for k in range(50_000)]})
    rows.write_parquet(tmp_path / "log.parquet", row_group_size=5000)
    with mock.patch("fieldwise.data.read.load_table.open_table", wraps=open_table) as opened:
        assert_frame_equal(whole_table(tmp_path / "log.parquet", memory=100_000), rows)
        assert_frame_equal(whole_table(tmp_path / "log.parquet"), rows)  # small
        with mock.patch(
            "fieldwise.data.read.load_table.arrow_library", side_effect=MissingExtraError("none")
        ):
            assert_frame_equal(whole_table(tmp_path / "log.parquet", memory=100_000), rows)
    assert [call.kwargs.get("memory") for call in opened.call_args_list] == [100_000, None, None]


def in_chunks(
    files: list[Path], folder: Path, rows: int, size: int = 1, text: TextFormat | None = None
):
    """The table by chunks of at most `rows` rows, or `size` bytes of text, of which hardly any fits in memory."""
    bounds = ChunkLimits(memory=1, chunk_bytes=size, chunk_rows=rows)
    folder.mkdir(exist_ok=True)
    return open_files(files, text or TextFormat(), bounds, folder).frame


@pytest.mark.parametrize("group", [1_000, 40_000])
def test_parquet_is_read_by_row_groups_if_they_are_small(group: int, tmp_path: Path) -> None:
    rows = pl.DataFrame({"n": range(40_000), "x": [n / 7 for n in range(40_000)]})
    path = tmp_path / "log.parquet"
    rows.write_parquet(path, row_group_size=group)
    bounds = ChunkLimits(memory=1_000_000, chunk_bytes=10_000)  # 8 such chunks have some 5,000 rows
    results = [chunk for _, chunk in table_files_of([path]).chunks(bounds, ["n"])]
    assert_frame_equal(pl.concat(results), rows.select("n"))
    assert 1 < len(results) < 40 * max(1, group // 1_000)
    assert all(chunk.height % 1_000 == 0 for chunk in results) == (group == 1_000)
    short_bounds = replace(bounds, chunk_rows=300)
    short = [chunk for _, chunk in table_files_of([path]).chunks(short_bounds, ["n", "x"])]
    assert max(chunk.height for chunk in short) <= 300
    assert_frame_equal(pl.concat(short), rows)


EVERY = pl.DataFrame(
    {
        "cat": pl.Series(["a", "b", None, "a"], dtype=pl.Categorical),
        "enum": pl.Series(["x", "y", None, "x"], dtype=pl.Enum(["x", "y", "z"])),
        "decimal": pl.Series(
            [Decimal("1.50"), None, Decimal("2.25"), Decimal(0)], dtype=pl.Decimal(10, 2)
        ),
        "zoned": pl.Series(
            [dt.datetime(2020, 1, 1), None] * 2, dtype=pl.Datetime("ms", "Europe/Berlin")
        ),
        "nanos": pl.Series([dt.datetime(2020, 1, 1), None] * 2, dtype=pl.Datetime("ns")),
        "duration": pl.Series([dt.timedelta(1), None] * 2, dtype=pl.Duration("us")),
        "time": pl.Series([dt.time(1, 2, 3), None] * 2),
        "date": pl.Series([dt.date(2020, 1, 1), None] * 2),
        "list": [[1, 2], None, [], [3]],
        "texts": [["a"], None, [], ["b", None]],
        "cats": pl.Series([["a"], None, [], ["b", None]], dtype=pl.List(pl.Categorical)),
        "vector": [[0.5, 1.0], None, [2.0, 3.0], [-0.0, 4.0]],
        "array": pl.Series([[1.0, 2.0], None] * 2, dtype=pl.Array(pl.Float32, 2)),
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": None}, {"a": 2, "b": "y"}],
        "null": pl.Series([None] * 4, dtype=pl.Null),
        "bool": [True, None, False, True],
        "binary": [b"a", None, b"", b"\xff"],
        "i8": pl.Series([1, None, 3, 4], dtype=pl.Int8),
        "u64": pl.Series([1, None, 3, 2**64 - 1], dtype=pl.UInt64),
        "f32": pl.Series([1, None, float("nan"), -0.0], dtype=pl.Float32),
        "text": ["a" * 100, None, "", "é"],
    }
)


def test_small_chunks_are_gathered_and_what_cannot_be_mapped_is_said(tmp_path):
    writer = RowsWriter(tmp_path, gather=8 * 100)
    for k in range(250):
        writer.add(pl.DataFrame({"n": [k]}))
    assert map_rows(writer.finish())["n"].to_list() == list(range(250))
    assert len(writer.paths) == 3
    with pytest.raises(DataError, match="cannot hold Int128, found in column 'id'"):
        RowsWriter(tmp_path).add(pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}))
    writer.paths[1].write_bytes(b"ARROW1")
    with pytest.raises(DataError, match=r"rows-000001.arrow is not a whole Arrow"):
        map_rows(writer.paths)
    (tmp_path / "file").touch()
    blocked = RowsWriter(tmp_path / "file" / "below")
    blocked.add(pl.DataFrame({"n": [1]}))
    with pytest.raises(DataError, match="cannot write"):
        blocked.finish()


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "stream.arrow"])
def test_binary_files_of_every_type_in_chunks(subtests, tmp_path, suffix):
    frame = pl.concat([EVERY, EVERY.reverse(), EVERY])
    (tmp_path / "in").mkdir()
    for k, part in enumerate((frame.head(5), frame.slice(5, 0), frame.tail(-5))):
        path = tmp_path / "in" / f"{k}.{suffix}"
        if suffix == "parquet":
            part.write_parquet(path, row_group_size=3)
        elif suffix == "arrow":
            part.write_ipc(path, compression="zstd")
        else:
            part.write_ipc_stream(path)
    expected = as_table(frame)
    files = sorted((tmp_path / "in").iterdir())
    for rows in (1, 7, 1000):
        with subtests.test(rows=rows):
            result = in_chunks(files, tmp_path / f"scratch{rows}", rows, 10**6)
            assert result.schema == expected.schema
            assert_frame_equal(result, expected)
    table = SlicedTable(tmp_path / "in")
    assert (table.empty.schema, table.count()) == (expected.schema, expected.height)
    wanted = ["vector", "text", "array", "list", "struct"]
    assert_frame_equal(pl.concat(table.slices(wanted, 2)), expected.select(wanted))
    assert_frame_equal(open_table(tmp_path / "in"), expected)
    assert_frame_equal(open_table(tmp_path / "in" / "*"), expected)


CELLS = st.sampled_from(
    [
        *(
            "",
            '""',
            "1",
            "-0",
            "+5",
            "07",
            "-00",
            "2.5",
            "1e3",
            "nan",
            "true",
            "false",
            "x",
            "é",
            " ",
        ),
        *("999999999999999", "1000000000000000", "9223372036854775808", "1234567890123456.5"),
        *("768", "3.768", "-12.500", "3768", "0.768", "4.1", "4.10", "1E2", "100"),
        *('"a,b"', '"c\nd"', '"q""q"', '"\n\n"'),
    ]
)


@st.composite
def texts(draw) -> list[bytes]:
    """Delimited text of some files with the same columns."""
    width = draw(st.integers(1, 3))
    likely = [draw(st.lists(CELLS, min_size=1, max_size=4)) for _ in range(width)]
    files = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(st.tuples(*(st.sampled_from(cells) for cells in likely)), max_size=9))
        end = draw(st.sampled_from(["\n", "\r\n"]))
        text = end.join([",".join(f"c{k}" for k in range(width)), *(",".join(row) for row in rows)])
        start, after = (
            draw(st.sampled_from(["", "\n\n", "\ufeff"])),
            draw(st.sampled_from(["", end, end * 3])),
        )
        files.append((start + text + after).encode())
    return files


TEXT_COLUMNS = [(), ("c0",), ("c1", "c2"), None]


def whole(contents: list[bytes], folder: Path, text_columns=()) -> pl.DataFrame:
    """What `as_table` gives for the rows of all files in one."""
    frames = []
    for k, content in enumerate(contents):
        path = folder / f"whole{k}.csv"
        path.write_bytes(content)
        frames.append(read_delimited(ByteSource(path=path), separator=","))
    return TextTypes(text_columns).add(pl.concat(frames))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    contents=texts(),
    size=st.sampled_from([1, 7, 30, 1000]),
    packing=st.sampled_from(["", ".gz", ".zst"]),
    text_columns=st.sampled_from(TEXT_COLUMNS),
)
def test_text_in_chunks_is_the_text_as_a_whole(tmp_path, contents, size, packing, text_columns):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zst}[packing]
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        folder = Path(name)
        text = TextFormat(text_columns=text_columns)
        expected = whole(contents, folder, text_columns)
        files = [folder / f"{k}.csv{packing}" for k in range(len(contents))]
        for path, content in zip(files, contents, strict=True):
            path.write_bytes(pack(content))
        result = in_chunks(files, folder / "scratch", 1, size, text)
        assert result.schema == expected.schema
        assert_frame_equal(result, expected)
        assert result.write_csv() == expected.write_csv(), "-0.0 too"
        if len(files) == 1:
            assert_frame_equal(open_table(files[0], text), expected)
        with mock.patch.object(sliced_table, "_WHOLE", -1):
            table = SlicedTable(folder / f"[0-9].csv{packing}", text)
        assert (table.empty.schema, table.count()) == (expected.schema, expected.height)
        parts = list(table.slices(expected.columns[::-1], 2))
        assert max([part.height for part in parts], default=0) <= 2
        assert_frame_equal(
            pl.concat([table.empty, *(part.select(expected.columns) for part in parts)]), expected
        )


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    contents=texts().filter(lambda files: b"c1" in files[0]), size=st.sampled_from([1, 30, 1000])
)
def test_columns_of_text_have_the_cells_of_the_file(tmp_path, contents, size):
    with tempfile.TemporaryDirectory(dir=tmp_path) as name:
        folder = Path(name)
        files = [folder / f"{k}.csv" for k in range(len(contents))]
        expected: list[str | None] = []
        for path, content in zip(files, contents, strict=True):
            path.write_bytes(content)
            text = content.decode("utf-8-sig")
            lines = text.lstrip().partition("\n")[2]  # below the header
            # a space after all delimiters that a cell follows is left out
            is_spaced = ", " in lines and not re.search(r",[^ ,\r\n]", lines)
            records = csv.reader(io.StringIO(text, newline=""), skipinitialspace=is_spaced)
            _, *rows = filter(None, records)  # blank lines are no rows
            expected += [row[0] or None for row in rows]
        result = in_chunks(files, folder / "scratch", 1, size, TextFormat(text_columns=("c0",)))
        assert as_text(result.get_column("c0")).to_list() == expected


BROKEN = [
    (b"a,b\n1,2\n3\n4,5\n6,7\n", "line 3 has 1;"),
    (b"a,b\n1,2\n3,4,5\n6,7\n", "line 3 has 3;"),
    (b"a,b\n1,2\n3,4,\n", "line 3 has 3;"),
    (b"a,b\n1,2\n3,4,", "line 3 has 3;"),
    (b"a,b\n1,2\n3", "line 3 has 1;"),
    (b"a,b\n1\n2,3,", "line 2 has 1;"),
    (b"a,b\n1,2\n\n3,4\n", "line 3 has 0;"),
    (b"a,b\r\n1,2\r\n\r\n3,4\r\n", "line 3 has 0;"),
    (b"a,b\n1,2\n3,4\n\n\r\n\n5,6\n", "line 4 has 0;"),
    (b"\n\na,b\n1,2\n3\n", "line 5 has 1;"),
    (b'a,b\n"1,5","x\ny"\n3\n', "line 4 has 1;"),
    (b'a,b\n",,,",1\n2\n', "line 3 has 1;"),
    (b'a,b\nx,1\n3,"z" w\n5,6\n', "quotes must .*line 3 "),
    (b'a,b\nx,1\n3,"z w\n4,5\n6,7\n', "quotes must .*line 3 "),
    (b'a,b\nx"y,2\n3,z" w\n', "quotes must .*line 2 "),
    (b'a,"b\nx,1\n', "quotes must .*line 1 "),
    (b'a,b"\nx,1\n', "quotes must .*line 1 "),
    (b"a,b\nok,1\nok,1\nx\xe9,2\nok,1\n", "line 4 holds the byte 0xe9.*encoding='iso-8859-1'"),
    (b"a,b\nx\x93,2\n", "line 2 holds the byte 0x93.*encoding='cp1252'"),
    (b"a\xe9,b\nx,2\n", "line 1 holds the byte 0xe9"),
    ("a,b\nü,2\n".encode("utf-16"), "encoding='utf-16'"),
    (b"", "is empty"),
    (b"\n\n", "is empty"),
    (b"a;b\n1;2\n3\n", "line 3 has 1;"),
    (b"a,a\n1,2\n", "header of .* repeats 'a'"),
    (b"a,b\r1,2\r", "bare CR"),
]


def test_errors_name_file_and_line(subtests, tmp_path):
    for content, message in BROKEN:
        with subtests.test(content=content, message=message):
            (tmp_path / "0.csv").write_bytes(b"a,b\n1,2\n3,4\n")
            pack = (bytes, gzip.compress, zst)[len(content) % 3]
            path = tmp_path / ("1.csv", "1.csv.gz", "1.csv.zst")[len(content) % 3]
            path.write_bytes(pack(content))
            with pytest.raises(DataError, match=message) as e:
                as_table(path)
            assert str(path) in str(e.value)
            for size in (1, 9):
                with pytest.raises(DataError, match=message) as e:
                    in_chunks([tmp_path / "0.csv", path], tmp_path / "scratch", 1, size)
                assert path.name in str(e.value)
    (tmp_path / "3.csv").write_bytes(b'"a\nb",c\n1,2\n1\n')
    with pytest.raises(DataError, match=r"3\.csv line 4 has 1;"):
        as_table(tmp_path / "3.csv")


def told(folder: Path, **more) -> str:
    """The error for all Parquet, Arrow or text files of a folder, without the folder's name."""
    with pytest.raises(DataError) as e:
        open_table(folder, **more)
    return str(e.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


def write(folder: Path, **frames: dict[str, list]) -> Path:
    folder.mkdir()
    for name, columns in frames.items():
        pl.DataFrame(columns).write_parquet(folder / f"{name}.parquet")
    return folder


def test_files_that_do_not_fit_together_are_named(tmp_path):
    parts = [{"n": pl.Series([1], dtype=kind), "s": ["x"]} for kind in (pl.Int8, pl.UInt16)]
    folder = write(tmp_path / "types", a=parts[0], b=parts[1], c={"n": [1.5], "s": ["x"]})
    assert told(folder) == (
        "a column must have one type in all files, but 'n' is Int32 in b.parquet and Float64 in c.parquet: convert one "
        "of them"
    )
    (folder / "c.parquet").unlink()
    assert open_table(folder).equals(
        pl.DataFrame({"n": [1, 1], "s": ["x"] * 2}, schema_overrides={"n": pl.Int32})
    )
    assert told(write(tmp_path / "missing", a={"n": [1], "m": [1]}, b={"n": [1]})) == (
        "the files of a table must have the same columns, but a.parquet has 'm' and b.parquet has not: remove or add "
        "it, or leave out the file"
    )
    assert "but b.parquet has 'm' and a.parquet has not" in told(
        write(tmp_path / "extra", a={"n": [1]}, b={"n": [1], "m": [1]})
    )
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "text" / "b.csv.gz").write_bytes(gzip.compress(b"y,x\n3,4\n"))
    assert open_table(tmp_path / "text").rows() == [(1, 2), (4, 3)], (
        "columns may stand in any order"
    )
    (tmp_path / "text" / "c.csv").write_text("x,z\n1,2\n")
    assert "but c.csv has 'z' and a.csv has not" in told(tmp_path / "text")


def test_what_is_no_table_of_files_is_said(tmp_path):
    folder = write(tmp_path / "log", a={"n": [1]})
    (folder / "_SUCCESS").touch()
    (folder / ".a.parquet.crc").touch()
    assert open_table(folder).rows() == [(1,)]
    (folder / "b.csv").write_text("n\n1\n")
    assert "must be of one kind, found a.parquet (Parquet) and b.csv (delimited text)" in told(
        folder
    )
    (folder / "README.md").touch()
    assert "found README.md: remove it, or give a pattern" in told(folder)
    assert open_table(folder / "*.parquet").rows() == [(1,)]
    (folder / "README.md").rename(folder / "c.parquet")
    assert open_table(folder / "[ab].parquet").rows() == [(1,)]
    assert "c.parquet is empty: a Parquet file was expected" in told(folder / "*.parquet")
    (folder / "c.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-20])
    assert "c.parquet is not a whole Parquet file" in told(folder / "*.parquet")
    (folder / "below").mkdir()
    assert "must hold files alone, but below is a folder: give a pattern such as" in told(folder)
    assert "**/*.parquet'" in told(folder)
    (folder / "below" / "x.csv.gz").touch()
    assert "**/*.csv.gz'" in told(folder)
    (folder / "below" / "x.csv.gz").unlink()
    assert "no file matches the pattern" in told(folder / "*.arrow")
    (folder / "[x].csv").write_text("n\n7\n")
    assert open_table(folder / "[x].csv").rows() == [(7,)], (
        "a file's own name comes before a pattern"
    )


def after_reading(monkeypatch, change):
    """Have files changed when all of their rows have been read."""
    check = table_files.check_unchanged
    monkeypatch.setattr(table_files, "check_unchanged", lambda states: (change(), check(states)))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "libfm"])
def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch, suffix):
    rows = {"csv": "n\n1\n2\n", "libfm": "1 0:1\n0 1:1\n"}
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        path.write_text(rows[suffix]) if suffix in rows else pl.DataFrame(
            {"n": [1, 2]}
        ).write_parquet(path)
    after_reading(monkeypatch, lambda: path.write_bytes(path.read_bytes() + b"3\n"))
    with pytest.raises(DataError, match=rf"b\.{suffix} has changed while it was read"):
        open_table(tmp_path)


def test_a_memory_too_small_for_one_chunk_says_what_is_needed(tmp_path):
    frame = pl.DataFrame({"n": np.arange(400_000)})
    frame.write_ipc(tmp_path / "one.arrow", record_batch_size=400_000)
    with pytest.raises(
        DataError, match=r"one\.arrow has one of 400,000 rows and 3 MB: set data\.memory to 6MB or"
    ):
        open_table(tmp_path / "one.arrow", folder=tmp_path / "scratch", memory=1_000_000)
    frame.write_ipc(tmp_path / "many.arrow", record_batch_size=1_000)
    result = open_table(tmp_path / "many.arrow", folder=tmp_path / "scratch", memory=1_000_000)
    assert result.equals(frame)


MEMORY = """
import sys, tempfile, threading, time
from pathlib import Path
from fieldwise.data.read.load_table import open_table

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))

def watch():
    while True:
        seen.append(anonymous())
        time.sleep(0.001)

seen = []
threading.Thread(target=watch, daemon=True).start()
with tempfile.TemporaryDirectory() as folder:
    table = open_table(sys.argv[1], folder=Path(folder), memory=2_000_000)
    print(table.height, table["n"].sum(), max(seen))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_memory_does_not_grow_with_the_table(tmp_path, suffix):
    rows = 150_000
    frame = pl.DataFrame(
        {"n": np.arange(rows), **{f"s{k}": [f"{k} of some long text"] * rows for k in range(2)}}
    )
    taken = {}
    for files in (2, 8):
        folder = tmp_path / str(files)
        folder.mkdir()
        for k in range(files):
            path = folder / f"{k}.{suffix}"
            frame.write_csv(path) if suffix == "csv" else frame.write_parquet(
                path, row_group_size=20_000
            )
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, folder], capture_output=True, text=True, check=True
        )
        height, total, taken[files] = map(int, done.stdout.split())
        assert (height, total) == (files * rows, files * sum(range(rows)))
    assert 6 * frame.estimated_size() > 40_000_000, "bytes"
    assert taken[8] - taken[2] < 15_000, "kB"


def test_without_pyarrow_only_tables_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    frame = pl.DataFrame({"n": np.arange(3000), "v": [[0.5, 1.0]] * 3000})
    for k, part in enumerate(frame.iter_slices(1000)):
        part.write_parquet(tmp_path / f"{k}.parquet")
        part.select("n").write_csv(tmp_path / f"{k}.csv")
        part.write_ipc_stream(tmp_path / f"{k}.arrow")
    (tmp_path / "0.csv.zst").write_bytes(zst(b"n\n1\n"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    for kind, columns in (("parquet", ["v", "n"]), ("csv", ["n"]), ("arrow", ["n", "v"])):
        pattern = tmp_path / f"[0-9].{kind}"
        assert_frame_equal(open_table(pattern), as_table(frame).select(open_table(pattern).columns))
        parts = SlicedTable(pattern).slices(columns, 700)
        assert_frame_equal(pl.concat(parts), as_table(frame).select(columns))
        with pytest.raises(
            MissingExtraError, match=r"read through pyarrow.*pip install 'fieldwise\[large\]'"
        ):
            open_table(pattern, folder=tmp_path / "scratch", memory=1000)
    with pytest.raises(
        MissingExtraError, match=r"0\.csv\.zst is unpacked by pyarrow.*fieldwise\[large\]"
    ):
        as_table(tmp_path / "0.csv.zst")


@pytest.mark.skipif(sys.platform == "win32", reason="needs hard links")
@pytest.mark.parametrize("change", ["link", "chmod"])
def test_a_file_whose_content_is_the_same_has_not_changed(tmp_path, monkeypatch, change):
    for name in ("a", "b"):
        pl.DataFrame({"n": [1, 2]}).write_csv(tmp_path / f"{name}.csv")
    path = tmp_path / "a.csv"
    after_reading(
        monkeypatch,
        lambda: os.link(path, tmp_path / "a.link") if change == "link" else path.chmod(0o600),
    )
    inputs = Inputs.of({"a": tmp_path / "a.csv"})
    assert open_table(tmp_path)["n"].to_list() == [1, 2, 1, 2]
    assert inputs.unchanged({"a": tmp_path / "a.csv"})


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(table_sample, "WHOLE", 1000)
    monkeypatch.setattr(table_sample, "MOST_ROWS", 3000)


@pytest.mark.usefixtures("_small")
def test_a_large_file_of_no_known_kind_is_named_as_a_small_one_is(tmp_path):
    (tmp_path / "big.json").write_bytes(bytes(1001))
    with pytest.raises(DataError, match=r"must be one of csv.*'big\.json'; convert or rename it"):
        sample_table(tmp_path / "big.json")


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_schema_of_a_large_table_is_that_of_all_its_rows(tmp_path, suffix):
    rng = np.random.default_rng(0)
    rows = 30_000
    frame = pl.DataFrame(
        {
            # nine of ten differ in a sample, less than half in all
            "user_id": rng.integers(0, 15_000, rows),
            "event_id": [f"e{k}" for k in rng.permutation(rows)],
            "query": [f"q{k}" for k in rng.integers(0, 15_000, rows)],
            "day": rng.choice(["mon", "tue", "wed"], rows),
            "code": ["1"] * (rows - 2) + ["x", "1"],  # not in the sample
            "click": rng.integers(0, 2, rows),
        }
    )
    for k, part in enumerate(frame.iter_slices(11_000)):
        path = tmp_path / f"{k}.{suffix}"
        part.write_csv(path) if suffix == "csv" else part.write_parquet(path)
    sample = sample_table(tmp_path)
    assert (sample.rows, sample.frame.height) == (rows, 3000)
    assert sample.frame.schema == frame.schema, "types are those of all rows"
    assert sample.frame.equals(frame[sample.row_numbers])
    tenths = np.bincount(sample.row_numbers // 3_000, minlength=10)
    assert np.abs(tenths - 300).max() < 5 * np.sqrt(300), (
        "a tenth of the rows gives a tenth of the sample"
    )
    result, expected = infer_schema(tmp_path), infer_schema(frame)
    assert [(f.name, f.kind) for f in result.schema.fields] == [
        ("user_id", "categorical"),
        ("query", "categorical"),
        ("day", "categorical"),
    ]
    assert result.schema.fields == tuple(f for f in expected.schema.fields if f.name != "code")
    assert result.notes["event_id"].startswith("omitted: nearly every cell is different")
    assert result.to_toml().startswith(
        "# Inferred from 3,000 of 30,000 rows, drawn at random from all files: check and correct it."
    )


@pytest.mark.usefixtures("_small")
def test_errors_name_the_rows_of_the_whole_table(tmp_path):
    rows = 30_000
    frame = pl.DataFrame(
        {
            "x": [f"v{k % 7}" for k in range(rows)],
            "click": [None if k >= 20_000 else k % 2 for k in range(rows)],
        }
    )
    frame.head(15_000).write_csv(tmp_path / "a.csv")
    frame.tail(15_000).write_csv(tmp_path / "b.csv")
    with pytest.raises(SchemaError) as e, naming_lines(tmp_path):
        infer_schema(tmp_path)
    first = int(sample_table(tmp_path).row_numbers.searchsorted(20_000))
    number = int(sample_table(tmp_path).row_numbers[first])
    assert f"line {number - 15_000 + 2} of {tmp_path / 'b.csv'}" in str(e.value)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="files are trusted where the start of the system is told",
)
@pytest.mark.parametrize("change", ["", "file", "format", "chunks", "damaged", "late type"])
def test_an_interrupted_reading_of_text_goes_on(change: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    files = [tmp_path / "in" / f"{k}.csv" for k in range(2)]
    for k, path in enumerate(files):
        rows = pl.DataFrame(
            {"n": range(k * 900, k * 900 + 900), "word": [f'a "word", {j}' for j in range(900)]}
        )
        late = pl.lit("x") if change == "late type" and k else pl.col("n")
        rows = rows.with_columns(
            late=pl.when(pl.col("n") == 1500).then(late).otherwise("n").cast(pl.String)
        )
        (rows if k else rows.select("word", "n", "late")).write_csv(path)
    limits, text, write = ChunkLimits(memory=1, chunk_bytes=2000), TextFormat(), RowsWriter._write

    def interrupted(writer: RowsWriter) -> None:
        if written.call_count == 12:
            raise KeyboardInterrupt
        write(writer)

    killing = mock.patch.object(RowsWriter, "_write", autospec=True, side_effect=interrupted)
    with killing as written, pytest.raises(KeyboardInterrupt):
        open_files(files, text, limits, tmp_path / "scratch")
    if change == "file":
        files[1].write_text(files[1].read_text().replace('""word""', '""text""'))
    elif change == "format":
        text = TextFormat(separator=",")
    elif change == "chunks":
        limits = replace(limits, chunk_bytes=3000)
    elif change == "damaged":
        (tmp_path / "scratch" / "rows" / "rows-000003.arrow").unlink()
    reports = mock.create_autospec(Reports, instance=True)
    with mock.patch("polars.read_csv", wraps=pl.read_csv) as parsed:
        result = open_files(files, text, limits, tmp_path / "scratch", reports).frame
    assert_frame_equal(result, as_table(tmp_path / "in"))
    added = [call.args[0] for call in reports.add.call_args_list]
    assert (added[0] > 0) == (change in ("", "late type"))
    assert sum(added) == result.height * (1 + (change == "late type"))
    assert change or parsed.call_count < 20, "of 32"


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_folders_that_are_named_by_a_column_are_columns(tmp_path, kind):
    root, parts = tmp_path / "logs", []
    for day, country in [
        ("2026-01-01", "de"),
        ("2026-01-02", "a%2Fb"),
        ("2026-01-03", "__HIVE_DEFAULT_PARTITION__"),
    ]:
        folder = root / f"day={day}" / f"country={country}"
        folder.mkdir(parents=True)
        rows = pl.DataFrame({"user": [f"u{k}" for k in range(5)], "click": [0, 1, 0, 1, 1]})
        {"csv": rows.write_csv, "parquet": rows.write_parquet, "arrow": rows.write_ipc}[kind](
            folder / f"part-0.{kind}"
        )
        parts.append(rows.with_columns(day=pl.lit(day)))
    expected = pl.concat(parts).with_columns(
        country=pl.Series([*["de"] * 5, *["a/b"] * 5, *[None] * 5])
    )
    assert_frame_equal(as_table(root), expected)
    assert_frame_equal(as_table(root / "**" / f"*.{kind}"), expected)
    assert_frame_equal(
        as_table(root / "day=2026-01-01" / "country=de" / f"part-0.{kind}"), expected[:5]
    )
    assert_frame_equal(open_table(root, memory=1, folder=tmp_path / "scratch"), expected)
    table = SlicedTable(root)
    assert_frame_equal(table.empty, expected.clear())
    assert_frame_equal(pl.concat(table.slices(["day", "user"], 4)), expected.select("day", "user"))
    if kind == "parquet":
        read = pl.read_parquet(root, hive_partitioning=True, try_parse_hive_dates=False)
        assert_frame_equal(as_table(root).select("user", "day"), read.select("user", "day"))
    (root / "day=2026-01-04").mkdir()
    rows.write_csv(root / "day=2026-01-04" / "part-0.csv")
    with pytest.raises(
        DataError, match="must tell the same columns" if kind == "csv" else "must be of one kind"
    ):
        as_table(root)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_folders_tell_of_a_category_stays_as_it_is_written(tmp_path, kind):
    for version in ("4.1", "4.10"):
        folder = tmp_path / f"version={version}"
        folder.mkdir()
        rows = pl.DataFrame({"click": [0, 1]})
        {"csv": rows.write_csv, "parquet": rows.write_parquet}[kind](folder / f"a.{kind}")
    texts = ["4.1", "4.1", "4.10", "4.10"]
    assert as_table(tmp_path, text_columns=("version",)).get_column("version").to_list() == texts
    sliced = SlicedTable(tmp_path, TextFormat(text_columns=("version",)))
    assert (
        pl.concat(sliced.slices(["version", "click"], 3)).get_column("version").to_list() == texts
    )
    assert pl.concat(sliced.slices(["version"], 3)).get_column("version").to_list() == texts
    assert as_table(tmp_path).get_column("version").to_list() == [4.1, 4.1, 4.1, 4.1]


def test_a_column_of_the_file_is_not_replaced_by_its_folder(tmp_path):
    (tmp_path / "day=1").mkdir()
    pl.DataFrame({"day": [7, 8]}).write_csv(tmp_path / "day=1" / "a.csv")
    pl.DataFrame({"day": [7, 8]}).write_parquet(tmp_path / "day=1" / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        assert as_table(tmp_path / "day=1" / name).get_column("day").to_list() == [7, 8]


def test_prepared_rows_are_made_again_if_a_folder_tells_something_else(tmp_path):
    for day in ("1", "2"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.csv").write_text("x\n1\n")
    first, second = (
        set(data_files(DataSettings(path=str(tmp_path / f"day={k}/a.csv")), tmp_path)) for k in "12"
    )
    assert first != second, "the cache's key has these names"


def test_decimals_of_more_than_38_digits_are_read_as_floats(tmp_path):
    path = tmp_path / "a.parquet"
    amounts = pa.array([Decimal("1.5"), None, Decimal(-3)], pa.decimal256(76, 30))
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"user": ["a", "b", "c"], "amount": amounts}), path)
    expected = pl.DataFrame({"user": ["a", "b", "c"], "amount": [1.5, None, -3.0]})
    with pytest.warns(UserWarning, match="column 'amount' of .* is read as Float64"):
        assert_frame_equal(as_table(path), expected)
    with pytest.warns(UserWarning, match="is read as Float64"):
        assert_frame_equal(open_table(path, memory=1, folder=tmp_path / "scratch"), expected)


def test_decimals_of_256_bits_are_read_from_every_arrow_source(tmp_path, subtests):
    feather, parquet = (
        pytest.importorskip("pyarrow.feather"),
        pytest.importorskip("pyarrow.parquet"),
    )
    wide = pa.decimal256(76, 30)
    cells = [Decimal("1.5"), None, Decimal(-3)]
    table = pa.table(
        {
            "user": ["a", "b", "c"],
            "few": pa.array(cells, pa.decimal256(20, 2)),
            "amounts": pa.array([[Decimal("0.5")], [], None], pa.list_(wide)),
            "part": pa.array([{"x": cell} for cell in cells], pa.struct([("x", wide)])),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.arrow", compression="uncompressed")
    with (
        pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    for source in (tmp_path / "a.parquet", tmp_path / "a.arrow", tmp_path / "b.arrow", table):
        with subtests.test(source=str(source)[-9:]):
            with pytest.warns(UserWarning, match="is read as Float64"):
                frame = as_table(source)
            assert frame["few"].cast(pl.Float64).to_list() == [1.5, None, -3.0]
            assert frame["amounts"].to_list() == [[0.5], [], None]
            assert [part["x"] for part in frame["part"]] == [1.5, None, -3.0]


def test_wide_decimals_of_a_pandas_frame_are_read_as_floats():
    pd = pytest.importorskip("pandas")
    cells = [
        Decimal("1.5").quantize(Decimal(1).scaleb(-38), context=Context(prec=60)),
        None,
        Decimal(-30),
    ]
    with pytest.warns(
        UserWarning, match="column 'amount' of the pandas frame has decimals of more than 38 digits"
    ):
        frame = as_table(pd.DataFrame({"amount": cells, "few": [Decimal("0.5")] * 3}))
    assert frame["amount"].to_list() == [1.5, None, -30.0]
    assert frame["few"].dtype == pl.Decimal
    with pytest.raises(DataError, match="the pandas frame's column 'amounts' does not"):
        as_table(pd.DataFrame({"amounts": [[cells[0]], [], [cells[0]]]}))


@pytest.mark.parametrize(("separator", "other"), [(";", ","), (",", ";")])
def test_another_separator_is_suggested_than_the_one_in_use(
    tmp_path: Path, separator: str, other: str
) -> None:
    file = tmp_path / "log.csv"
    file.write_text("a,b,c\n1,2,3\n1,2\n".replace(",", separator))
    with pytest.raises(
        DataError, match=f"line 3 has 2; .* than '{separator}', such as separator='{other}'"
    ):
        read_delimited(ByteSource(path=file), separator=separator)
