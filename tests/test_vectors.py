"""A column of vectors from training to a served score, and what is wrong with one in a sentence."""

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import Categorical, DataError, Encoder, Label, Numeric, Schema, Vector
from fieldwise.data.table import EncodedTable
from fieldwise.data.vector_column import VectorColumn

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Numeric("price", role="item", transform="none"),
        Vector("text", role="item"),
    ),
    label=Label("click"),
)
VECTORS = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def log(rows: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    item = rng.integers(0, 5, rows)
    texts = VECTORS[item].tolist()
    texts[3] = None
    texts[4] = []
    return pl.DataFrame(
        {
            "user": rng.integers(0, 4, rows),
            "price": rng.normal(size=rows),
            "text": pl.Series(texts, dtype=pl.List(pl.Float32)),
            "click": rng.integers(0, 2, rows),
        }
    )


def expected_values(frame):
    """Price and vector of each row by a loop, zeros where it is missing."""
    rows = []
    for price, text in frame.select("price", "text").iter_rows():
        rows.append([np.float32(price), *(text or [0.0] * 6)])
    return np.array(rows, np.float32)


def test_equal_vectors_are_kept_once_and_stand_between_the_numbers(tmp_path):
    frame = log()
    encoder = Encoder.fit(frame, SCHEMA)
    table = encoder.transform(frame)
    (column,) = table.vectors
    assert column.matrix.shape == (5, 6)
    assert table.values.shape == (40, 1)
    batch, _ = table.batch(slice(0, 40))
    np.testing.assert_array_equal(batch.values, expected_values(frame))
    norms = np.square(expected_values(frame)[:, 1:].astype(float)).sum(1)
    assert encoder.fitted[2].scale == pytest.approx(1 / np.sqrt(norms[norms > 0].mean()))

    table.save(tmp_path / "t")
    opened = EncodedTable.open(tmp_path / "t")
    assert opened.layout == table.layout
    np.testing.assert_array_equal(opened.batch(slice(0, 40))[0].values, batch.values)
    taken = opened.take(np.array([3, 39, 0]))
    np.testing.assert_array_equal(taken.batch(slice(0, 3))[0].values, batch.values[[3, 39, 0]])
    order = np.random.default_rng(0).permutation(40)
    ordered = [b.values for b, _ in opened.batches(16, order=torch.from_numpy(order))]
    np.testing.assert_array_equal(np.concatenate(ordered), batch.values[order])


def test_half_precision_is_kept():
    frame = log().with_columns(pl.col("text").cast(pl.List(pl.Float16)))
    table = Encoder.fit(frame, SCHEMA).transform(frame)
    assert table.vectors[0].matrix.dtype == np.float16
    expected = expected_values(frame)[:, 1:]
    np.testing.assert_array_equal(table.batch(slice(0, 40))[0].values[:, 1:], expected)


def test_columns_of_several_tables_are_joined():
    one = VectorColumn(np.array([1, -1], np.int32), np.float32([[1], [2]]))
    two = VectorColumn(np.array([0], np.int32), np.float32([[3]]))
    both = VectorColumn.joined([one, two])
    assert both.numbers(slice(0, 3)).ravel().tolist() == [2, 0, 3]
    same = VectorColumn.joined([one, one.take(np.array([1, 0]))])
    assert same.matrix is one.matrix
    assert same.rows.tolist() == [1, -1, -1, 1]


WRONG = [
    (
        [[1.0, 2.0], [1.0]],
        r"column .text. \(field .text.\) has vectors of 2 numbers, and one of 1 in row 1",
    ),
    ([[1.0, 2.0], [float("nan"), 1.0]], "must be finite: .* holds NaN or null in row 1"),
    ([[1.0, 2.0], [float("inf"), 1.0]], "must be finite: .* holds inf in row 1"),
    ([[1.0, 2.0], [None, 1.0]], "must be finite: .* holds NaN or null in row 1"),
    (["[1, 2]", "[3, 4]"], "must be a list of numbers: .* is of type String"),
    ([None, None], "is null or empty in all 2 training rows"),
    ([[0.5] * 5000] * 2, "at most 4,096 numbers: .* has 5,000"),
]


def test_what_is_no_vector_is_said(subtests):
    schema = Schema(fields=(Vector("text"),), label=Label("click"))
    for cells, message in WRONG:
        with subtests.test(message=message), pytest.raises(DataError, match=message):
            Encoder.fit(pl.DataFrame({"text": cells}), schema)
    encoder = Encoder.fit(pl.DataFrame({"text": [[1.0, 2.0]]}), schema)
    with pytest.raises(DataError, match="has vectors of 2 numbers, and one of 3 in row 0"):
        encoder.transform(pl.DataFrame({"text": [[1.0, 2.0, 3.0]]}))
