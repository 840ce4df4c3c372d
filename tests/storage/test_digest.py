"""Digests of rows against the rule written out by hand, and by slices of any size."""

import datetime
import hashlib

import numpy as np
import polars as pl
import pytest

from fieldwise.storage import digest
from fieldwise.storage.digest import digest_rows, first_rows_digest


def rows(n):
    draws = np.random.default_rng(n)

    def some(values, kind):
        return pl.Series([None if draws.random() < 0.3 else one for one in values], dtype=kind, strict=False)

    lists = [[None if y == 2 else y for y in range(x % 4)] for x in range(n)]
    return pl.DataFrame(
        {
            "whole": some(range(n), pl.Int32),
            "full": pl.Series(range(n), dtype=pl.Int64),
            "large": some(range(n), pl.UInt64),
            "number": some(range(n), pl.Float32),
            "boolean": some([x % 2 == 1 for x in range(n)], pl.Boolean),
            "text": some([f"é{x}" for x in range(n)], pl.String),
            "category": some([f"t{x % 3}" for x in range(n)], pl.Categorical),
            "list": some(lists, pl.List(pl.Int64)),
            "lists": some([[one, one] for one in lists], pl.List(pl.List(pl.Int64))),
            "array": some([[x, 1.0] for x in range(n)], pl.Array(pl.Float32, 2)),
            "day": some([datetime.date(2020, 1, 1 + x % 28) for x in range(n)], pl.Date),
            "struct": some([{"a": x} for x in range(n)], pl.Struct({"a": pl.Int64})),
            "nothing": pl.Series([None] * n, dtype=pl.Null),
        }
    )


def test_the_rule_by_hand():
    frame = pl.DataFrame({"age": [3, None, 4], "tags": [["a", "bc"], None, []]})
    age = hashlib.sha256(bytes([0b01000000]) + b"whole" + np.array([3, 4], "<i8").tobytes())
    lengths = np.array([2, 0], "<i8").tobytes()
    inner = b"none absent" + b"text" + np.array([1, 2], "<i8").tobytes() + b"abc"
    tags = hashlib.sha256(bytes([0b01000000]) + b"list" + lengths + inner)
    whole = hashlib.sha256(b"3 rows")
    for name, column in (("age", age), ("tags", tags)):
        whole.update(len(name).to_bytes(8, "little") + name.encode() + column.digest())
    assert digest_rows(frame) == f"rows2:{whole.hexdigest()}"


@pytest.mark.parametrize("n", [0, 1, 6, 7, 8, 14, 61])
def test_the_size_of_slices_and_chunks_does_not_matter(n, monkeypatch):
    frame = rows(n)
    chunked = pl.concat([frame[: n // 3], frame[n // 3 :]], rechunk=False)
    expected = digest_rows(frame)
    first = hashlib.sha256(frame.write_ndjson().encode()).hexdigest()
    monkeypatch.setattr(digest, "SLICE_ROWS", 7)
    assert [digest_rows(frame), digest_rows(chunked)] == [expected] * 2
    assert first_rows_digest(chunked) == first
