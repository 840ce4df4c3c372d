"""Coding a column and assembling rows against plain loops, by one thread and by several, in blocks of any size."""

import datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.encode import assemble
from fieldwise.data.encode.coded import coded
from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.encoder import Encoder
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Label, Numeric, Schema, Sequence
from fieldwise.storage import threads

COLUMNS = [
    pl.Series(["a", "", None, "b", "a", " a"]),
    pl.Series(["b", None, "a"], dtype=pl.Categorical),
    pl.Series([3, None, -7, 3]),
    pl.Series([2**62, None, -(2**63), 2**63 - 1]),
    pl.Series([-(2**63), -(2**63) + 1]),
    pl.Series([*range(-3500, 3500, 14), None, -3500]),  # a lookup table some seven times as long as the column
    pl.Series([*range(-4500, 4500, 18), None, -4500]),  # nine times
    pl.Series([-128, 127, None], dtype=pl.Int8),
    pl.Series([2**64 - 1, 2**64 - 2, None], dtype=pl.UInt64),
    pl.Series([0.0, -0.0, 1.0, 2.5, float("nan"), None, 1e300, float("inf")]),
    pl.Series([True, None, False]),
    pl.Series([datetime.date(2026, 1, 2), None]),
    pl.Series(["1.10", "1.1", None]).cast(pl.Decimal(10, 2)),
    pl.Series([None, None]),
    pl.Series([], dtype=pl.Int64),
    pl.Series([], dtype=pl.String),
]


def test_codes_stand_for_the_cells_texts(subtests):
    for column in COLUMNS:
        with subtests.test(column=column):
            cells, reference = coded(column), as_text(column).to_list()
            texts = [*cells.texts.to_list(), None]
            assert [texts[code] for code in cells.codes] == reference
            assert len(set(texts)) == len(texts)
            assert dict(zip(texts, cells.counts().tolist(), strict=False)) == {
                t: reference.count(t) for t in texts[:-1]
            }
            assert cells.look_up(np.arange(10, 10 + len(texts) - 1, dtype=np.int32), -1).tolist() == [
                -1 if text is None else 10 + texts.index(text) for text in reference
            ]


def test_a_column_of_lists_is_refused() -> None:
    with pytest.raises(DataError, match="a cell must hold one value: column 'l' is of type List"):
        coded(pl.Series("l", [[1]]))


@given(st.lists(st.lists(st.integers(-9, 9), min_size=7, max_size=7), max_size=4), st.integers(1, 9))
def test_rows_of_columns_in_blocks_of_any_size(columns: list[list[int]], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "BLOCK", block)
        patch.setattr(threads, "FEW_ROWS", 0)
        found = assemble.rows_of(
            [np.array(c) for c in columns], 7, np.int32, add=[100 * k for k in range(len(columns))]
        )
    assert found.tolist() == [[c[n] + 100 * k for k, c in enumerate(columns)] for n in range(7)]


SCHEMA = Schema(
    fields=(
        Categorical("word", min_count=2),
        Categorical("number"),
        Categorical("hashed", column="word", hash_buckets=5),
        Numeric("x"),
        Numeric("bins", column="x", encoding="quantile", bins=3),
        Bag("tags"),
        Sequence("seen", shares="number", max_length=2),
    ),
    label=Label("y"),
)


def dirty(rows: int, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)

    def pick(values: list[object]) -> list[object]:
        return [values[k] for k in rng.integers(0, len(values), rows)]

    return pl.DataFrame(
        {
            "word": pick(["a", "b", "", " b", None, "12", "é"]),
            "number": pick([1, 2, 3, None, 2**40]),
            "x": pick([0.5, -1.0, None, 3.0, 2.0]),
            "tags": pick(["p|q", "", None, "q| r|", "p"]),
            "seen": pick([[1, 2, 3], [], None, [7], [None, 2]]),
        }
    )


@pytest.mark.parametrize("few", [0, 10**9], ids=["threads", "one thread"])
def test_fit_transform_is_fit_and_transform(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    train, other = dirty(300, 0), dirty(200, 1)
    reference = Encoder.fit(train, SCHEMA)
    expected = reference.transform(train), reference.transform(other)
    monkeypatch.setattr(threads, "FEW_ROWS", few)
    monkeypatch.setattr(assemble, "BLOCK", 64)
    encoder, table = Encoder.fit_transform(train, SCHEMA)
    assert encoder == reference == Encoder.fit(train, SCHEMA)
    for found, rows in zip((table, encoder.transform(other)), expected, strict=True):
        for name in ("ids", "values", "bag_ids", "bag_offsets"):
            np.testing.assert_array_equal(getattr(found, name), getattr(rows, name), strict=True)
    table, at = expected[1], {f.name: f.offset + 1 for f in reference.layout.fields}
    cells = np.split(table.bag_ids, table.bag_offsets[1:-1])  # tags and seen of each row
    assert encoder.unseen_in(table) == {
        "word": (table.ids[:, 0] == at["word"]).mean(),
        "number": (table.ids[:, 1] == at["number"]).mean(),
        "tags": (np.concatenate(cells[::2]) == at["tags"]).mean(),
        "seen": (np.concatenate(cells[1::2]) == at["seen"]).mean(),
    }


def test_of_several_bad_fields_the_first_is_named_by_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FEW_ROWS", 0)
    schema = Schema(fields=(Categorical("ok"), Numeric("bad"), Numeric("worse")), label=Label("y"))
    frame = pl.DataFrame({"ok": ["a"], "bad": ["x"], "worse": ["y"]})
    for call in (Encoder.fit, Encoder.fit_transform):
        with pytest.raises(DataError, match="column 'bad'"):
            call(frame, schema)
