"""Preparation piece by piece in files gives what preparation in memory gives, to the bit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from pieces_lab import CASES, SCHEMA, assert_equal, log, prepared, rows_of

from fieldwise.data.encode.counting import TextCounts
from fieldwise.data.encode.encoder import Encoder, encoded_pieces
from fieldwise.data.encode.fitted import Vocabulary
from fieldwise.data.encode.learning import count_column, learn_field, learn_pieces, quantile_edges
from fieldwise.data.encode.pieces import save_pieces
from fieldwise.data.prepare.cuts import time_cuts
from fieldwise.data.prepare.grouping import group_rows, rank_texts
from fieldwise.data.prepare.ordering import order_numbers
from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.split_settings import (
    ColumnSplit,
    LeaveLastOutSplit,
    RandomSplit,
    TimeSplit,
)
from fieldwise.data.table import ARRAYS
from fieldwise.errors import DataError
from fieldwise.schema import Label, Numeric
from fieldwise.storage.scratch import IN_MEMORY, Scratch


@pytest.mark.parametrize("case", CASES)
def test_pieces_and_files_change_nothing(case: str, tmp_path: Path) -> None:
    schema, split, add = CASES[case]
    rows, whole = rows_of(case), prepared(case)
    for piece in (1_000_000, 101):
        (tmp_path / str(piece)).mkdir()
        scratch = Scratch(tmp_path / str(piece), piece=piece)
        assert_equal(prepare(rows, schema, split=split, seed=3, add=add, scratch=scratch), whole)
    assert any((tmp_path / "101").iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rating": None}, r"1 of 900 rows have none in column 'rating', the first is row 700 "),
        ({"text_price": "dear"}, r"column 'text_price' .* holds the text 'dear' in row 700 "),
        ({"day": None}, r"column 'day' holds None in row 700 "),
        ({"minutes": float("inf")}, r"'minutes' holds inf in row 700 "),
        ({"part": "else"}, r"column 'part' holds 'else' in row 700 "),
        ({"user": None}, r"column 'user' has none in row 700 "),
    ],
)
def test_errors_count_the_rows_of_the_whole_table(change: dict[str, object], message: str, tmp_path: Path) -> None:
    ((column, value),) = change.items()
    rows = log().with_row_index("n")
    rows = rows.with_columns(pl.when(pl.col("n") == 700).then(pl.lit(value)).otherwise(pl.col(column)).alias(column))
    split = {
        "part": ColumnSplit(column="part", valid_share=0.2),
        "user": LeaveLastOutSplit(),
        "day": TimeSplit(),
    }.get(column, RandomSplit())
    for scratch in (IN_MEMORY, Scratch(tmp_path, piece=64)):
        with pytest.raises(DataError, match=message):
            prepare(
                rows,
                dataclasses.replace(SCHEMA, label=Label("rating", positive_above=3)),
                split=split,
                seed=0,
                scratch=scratch,
            )


def test_cuts_by_time_are_the_closest_pair() -> None:
    for seed in range(40):
        cuts_are_the_closest_pair(seed)


def cuts_are_the_closest_pair(seed: int) -> None:
    draw = np.random.default_rng(seed)
    ordered = np.sort(draw.integers(0, draw.integers(3, 12), draw.integers(3, 40)))
    if len(np.unique(ordered)) < 3:
        ordered = np.append(ordered, [20, 21, 22])
    shares = (draw.uniform(0.05, 0.45), draw.uniform(0.05, 0.45))
    targets = np.round(len(ordered) * (1 - np.array([sum(shares), shares[1]])), 6)
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    pairs = [(a, b) for a in cuts for b in cuts if a < b]
    best = min(pairs, key=lambda pair: (round(float(np.abs(np.array(pair) - targets).sum()), 9), pair))
    assert time_cuts(ordered, shares) == (ordered[best[0]], ordered[best[1]]), f"seed {seed}"


@pytest.mark.parametrize("form", [str, int])
def test_counts_in_files_are_those_in_memory(form: Callable[[int], str | int], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    texts = [form(k) for k in draw.zipf(1.2, 5_000) % 3_000]
    held, moved = TextCounts(IN_MEMORY), TextCounts(Scratch(tmp_path), most=100)
    for start in range(0, len(texts), 50):
        found, counts = np.unique(texts[start : start + 50], return_counts=True)
        for one in (held, moved):
            one.add(pl.Series(found), counts)
    assert any(tmp_path.rglob("*.arrow"))
    every, number = np.unique(texts, return_counts=True)
    for one in (held, moved):
        kept, rare = one.at_least(3)
        assert kept.schema["text"] == (pl.String if form is str else pl.Int64)
        assert not one.at_least(10_000)[0].height
        assert dict(kept.rows()) == {t: n for t, n in zip(every, number, strict=True) if n >= 3}
        assert rare == (number < 3).sum()


def test_quantiles_with_point_masses_are_numpys_of_the_rest() -> None:
    draw = np.random.default_rng(0)
    number = np.concatenate([np.zeros(500), np.full(300, 9.5), draw.normal(size=200)])
    draw.shuffle(number)
    rest = number[(number != 0) & (number != 9.5)]
    above = np.min(number[number > 0])
    wanted = np.concatenate([[0, 9.5, above], np.quantile(rest, np.linspace(0, 1, 4)[1:-1])])
    np.testing.assert_array_equal(np.sort(quantile_edges(number, 5, IN_MEMORY, point_masses=True)), np.sort(wanted))


def test_groups_of_rows_are_whole_and_complete(tmp_path: Path) -> None:
    column = pl.Series([f"u{k}" for k in np.random.default_rng(0).zipf(1.5, 400) % 50]).set(
        pl.Series([k % 17 == 0 for k in range(400)]), None
    )
    groups = list(group_rows(rank_texts(column, Scratch(tmp_path, piece=30)), Scratch(tmp_path, piece=30)))
    assert len(groups) > 3
    rows = np.concatenate([some.rows for some in groups])
    assert sorted(rows.tolist()) == [k for k in range(400) if k % 17]
    seen: set[str] = set()
    for some in groups:
        users = column.gather(some.rows).to_list()
        for code in range(len(some.counts)):
            own = some.rows[some.codes == code]
            assert len({users[k] for k in np.flatnonzero(some.codes == code)}) == 1
            assert (np.diff(own) > 0).all()
        assert not seen & set(users)
        seen |= set(users)


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match="the disk is full: cannot write"):
        Scratch(tmp_path, piece=10).empty(100, np.int64)


def test_a_long_vocabulary_finds_texts_by_their_hashes() -> None:
    values = tuple(f"v{k * 7919:x}" for k in range(60_000))
    draw = np.random.default_rng(0)
    texts = [values[k] if k < len(values) else f"new {k}" for k in draw.integers(0, 70_000, 5_000)]
    texts[7:9] = [None, ""]
    vocabulary = Vocabulary(values=values)
    assert vocabulary.ids(pl.Series(texts)).tolist() == vocabulary.ids_of(texts).tolist()
    assert vocabulary.ids(pl.Series(texts)).dtype == np.int32
    assert "_hashes" in vars(vocabulary)


def test_times_of_text_with_a_format_are_read_in_pieces(tmp_path: Path) -> None:
    days = [f"{1 + k % 28:02}.{1 + k % 12:02}.2026" for k in np.random.default_rng(0).integers(0, 300, 500)]
    frame = pl.DataFrame({"day": days})
    whole = order_numbers(frame, "day", "time", "%d.%m.%Y")
    found = order_numbers(frame, "day", "time", "%d.%m.%Y", scratch=Scratch(tmp_path, piece=64))
    np.testing.assert_array_equal(found, whole, strict=True)
    broken = frame.with_columns(day=pl.when(pl.int_range(pl.len()) == 300).then(pl.lit("soon")).otherwise("day"))
    with pytest.raises(DataError, match="holds 'soon' in row 300 "):
        order_numbers(broken, "day", "time", "%d.%m.%Y", scratch=Scratch(tmp_path, piece=64))


def test_pieces_written_to_a_folder_are_the_table_that_is_saved_whole(tmp_path: Path) -> None:
    frame = log()[:300]
    encoder = Encoder.fit(frame, SCHEMA)
    y = np.linspace(0, 1, 300, dtype=np.float32)[:, None]
    encoder.transform(frame, y=y).save(tmp_path / "whole")
    pieces = [(slice(at, at + 100), encoder.transform(frame[at : at + 100])) for at in (0, 100, 200)]
    save_pieces(tmp_path / "pieces", encoder.layout, 300, pieces, y, Scratch(tmp_path))
    found = {path.name: path.read_bytes() for path in (tmp_path / "pieces").iterdir()}
    assert found == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert len(found) >= 5


def test_encoded_pieces_take_the_memory_of_the_piece_before_the_last(tmp_path: Path) -> None:
    frame = log()[:300]
    encoder = Encoder.fit(frame, SCHEMA)
    starts: list[tuple[int, int]] = []
    for at, table in encoded_pieces(encoder, frame, Scratch(tmp_path, piece=70), first_row=7):
        alone = encoder.transform(frame[at])
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(table, name), getattr(alone, name), strict=True)
        starts.append((table.ids.ctypes.data, table.values.ctypes.data))
    assert len(starts) == 5
    assert starts[0] == starts[2] == starts[4] != starts[1] == starts[3]


def test_numbers_without_statistics_are_not_kept(tmp_path: Path, subtests: pytest.Subtests) -> None:
    column = pl.Series("price", [3.0, None, -8.0, 1e30])
    kept: dict[str, list[float]] = {"none": [], "log": [], "minmax": [3.0, -8.0, 1e30], "standard": [3.0, -8.0, 1e30]}
    for transform, numbers in kept.items():
        with subtests.test(transform=transform):
            field = Numeric("price", transform=transform)
            counted = count_column(field, column)
            assert (counted.rows, counted.present) == (4, 3)
            assert counted.values.get_column("number").to_list() == numbers
            assert learn_pieces(field, column, Scratch(tmp_path, piece=2)) == learn_field(field, column)[0]
            with pytest.raises(DataError, match=r"column 'price' .* is null or empty in all 4 training rows"):
                learn_pieces(field, column.clear(4), Scratch(tmp_path, piece=2))
