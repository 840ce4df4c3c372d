import datetime as dt

import numpy as np
import polars as pl
import pytest

from fieldwise.data.prepare import row_sketch
from fieldwise.data.prepare.row_sketch import Overlap, RowSketch
from fieldwise.errors import DataError


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


def overlap(one: pl.DataFrame, other: pl.DataFrame) -> Overlap:
    return RowSketch.of(one, one.columns).overlap(other)


def test_a_short_table_is_compared_row_by_row_in_any_order():
    one, other = table(300), table(100, seed=1)
    assert overlap(one, one.sample(fraction=1, shuffle=True, seed=1)) == Overlap(300, 300)
    assert overlap(one, pl.concat([other, one[7:57]])) == Overlap(150, 50)
    assert overlap(one, other) == Overlap(100, 0)
    for name, other_value in (("id", pl.lit("x")), ("user", pl.col("user") + 1), ("tags", pl.lit(["c"]))):
        assert overlap(one, one.with_columns(other_value.alias(name))).found == 0, name


def test_of_a_long_table_a_sample_tells_the_share(monkeypatch):
    monkeypatch.setattr(row_sketch, "MOST_HASHES", 500)
    one, other = table(20_000), table(5_000, seed=1)
    assert overlap(one, one).share == 1
    assert 490 <= overlap(one, one).checked <= 500
    mixed = overlap(one, pl.concat([other, one[:5_000]]))
    assert mixed.checked == pytest.approx(250, abs=60)  # of 10,000 rows as many hashes lie below the 500th of 20,000
    assert mixed.share == pytest.approx(0.5, abs=0.15)
    assert overlap(one, other).found == 0


def test_how_values_are_stored_does_not_count(subtests):
    for values, same in [
        ([1, 2, None], pl.Series([1, 2, None], dtype=pl.Int8)),
        ([1, 2, None], pl.Series([1.0, 2.0, None])),
        ([0.0], pl.Series([-0.0])),
        (["a", None, "b", ""], pl.Series(["a", None, "b", ""], dtype=pl.Categorical)),
        ([True, False], pl.Series([1, 0])),
        ([dt.datetime(2026, 1, 2, 3)], pl.Series([dt.datetime(2026, 1, 2, 3)], dtype=pl.Datetime("ms"))),
        ([[1, 2], []], pl.Series([[1, 2], []], dtype=pl.List(pl.Int16))),
        ([{"x": 1, "y": "a"}], pl.Series([{"x": 1, "y": "a"}])),
    ]:
        with subtests.test(values=values, same=same):
            one = pl.DataFrame({"x": values})
            assert overlap(one, pl.DataFrame({"x": same})) == Overlap(len(values), len(values))


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


def test_columns_that_change_places_are_other_rows():
    one = pl.DataFrame({"a": ["x"], "b": ["y"]})
    assert overlap(one, pl.DataFrame({"a": ["y"], "b": ["x"]})).found == 0


def test_hashes_are_the_same_on_every_machine_and_in_every_version():
    frame = pl.DataFrame({"user": ["a", "né"], "age": [3, None]})
    kept = RowSketch.of(frame, ["user", "age"]).to_plain()
    assert kept == {"rows": 2, "columns": ["user", "age"], "hashes": "7193504cc799ae83f79bd83b1f133022"}
    assert RowSketch.from_plain(kept).overlap(frame) == Overlap(2, 2)


def test_no_two_of_many_rows_have_one_hash():
    frame = pl.DataFrame({"x": np.arange(200_000)}).with_columns(t=pl.col("x").cast(pl.String))
    for name in frame.columns:
        hashes = [row_sketch._row_hashes(part) for part in frame.select(name).iter_slices(8_192)]
        assert len(np.unique(np.concatenate(hashes))) == frame.height


def test_no_rows_at_all():
    frame = table(3)
    assert overlap(frame.clear(), frame) == Overlap(3, 0)
    assert overlap(frame, frame.clear()).share == 0


def test_a_damaged_sketch_is_told(subtests):
    for change in [{"rows": "many"}, {"columns": 3}, {"hashes": "zz"}, {"hashes": "abcd"}]:
        with subtests.test(change=change):
            plain = {**RowSketch.of(table(3), ["id"]).to_plain(), **change}
            with pytest.raises(DataError, match="rows, columns and hashes"):
                RowSketch.from_plain(plain)
