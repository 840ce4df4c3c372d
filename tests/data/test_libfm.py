"""libFM text: the plain reading, and every malformed line named."""

import gzip
import re
from pathlib import Path

import polars as pl
import pytest

from fieldwise.data.read.libfm import libfm_to_fields, read_libfm
from fieldwise.data.read.tables import as_table
from fieldwise.errors import DataError

LINES = ["1 0:1 12:0.5", "-1 3:1", "0.25", "+2e1  7:-1.5e-3 8:.5 "]


def test_lines_become_rows(subtests, tmp_path):
    for last in [True, False]:
        for packed in [False, True]:
            for end in ["\n", "\r\n"]:
                with subtests.test(last=last, packed=packed, end=end):
                    content = (end.join(LINES) + (end if last else "")).encode()
                    path = tmp_path / ("t.libfm.gz" if packed else "t.libfm")
                    path.write_bytes(gzip.compress(content) if packed else content)
                    frame = read_libfm(path)
                    assert frame.schema == {
                        "label": pl.Float64,
                        "ids": pl.List(pl.Int64),
                        "values": pl.List(pl.Float64),
                    }
                    # The plain reference, a row at a time.
                    rows = []
                    for line in LINES:
                        label, *pairs = line.split()
                        split = [pair.split(":") for pair in pairs]
                        rows.append((float(label), [int(i) for i, _ in split], [float(v) for _, v in split]))
                    assert frame.rows() == rows
                    assert as_table(path).equals(frame)


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
                read_libfm(path)


def test_empty_and_wrongly_encoded_files(tmp_path: Path) -> None:
    path = tmp_path / "t.libfm"
    for content in (b"", b"\n\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is empty"):
            read_libfm(path)
    path.write_bytes(b"1 0:1\n1 \xe9:1\n")
    with pytest.raises(DataError, match="line 2 holds the byte 0xe9"):
        read_libfm(path)


def test_fields_from_offsets() -> None:
    rows = pl.DataFrame(
        {"label": [1.0, -1.0], "ids": [[0, 5, 12], [4, 9, 10]], "values": [[1.0] * 3] * 2},
    )
    frame = libfm_to_fields(rows, {"user": 0, "item": 5, "city": 10})
    assert frame.schema == {"label": pl.Float64, "user": pl.Int64, "item": pl.Int64, "city": pl.Int64}
    assert frame.rows() == [(1.0, 0, 0, 2), (-1.0, 4, 4, 0)]


def test_rows_that_do_not_fit_the_fields(subtests):
    for ids, message in [
        ([0, 5], "must hold 2 features, one per field: f.libfm line 2 holds 1"),
        ([0, 5, 6], "line 2 holds 3"),
        ([5, 6], "field 'user' has the ids from 0 to 4, f.libfm line 2 holds 5"),
        ([0, 4], "field 'item' has the ids from 5, f.libfm line 2 holds 4"),
    ]:
        with subtests.test(ids=ids, message=message):
            ids = ids[:1] if "holds 1" in message else ids
            rows = pl.DataFrame({"label": [1.0, 1.0], "ids": [[0, 5], ids], "values": [[1.0] * 2, [1.0] * len(ids)]})
            with pytest.raises(DataError, match=re.escape(message)):
                libfm_to_fields(rows, {"user": 0, "item": 5}, "f.libfm")


def test_offsets_must_rise() -> None:
    rows = pl.DataFrame({"label": [1.0], "ids": [[0, 5]], "values": [[1.0, 1.0]]})
    with pytest.raises(DataError, match="offsets must increase"):
        libfm_to_fields(rows, {"user": 5, "item": 0})
