"""The formats of table files: what holds for each, also for one that a test adds; JSON Lines against `json`."""

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fieldwise import as_table
from fieldwise.data.read import formats
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.formats import FORMATS, format_of, table_files_of
from fieldwise.data.read.formats.delimited import DelimitedFiles
from fieldwise.data.read.formats.line_files import LineFiles
from fieldwise.data.read.formats.table_files import RowsWriting
from fieldwise.data.read.load_table import open_files
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.data.read.table_writer import TableWriter, write_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import DataError, Row

ROWS = pl.DataFrame(
    {
        "user": [f"u{n % 7}" for n in range(500)],
        "n": range(500),
        "x": [n / 8 if n % 5 else None for n in range(500)],
        "ok": [n % 3 == 0 for n in range(500)],
    }
)


class KeyValueFiles(LineFiles):
    """A format that is not ours: `user=u1 n=3` on every line."""

    name = "key=value"
    suffixes = (".kv",)
    written_suffixes = suffixes

    class writing(RowsWriting):  # noqa: N801
        def add(self, frame, file):
            for row in frame.rows(named=True):
                file.write(" ".join(f"{k}={v}" for k, v in row.items()).encode() + b"\n")

    class Columns:
        def add(self, frame, source): ...

        def table(self, frame):
            types = {"n": pl.Int64, "x": pl.Float64}
            plain = frame.select(
                pl.col(name).replace("None", None).cast(types.get(name, pl.String)) for name in frame.columns
            )  # fmt: skip
            return plain.with_columns(ok=pl.col("ok") == "True")

    def _new_columns(self):
        return self.Columns()

    def _read(self, source):
        lines = b"".join(source.chunks()).decode().splitlines()
        return pl.DataFrame([dict(pair.split("=") for pair in line.split()) for line in lines])


@pytest.fixture
def all_formats(monkeypatch):
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, KeyValueFiles))
    return formats.FORMATS


def test_every_format_reads_what_it_writes(all_formats, subtests, tmp_path):
    for file_format in all_formats:
        for suffix in file_format.written_suffixes:
            with subtests.test(suffix=suffix):
                path = tmp_path / f"rows{suffix}"
                with TableWriter(path) as writer:
                    for part in ROWS.iter_slices(200):
                        writer.add(part)
                assert format_of(path) is file_format
                assert_frame_equal(as_table(path), ROWS)

                source = table_files_of([path])
                limits = ChunkLimits(memory=1, chunk_bytes=2000, chunk_rows=100)
                chunks = [chunk for _, chunk in source.chunks(limits, ["n", "user"])]
                assert len(chunks) > 2
                assert all(chunk.columns == ["n", "user"] for chunk in chunks)
                assert sum(chunk.height for chunk in chunks) == source.count() == ROWS.height
                whole = table_files_of([path])
                assert_frame_equal(whole.empty(), ROWS.clear())
                mapped = open_files([path], TextFormat(), limits, tmp_path / f"scratch{suffix}")
                assert_frame_equal(mapped.frame, ROWS)
                sliced = SlicedTable(path)
                assert_frame_equal(sliced.empty, ROWS.clear())
                assert_frame_equal(pl.concat(sliced.slices(ROWS.columns, 64)), ROWS)


def test_every_format_tells_where_a_row_stands(all_formats, subtests, tmp_path):
    for file_format in all_formats:
        for suffix in file_format.written_suffixes:
            with subtests.test(suffix=suffix):
                folder = tmp_path / suffix[1:]
                for number, part in enumerate(ROWS.iter_slices(300)):
                    write_table(part, folder / f"{number}{suffix}")
                source = table_files_of(sorted(folder.iterdir()))
                place = source.place(307)
                assert (place.file, place.number) == (str(folder / f"1{suffix}"), 7)
                if place.line is not None:
                    text = Path(place.file).read_text().splitlines()[place.line - 1]
                    assert "307" in text
                assert source.place(500) is None


def test_a_folder_of_any_format_is_one_table(all_formats, subtests, tmp_path):
    for file_format in all_formats:
        for suffix in file_format.written_suffixes:
            with subtests.test(suffix=suffix):
                folder = tmp_path / suffix[1:]
                for number, part in enumerate(ROWS.iter_slices(300)):
                    write_table(part, folder / f"day={number}" / f"part{suffix}")
                expected = ROWS.with_columns(
                    day=pl.when(pl.int_range(pl.len()) < 300).then(0).otherwise(1).cast(pl.Int64)
                )
                assert_frame_equal(as_table(folder), expected)
                assert_frame_equal(SlicedTable(folder).empty, expected.clear())


def test_options_of_text_are_refused_by_a_format_that_does_not_take_them(
    all_formats, subtests, tmp_path
):
    for file_format in all_formats:
        if file_format.takes_text_options:
            continue
        path = tmp_path / f"rows{file_format.suffixes[0]}"
        path.touch()
        for options in ({"separator": ";"}, {"encoding": "latin-1"}, {"columns": ["a"]}):
            with subtests.test(suffix=path.suffix, options=options):
                said = f"`{next(iter(options))}` is for delimited text, but {path} is {file_format.name}: omit it"
                with pytest.raises(DataError, match=re.escape(said)):
                    as_table(path, **options)


def test_a_format_whose_cells_are_text_goes_on_behind_chunks_that_were_read(
    all_formats, subtests, tmp_path
):
    limits = ChunkLimits(memory=1, chunk_bytes=2000, chunk_rows=100)
    tried = 0
    for file_format in all_formats:
        for suffix in file_format.written_suffixes:
            files = [tmp_path / f"{number}{suffix}" for number in (0, 1)]
            for file in files:
                write_table(ROWS, file)
            if table_files_of(files).types is None:
                continue
            tried += 1
            chunks = list(table_files_of(files).chunks(limits))
            of_first = sum(file == files[0] for file, _ in chunks)
            for done in ({files[0]: 1}, {files[0]: of_first, files[1]: 2}):
                with subtests.test(suffix=suffix, done=tuple(done.values())):
                    source = table_files_of(files)
                    source.chunks_done = done
                    rest = list(source.chunks(limits))
                    expected = chunks[sum(done.values()) :]
                    assert [file for file, _ in rest] == [file for file, _ in expected]
                    for (_, chunk), (_, as_before) in zip(rest, expected, strict=True):
                        assert_frame_equal(chunk, as_before)
    assert tried


class TextWithAHeader(DelimitedFiles):
    """A format that is not ours, whose cells are text below a header."""

    name = "commas"
    suffixes = (".commas",)
    written_suffixes = ()
    takes_text_options = False


def test_the_hint_on_a_missing_header_is_one_that_the_format_takes(monkeypatch, tmp_path):
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, TextWithAHeader))
    for name, hint in {
        "t.csv": r"give its column names \(`columns`\)",
        "t.commas": "write one",
    }.items():
        (tmp_path / name).write_text("5,2\n1,4\n")
        with pytest.warns(UserWarning, match=rf"looks like a row .*no header, {hint}$"):
            as_table(tmp_path / name)


# JSON Lines

VALUES = {
    "n": st.none() | st.integers(-(2**63), 2**63 - 1),
    "x": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "t": st.none() | st.text(st.characters(codec="utf-8")),
    "ok": st.none() | st.booleans(),
    "tags": st.none() | st.lists(st.none() | st.text(st.characters(codec="utf-8")), max_size=3),
    "v": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9), max_size=3),
}  # fmt: skip
SCHEMA = {
    "n": pl.Int64(),
    "x": pl.Float64(),
    "t": pl.String(),
    "ok": pl.Boolean(),
    "tags": pl.List(pl.String()),
    "v": pl.List(pl.Float64()),
}
OBJECTS = st.fixed_dictionaries({}, optional=VALUES).filter(bool)


@given(
    rows=st.lists(OBJECTS, min_size=1, max_size=8),
    ascii_only=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    size=st.sampled_from([1, 40, 1 << 20]),
)
def test_objects_are_read_as_by_python(tmp_path_factory, rows, ascii_only, end, size):
    # the last row has a value of every type, so that all is typed
    rows = [*rows, {"n": 1, "x": 0.5, "t": "", "ok": True, "tags": ["a"], "v": [0.5]}]
    text = end.join(json.dumps(row, ensure_ascii=ascii_only) for row in rows)
    path = tmp_path_factory.mktemp("json") / "rows.jsonl"
    path.write_bytes(text.encode())
    names = list(dict.fromkeys(name for row in rows for name in row))
    parsed = [json.loads(line) for line in text.split(end)]

    limits = ChunkLimits(memory=1 << 30, chunk_bytes=size)
    frame = pl.concat(chunk for _, chunk in table_files_of([path]).chunks(limits))
    assert dict(frame.schema) == {name: SCHEMA[name] for name in names}
    assert frame.rows(named=True) == [{name: row.get(name) for name in names} for row in parsed]
    whole = pl.concat(chunk for _, chunk in table_files_of([path]).chunks(ChunkLimits()))
    assert_frame_equal(whole, frame)


def test_packed_files_and_a_byte_order_mark(tmp_path):
    text = '\ufeff{"a": 1}\n{"b": ["x", null], "a": null}\n\n'.encode()
    expected = {"a": [1, None], "b": [None, ["x", None]]}
    (tmp_path / "t.ndjson").write_bytes(text)
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(text))
    for name in ("t.ndjson", "t.jsonl.gz"):
        assert as_table(tmp_path / name).to_dict(as_series=False) == expected
    pyarrow = pytest.importorskip("pyarrow")
    with pyarrow.output_stream(str(tmp_path / "t.jsonl.zst"), compression="zstd") as file:
        file.write(text)
    assert as_table(tmp_path / "t.jsonl.zst").to_dict(as_series=False) == expected


def test_vectors_are_lists_as_in_parquet(tmp_path):
    rows = pl.DataFrame({"id": range(40), "v": [[n / 2, 1.0] for n in range(40)]})
    write_table(rows, tmp_path / "t.jsonl")
    write_table(rows, tmp_path / "t.parquet")
    frames = [as_table(tmp_path / name) for name in ("t.jsonl", "t.parquet")]
    assert_frame_equal(*frames)
    assert frames[0].schema == {"id": pl.Int64, "v": pl.List(pl.Float64)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"a": 1', "every line must be one JSON object"),
        ("[1]", "is [1]"),
        ("7", "is 7"),
        ("{}", "is {}"),
        ("", "it is blank"),
        ('{"a": 1, "a": 2}', "key 'a' stands twice"),
        ('{"a": NaN}', "JSON has no NaN"),
        ('{"a": 1} {"a": 2}', "Extra data"),
        ('{"b": {"c": 1}}', 'key \'b\' at t.jsonl line 3 holds {"c": 1}'),
        ('{"b": [{"c": 1}]}', 'holds [{"c": 1}]'),
        ('{"a": "x"}', "of one type, but key 'a' at t.jsonl line 3 holds \"x\": lines before it hold Int64"),
        ('{"a": true}', "holds true"),
        ('{"a": [1]}', "holds [1]"),
        ('{"b": [1, "x"]}', 'holds [1, "x"]'),
        ('{"a": 9223372036854775808}', "a long number as text"),
        ('{"t": "\\ud800"}', "surrogates"),
        ("[" * 100_000, "recursion"),
        (b'{"t": "\xe9"}', "must be in UTF-8: t.jsonl line 3 holds the byte 0xe9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_bad_line_is_named(line, words, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = line if isinstance(line, bytes) else line.encode()
    Path("t.jsonl").write_bytes(b'{"a": null}\n{"a": 1}\n' + bad + b'\n{"a": 2}\n')
    with pytest.raises(DataError) as info:
        list(table_files_of([Path("t.jsonl")]).chunks(ChunkLimits(memory=9**9, chunk_bytes=size)))
    assert words in str(info.value)
    assert "t.jsonl line 3" in str(info.value)
    assert "\n" not in str(info.value)


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"t.jsonl is empty: JSON Lines have one object per row"):
        as_table(tmp_path / "t.jsonl")


def test_errors_about_rows_name_the_line(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    with (
        pytest.raises(DataError, match=rf"bad value in line 2 of {tmp_path / 't.jsonl'}"),
        naming_lines(tmp_path / "t.jsonl"),
    ):
        raise DataError("bad value in ", Row(1))
