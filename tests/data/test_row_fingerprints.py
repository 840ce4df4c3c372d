"""Which rows are in another table, rows that repeat, and digests against the rule written out by hand."""

import datetime
import datetime as dt
import hashlib

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare

from fieldwise import Bag, Categorical, ColumnSplit, Label, NegativeSampling, Numeric, Schema
from fieldwise.data.prepare import row_fingerprints
from fieldwise.data.prepare.repeated_rows import count_repeats, repeat_sentences
from fieldwise.data.prepare.row_fingerprints import RowFingerprints, TrainTestOverlap
from fieldwise.runs import row_digests
from fieldwise.runs.row_digests import digest_rows
from fieldwise.storage.scratch import MemoryBudget


def table(rows: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "id": [f"row {seed}-{k}" for k in range(rows)],
            "user": rng.integers(0, 50, rows),
            "length": rng.random(rows).round(4),
            "tags": [["a", "b"][: k % 3] for k in range(rows)],
        }
    )


def overlap(one: pl.DataFrame, other: pl.DataFrame) -> TrainTestOverlap:
    return RowFingerprints.of(one, one.columns).overlap(other)


def test_a_short_table_is_compared_row_by_row_in_any_order():
    one, other = table(300), table(100, seed=1)
    assert overlap(one, one.sample(fraction=1, shuffle=True, seed=1)) == TrainTestOverlap(300, 300)
    assert overlap(one, pl.concat([other, one[7:57]])) == TrainTestOverlap(150, 50)
    assert overlap(one, other) == TrainTestOverlap(100, 0)
    for name, other_value in (
        ("id", pl.lit("x")),
        ("user", pl.col("user") + 1),
        ("tags", pl.lit(["c"])),
    ):
        assert overlap(one, one.with_columns(other_value.alias(name))).found == 0, name


def test_of_a_long_table_a_sample_tells_the_share(monkeypatch):
    monkeypatch.setattr(row_fingerprints, "MOST_HASHES", 500)
    one, other = table(20_000), table(5_000, seed=1)
    assert overlap(one, one).share == 1
    assert 490 <= overlap(one, one).checked <= 500
    mixed = overlap(one, pl.concat([other, one[:5_000]]))
    # of 10,000 rows as many hashes lie below the 500th of 20,000
    assert mixed.checked == pytest.approx(250, abs=60)
    assert mixed.share == pytest.approx(0.5, abs=0.15)
    assert overlap(one, other).found == 0


def test_how_values_are_stored_does_not_count(subtests):
    for values, same in [
        ([1, 2, None], pl.Series([1, 2, None], dtype=pl.Int8)),
        ([1, 2, None], pl.Series([1.0, 2.0, None])),
        ([0.0], pl.Series([-0.0])),
        (["a", None, "b", ""], pl.Series(["a", None, "b", ""], dtype=pl.Categorical)),
        ([True, False], pl.Series([1, 0])),
        (
            [dt.datetime(2026, 1, 2, 3)],
            pl.Series([dt.datetime(2026, 1, 2, 3)], dtype=pl.Datetime("ms")),
        ),
        ([[1, 2], []], pl.Series([[1, 2], []], dtype=pl.List(pl.Int16))),
        ([{"x": 1, "y": "a"}], pl.Series([{"x": 1, "y": "a"}])),
    ]:
        with subtests.test(values=values, same=same):
            one = pl.DataFrame({"x": values})
            assert overlap(one, pl.DataFrame({"x": same})) == TrainTestOverlap(
                len(values), len(values)
            )


def test_other_values_are_other_rows(subtests):
    for one, other in [
        (["ab", "c"], ["a", "bc"]),
        (["a", "a"], ["aa", ""]),
        ([None], [""]),
        ([0, 1], [None, 2]),
        (["é"], ["e"]),
        ([["a", "b"]], [["b", "a"]]),
        ([dt.date(2026, 1, 2)], [dt.date(2026, 1, 3)]),
    ]:
        with subtests.test(one=one, other=other):
            assert overlap(pl.DataFrame({"x": one}), pl.DataFrame({"x": other})).found == 0
    assert (
        overlap(
            pl.DataFrame({"a": ["x"], "b": ["y"]}), pl.DataFrame({"a": ["y"], "b": ["x"]})
        ).found
        == 0
    )


def test_hashes_are_the_same_on_every_machine_and_in_every_version():
    frame = pl.DataFrame({"user": ["a", "né"], "age": [3, None]})
    kept = RowFingerprints.of(frame, ["user", "age"]).to_plain()
    assert kept == {
        "rows": 2,
        "columns": ["user", "age"],
        "hashes": "7193504cc799ae83f79bd83b1f133022",
    }
    assert RowFingerprints.from_plain(kept).overlap(frame) == TrainTestOverlap(2, 2)


def test_no_two_of_many_rows_have_one_hash():
    frame = pl.DataFrame({"x": np.arange(200_000)}).with_columns(t=pl.col("x").cast(pl.String))
    for name in frame.columns:
        hashes = [
            row_fingerprints._row_hashes(part) for part in frame.select(name).iter_slices(8_192)
        ]
        assert len(np.unique(np.concatenate(hashes))) == frame.height


def test_no_rows_at_all():
    frame = table(3)
    assert overlap(frame.clear(), frame) == TrainTestOverlap(3, 0)
    assert overlap(frame, frame.clear()).share == 0


def test_a_damaged_sketch_is_told(subtests):
    for change in [{"rows": "many"}, {"columns": 3}, {"hashes": "zz"}, {"hashes": "abcd"}]:
        with subtests.test(change=change):
            plain = {**RowFingerprints.of(table(3), ["id"]).to_plain(), **change}
            with pytest.raises((LookupError, TypeError, ValueError)):
                RowFingerprints.from_plain(plain)


SCHEMA = Schema(
    fields=(Categorical("user"), Categorical("item"), Bag("tags"), Numeric("price")),
    label=Label("liked"),
)


def log(rows=900, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "row": [f"r{k}" for k in range(rows)],
            "user": rng.integers(0, 6, rows),
            "item": rng.integers(0, 5, rows),
            "tags": [[f"t{k}"] if k else None for k in rng.integers(0, 3, rows)],
            "price": pl.Series(rng.integers(0, 4, rows) / 2).replace(0.5, None),
            "liked": rng.integers(0, 2, rows),
            "at": rng.integers(0, 50, rows),
            "part": rng.choice(["train", "valid", "test"], rows, p=[0.4, 0.2, 0.4]),
        }
    )


def joined(frame, part, columns):
    known = frame.filter(part="train").select(columns).unique()
    return frame.filter(part=part).join(known, on=columns, how="semi", nulls_equal=True).height


def test_counts_are_those_of_a_plain_join(subtests):
    for keys in [(), ("row",), ("at",), ("row", "at")]:
        with subtests.test(keys=keys):
            frame = log()
            schema = Schema(fields=SCHEMA.fields, label=SCHEMA.label, keys=keys)
            prepared = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0)
            columns = ["user", "item", "tags", "price", "liked", *(["at"] if "at" in keys else [])]
            for part in ("valid", "test"):
                expected = joined(frame, part, columns)
                assert prepared.counts[f"{part}_rows_in_train"] == expected > 0
                assert expected < prepared.counts[f"{part}_rows"]


def test_a_key_that_stands_twice_is_seen_wherever_chunks_end():
    """A key that numbers the rows is left out of the comparison; with one value twice it tells rows apart."""
    schema = Schema(fields=(Categorical("item"),), label=Label("liked"), keys=("row",))
    test = pl.DataFrame({"item": ["i"], "liked": [1], "row": [-1]})
    for twice in (None, *range(12)):
        rows = [*range(12)] if twice is None else [*range(11), twice % 11]
        train = pl.DataFrame({"item": ["i"] * 12, "liked": [1] * 12, "row": rows})
        parts = {"train": train, "test": test}
        result = count_repeats(parts, schema, budget=MemoryBudget(chunk_rows=2))
        assert result == ({"test_rows_in_train": 1} if twice is None else {})


def test_rows_of_their_own_times_are_events_of_their_own():
    frame = log().with_columns(at=pl.int_range(900))
    schema = Schema(fields=SCHEMA.fields, label=SCHEMA.label, time="at")
    counts = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0).counts
    assert not any("in_train" in name for name in counts)
    assert repeat_sentences(counts) == []


def test_sampled_negatives_are_no_rows_of_the_log():
    frame = log().with_columns(liked=pl.lit(1), at=pl.int_range(900), item=pl.int_range(900) % 300)
    schema = Schema(
        fields=(Categorical("user"), Categorical("item")), label=Label("liked"), time="at"
    )
    drawn = NegativeSampling(
        user="user", item="item", per_positive=1, parts=("train", "valid", "test")
    )
    counts = prepare(
        frame, schema, split=ColumnSplit(column="part"), seed=0, negatives=drawn
    ).counts
    assert counts["negatives_drawn"] > 0
    assert "test_rows_in_train" not in counts


def test_sentences_name_rows_and_share():
    counts = {
        "valid_rows": 4000,
        "valid_rows_in_train": 2,
        "test_rows": 5000,
        "test_rows_in_train": 312,
    }
    valid, test = repeat_sentences(counts)
    assert valid.startswith("2 of 4,000 validation rows (less than .1 %) equal a training row")
    assert test.startswith(
        "312 of 5,000 test rows (6.2 %) equal a training row in all fields and the label"
    )


def rows(n):
    draws = np.random.default_rng(n)

    def some(values, kind):
        return pl.Series(
            [None if draws.random() < 0.3 else one for one in values], dtype=kind, strict=False
        )

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
    monkeypatch.setattr(row_digests, "DIGEST_ROWS", 7)
    assert [digest_rows(frame), digest_rows(chunked)] == [expected] * 2
