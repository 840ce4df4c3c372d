"""Frappe: both train files, both places, raw values or ids; the published rows."""

import gzip
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.data.read.public_sets import PUBLIC_SETS

FIELDS = [
    "user",
    "item",
    "daytime",
    "weekday",
    "isweekend",
    "homework",
    "cost",
    "weather",
    "country",
    "city",
]
FIRST = "0:1 957:1 5039:1 5046:1 5053:1 5055:1 5058:1 5060:1 5069:1 5149:1"
LAST = "956:1 5038:1 5045:1 5052:1 5054:1 5057:1 5059:1 5068:1 5148:1 5381:1"
SIZES = [957, 4082, 7, 7, 2, 3, 2, 9, 80, 233]


def _files(folder: Path, train: str = "frappe.train.libfm") -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / train).write_text(f"1 {FIRST}\n-1 {LAST}\n")
    (folder / "frappe.validation.libfm").write_text(f"-1 {LAST}\r\n")
    (folder / "frappe.test.libfm.gz").write_bytes(gzip.compress(f"1 {FIRST}\r\n".encode()))


def read(folder: Path) -> pl.DataFrame:
    return replace(PUBLIC_SETS["frappe"], checksums={}).read(folder)


@pytest.mark.parametrize("below", ["", "libfm"])
@pytest.mark.parametrize("train", ["frappe.train.libfm", "frappe.train_positives.libfm"])
def test_ids_within_fields_as_text(tmp_path: Path, below: str, train: str) -> None:
    _files(tmp_path / "frappe" / below, train)
    frame = read(tmp_path)
    assert frame.schema == {"label": pl.Int64, **dict.fromkeys([*FIELDS, "split"], pl.String)}
    first, last = ["0"] * 10, [str(size - 1) for size in SIZES]
    expected = [
        (1, *first, "train"),
        (-1, *last, "train"),
        (-1, *last, "valid"),
        (1, *first, "test"),
    ]
    assert frame.rows() == expected


def test_raw_values_from_a_feature_map(tmp_path: Path) -> None:
    _files(tmp_path / "frappe")
    names = [f"{field}-{k}" for field, size in zip(FIELDS, SIZES, strict=True) for k in range(size)]
    lines = [f'{i},{name.split("-")[0]},"{name}, raw"' for i, name in enumerate(names)]
    (tmp_path / "frappe" / "feature_map.csv").write_text(
        "feature_id,field,raw_value\n" + "\n".join(lines) + "\n"
    )
    frame = read(tmp_path)
    assert frame.row(0)[1:-1] == tuple(f"{field}-0, raw" for field in FIELDS)
    assert frame.row(1)[1:-1] == tuple(
        f"{field}-{size - 1}, raw" for field, size in zip(FIELDS, SIZES, strict=True)
    )
    (tmp_path / "frappe" / "feature_map.csv").write_text("feature_id,field,raw_value\n0,user,a\n")
    with pytest.raises(DataError, match="each feature id from 0 to 5381 once"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 0:1", "line 1 holds 1"),
        (
            f"1 {FIRST}".replace("957:1", "956:1"),
            "field 'item' has the ids from 957 to 5038: .* line 1 holds 956",
        ),
        (
            f"1 {FIRST}".replace("5149:1", "5382:1"),
            "field 'city' has the ids from 5149 to 5381: .* line 1 holds 5382",
        ),
    ],
)
def test_malformed_rows(tmp_path: Path, line: str, message: str) -> None:
    _files(tmp_path / "frappe")
    (tmp_path / "frappe" / "frappe.train.libfm").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_foreign_files(tmp_path: Path) -> None:
    _files(tmp_path / "frappe")
    with pytest.raises(
        DataError, match=r"frappe\.train\.libfm is not the official file: its git-sha1 is"
    ):
        PUBLIC_SETS["frappe"].read(tmp_path)


def test_the_published_rows(real_data: Path) -> None:
    frame = PUBLIC_SETS["frappe"].read(real_data)
    counts = {
        s: (n, p)
        for s, n, p in frame.group_by("split")
        .agg(pl.len(), (pl.col("label") == 1).sum())
        .iter_rows()
    }
    assert counts["valid"] == (57_722, 19_063)
    assert counts["test"] == (28_860, 9_536)
    # The published train file, or its positives alone.
    assert counts["train"] in {(202_027, 67_604), (67_604, 67_604)}
    assert set(frame.get_column("label").unique()) == {-1, 1}
    for field, size in zip(FIELDS, SIZES, strict=True):
        assert frame.get_column(field).n_unique() <= size
    positives = frame.filter(pl.col("label") == 1)
    assert positives.height == 96_203
    assert positives.select(pl.col("user", "item").n_unique()).row(0) == (957, 4_082)
    assert set(frame.get_column("weekday").unique()) == {
        *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
    }
