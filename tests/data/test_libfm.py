"""libFM text: the plain reading, and every malformed line named."""

import gzip
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from fieldwise.data.read.libfm import libfm_to_fields, read_libfm
from fieldwise.data.read.one_file import TextFormat
from fieldwise.data.read.pieces import Bounds
from fieldwise.data.read.source import raw_pieces
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


def lines(rows: list[tuple[int, list[tuple[int, float]]]]) -> str:
    return "".join(f"{y} {' '.join(f'{i}:{v:g}' for i, v in pairs)}\n" for y, pairs in rows)


def test_one_id_a_row_of_each_range_is_a_column(subtests, tmp_path) -> None:
    rng = np.random.default_rng(0)
    users, items, hours = rng.integers(0, 40, 90), rng.integers(40, 60, 90), rng.integers(60, 63, 90)
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
                found = as_table(path)
                if expected is None:
                    assert found.columns == ["label", "ids", "values"]
                else:
                    assert_frame_equal(found, pl.DataFrame({"label": [1.0] * 90, **expected}))
                pieces = [frame for _, frame in raw_pieces([path], TextFormat(), Bounds(piece_bytes=100))]
                assert len(pieces) > 5
                assert_frame_equal(pl.concat(pieces), found)


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
