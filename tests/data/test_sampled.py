"""Samples of tables that are too large to look at as a whole, and schemas inferred from them."""

import numpy as np
import polars as pl
import pytest

from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.read import sampled
from fieldwise.data.read.lines import naming_lines
from fieldwise.data.read.sampled import RowSampler, sample_table
from fieldwise.errors import SchemaError


@pytest.fixture
def _small(monkeypatch):
    monkeypatch.setattr(sampled, "WHOLE", 1000)
    monkeypatch.setattr(sampled, "MOST_ROWS", 3000)


def drawn(rows: int, most: int, piece: int, seed: int) -> np.ndarray:
    sampler = RowSampler(most, seed)
    for start in range(0, rows, piece):
        sampler.add(pl.DataFrame({"n": np.arange(start, min(start + piece, rows))}))
    frame, numbers = sampler.finish()
    assert frame["n"].to_list() == numbers.tolist()
    assert sampler.rows == rows
    return numbers


def test_a_sample_does_not_depend_on_the_pieces_and_is_uniform():
    first = drawn(20_000, 500, 7_000, seed=3)
    assert len(first) == 500
    assert np.all(np.diff(first) > 0)
    for piece in (300, 20_000):
        np.testing.assert_array_equal(drawn(20_000, 500, piece, seed=3), first)
    assert len(np.intersect1d(drawn(20_000, 500, 7_000, seed=4), first)) < 50
    np.testing.assert_array_equal(drawn(300, 500, 7, seed=3), np.arange(300))
    counts = sum(np.bincount(drawn(1000, 100, 1000, seed) // 100, minlength=10) for seed in range(100))
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000), "a tenth of the rows gives a tenth of the sample"


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_schema_of_a_large_table_is_that_of_all_its_rows(tmp_path, suffix):
    rng = np.random.default_rng(0)
    rows = 30_000
    frame = pl.DataFrame(
        {
            "user_id": rng.integers(0, 15_000, rows),  # nine of ten differ in a sample, less than half in all
            "event_id": [f"e{k}" for k in rng.permutation(rows)],
            "query": [f"q{k}" for k in rng.integers(0, 15_000, rows)],
            "day": rng.choice(["mon", "tue", "wed"], rows),
            "code": ["1"] * (rows - 1) + ["x"],
            "click": rng.integers(0, 2, rows),
        }
    )
    for k, part in enumerate(frame.iter_slices(11_000)):
        path = tmp_path / f"{k}.{suffix}"
        part.write_csv(path) if suffix == "csv" else part.write_parquet(path)
    sample = sample_table(tmp_path)
    assert (sample.rows, sample.frame.height) == (rows, 3000)
    assert sample.frame.schema == frame.schema, "types are those of all rows"
    assert sample.frame.equals(frame[sample.kept])
    assert {k // 10_000 for k in sample.kept.tolist()} == {0, 1, 2}
    found, expected = infer_schema(tmp_path), infer_schema(frame)
    assert [(f.name, f.kind) for f in found.schema.fields] == [
        ("user_id", "categorical"),
        ("query", "categorical"),
        ("day", "categorical"),
    ]
    assert found.schema.fields == tuple(f for f in expected.schema.fields if f.name != "code")
    assert found.notes["event_id"].startswith("omitted: nearly every cell is different")
    assert found.to_toml().startswith(
        "# Inferred from 3,000 of 30,000 rows, drawn at random from all files: check and correct it."
    )


@pytest.mark.usefixtures("_small")
def test_errors_name_the_rows_of_the_whole_table(tmp_path):
    rows = 30_000
    frame = pl.DataFrame(
        {"x": [f"v{k % 7}" for k in range(rows)], "click": [None if k >= 20_000 else k % 2 for k in range(rows)]}
    )
    frame.head(15_000).write_csv(tmp_path / "a.csv")
    frame.tail(15_000).write_csv(tmp_path / "b.csv")
    with pytest.raises(SchemaError) as e, naming_lines(tmp_path):
        infer_schema(tmp_path)
    first = int(sample_table(tmp_path).kept.searchsorted(20_000))
    number = int(sample_table(tmp_path).kept[first])
    assert f"line {number - 15_000 + 2} of {tmp_path / 'b.csv'}" in str(e.value)
