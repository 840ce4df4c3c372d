"""Splits against counts worked by hand, and against plain Python done row by row."""

import dataclasses
from datetime import date, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise.config import parse
from fieldwise.data.prepare.split_kind import SplitColumns
from fieldwise.data.prepare.split_settings import (
    SPLITS,
    ColumnSplit,
    LeaveLastOutSplit,
    RandomSplit,
    SplitSettings,
    TimeSplit,
)
from fieldwise.data.prepare.splits import Split, hold_out, split_table
from fieldwise.errors import ConfigError, DataError


def covers_once(split: Split, rows: int) -> bool:
    parts = (split.train, split.valid, split.test)
    ordered = all(p.dtype == np.int64 and (np.diff(p) > 0).all() for p in parts)
    return ordered and sorted(np.concatenate(parts).tolist()) == list(range(rows))


def rows(n: int) -> pl.DataFrame:
    return pl.DataFrame({"t": np.arange(n)})


def test_random_sizes_are_the_shares_exactly() -> None:
    split = split_table(rows(1234), RandomSplit(valid=0.1, test=0.25), seed=3)
    assert split.sizes == {"train": 1234 - 123 - 309, "valid": 123, "test": 309}  # 123.4 and 308.5, half up
    assert covers_once(split, 1234)


def test_random_follows_the_seed() -> None:
    one, same, other = (split_table(rows(200), RandomSplit(), seed=s) for s in (1, 1, 2))
    assert one.test.tolist() == same.test.tolist() != other.test.tolist()


def test_stratified_keeps_class_shares() -> None:
    y = np.random.default_rng(0).permutation(np.repeat([0.0, 1.0], [937, 63]))
    split = split_table(rows(1000), RandomSplit(valid=0.2, test=0.1, stratify=True), seed=0, y=y)
    assert split.sizes == {"train": 700, "valid": 200, "test": 100}
    assert y[split.test].sum() == 6  # 6.3
    assert y[split.valid].sum() == 13  # 12.6
    assert covers_once(split, 1000)


def test_stratify_needs_a_label_with_several_rows_a_value() -> None:
    with pytest.raises(DataError, match="needs the label"):
        split_table(rows(9), RandomSplit(stratify=True))
    with pytest.raises(DataError, match="at least 3 rows of each value of the label: 2 has 1"):
        split_table(rows(9), RandomSplit(stratify=True), y=np.array([0, 1, 2, 0, 0, 0, 1, 1, 1]))
    with pytest.raises(DataError, match="found 2 targets and 9 rows"):
        split_table(rows(9), RandomSplit(stratify=True), y=np.zeros(2))


def test_time_ties_stay_together_at_the_nearest_cut() -> None:
    # Rows before each possible cut: 4 | 7 | 8 | 9. Wanted with .2 and .2: 6 and 8, so 7 (nearest to 6) and 8.
    t = [3, 1, 1, 2, 1, 2, 4, 1, 2, 9]
    split = split_table(pl.DataFrame({"t": t}), TimeSplit(valid=0.2, test=0.2), SplitColumns(time="t"))
    assert [sorted(t[i] for i in p) for p in (split.train, split.valid, split.test)] == [
        [1, 1, 1, 1, 2, 2, 2],
        [3],
        [4, 9],
    ]


def test_time_cuts_that_collide_are_parted_in_the_better_way() -> None:
    # Cuts at 1 | 9 of 10 rows; both targets (8 and 9) are nearest to 9: only 1 and 9 leaves no part empty.
    split = split_table(
        pl.DataFrame({"t": [0] + [1] * 8 + [2]}), TimeSplit(valid=0.1, test=0.1), SplitColumns(time="t")
    )
    assert split.sizes == {"train": 1, "valid": 8, "test": 1}


def test_equally_near_cuts_take_the_earlier() -> None:
    # Cuts at 2 | 6 | 8 of 10, wanted 4 and 8.
    t = [0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    split = split_table(pl.DataFrame({"t": t}), TimeSplit(valid=0.4, test=0.2), SplitColumns(time="t"))
    assert split.sizes == {"train": 2, "valid": 6, "test": 2}


def test_time_may_be_dates_numbers_or_text_of_either(subtests):
    for column in [
        pl.Series("t", [date(2026, 1, d) for d in (5, 1, 2, 4, 3)]),
        pl.Series("t", [datetime(2026, 1, 1, h) for h in (5, 1, 2, 4, 3)]),
        pl.Series("t", [f"2026-01-0{d}" for d in (5, 1, 2, 4, 3)]),
        pl.Series("t", ["50", "7", "8", "40", "9"]),
        pl.Series("t", [5.5, 1.0, 2.0, 4.0, 3.0]),
    ]:
        with subtests.test(column=column):
            split = split_table(column.to_frame(), TimeSplit(valid=0.2, test=0.2, column="t"))
            assert (split.train.tolist(), split.valid.tolist(), split.test.tolist()) == ([1, 2, 4], [3], [0])


@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=40).filter(lambda t: len(set(t)) >= 3),
    st.floats(0.05, 0.45),
    st.floats(0.05, 0.45),
)
@settings(max_examples=100, deadline=None)
def test_time_split_is_the_best_of_all_pairs_of_cuts(t: list[int], valid: float, test: float) -> None:
    split = split_table(pl.DataFrame({"t": t}), TimeSplit(valid=valid, test=test), SplitColumns(time="t"))
    assert covers_once(split, len(t))
    times = [{t[i] for i in p} for p in (split.train, split.valid, split.test)]
    assert max(times[0]) < min(times[1]) <= max(times[1]) < min(times[2])
    cuts = [sum(v < u for v in t) for u in sorted(set(t))[1:]]
    want = len(t) * (1 - valid - test), len(t) * (1 - test)
    best = min(abs(a - want[0]) + abs(b - want[1]) for a in cuts for b in cuts if a < b)
    got = abs(len(split.train) - want[0]) + abs(len(split.train) + len(split.valid) - want[1])
    assert got == pytest.approx(best, abs=1e-4)
    backwards = split_table(pl.DataFrame({"t": t[::-1]}), TimeSplit(valid=valid, test=test), SplitColumns(time="t"))
    assert sorted(t[::-1][i] for i in backwards.test) == sorted(t[i] for i in split.test)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 2),
)
@settings(max_examples=100, deadline=None)
def test_leave_last_out_as_a_plain_loop_does_it(log: list[tuple[str, int]], valid: int, test: int, least: int) -> None:
    expected: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    kept = 0
    for user in sorted({u for u, _ in log}):
        mine = sorted((i for i, (u, _) in enumerate(log) if u == user), key=lambda i: (log[i][1], i))
        if len(mine) < least + valid + test:
            kept += 1
            expected["train"] += mine
        else:
            expected["train"] += mine[: -valid - test]
            expected["valid"] += mine[-valid - test : -test]
            expected["test"] += mine[-test:]
    frame = pl.DataFrame(log, schema=["u", "t"], orient="row")
    how = LeaveLastOutSplit(valid_rows=valid, test_rows=test, min_train=least)
    if not all(expected.values()):
        with pytest.raises(DataError, match="every part needs rows"):
            split_table(frame, how, SplitColumns(time="t", user="u"))
        return
    split = split_table(frame, how, SplitColumns(time="t", user="u"))
    assert {k: getattr(split, k).tolist() for k in expected} == {k: sorted(v) for k, v in expected.items()}
    assert split.users_kept_in_train == kept


@given(st.integers(3, 200), st.floats(0.02, 0.6), st.floats(0.02, 0.39), st.integers(0, 5), st.booleans())
@settings(max_examples=100, deadline=None)
def test_random_parts_cover_every_row_once(n: int, valid: float, test: float, seed: int, stratify: bool) -> None:
    y = (np.arange(n) % 3 == 0).astype(np.float32)
    how = RandomSplit(valid=valid, test=test, stratify=stratify and n > 8)
    held = int(n * valid + 0.5), int(n * test + 0.5)
    if min(*held, n - sum(held)) == 0:
        with pytest.raises(DataError, match="every part needs rows"):
            split_table(rows(n), how, seed=seed, y=y)
        return
    split = split_table(rows(n), how, seed=seed, y=y)
    assert covers_once(split, n)
    assert abs(len(split.test) - n * test) <= 0.5 + 1e-9
    assert abs(len(split.valid) - n * valid) <= 0.5 + 1e-9
    if stratify and n > 8:
        assert abs(y[split.test].sum() - y.sum() * test) < 1 + 1e-6
        assert abs(y[split.valid].sum() - y.sum() * valid) < 1 + 1e-6


def test_column_split_reads_the_parts() -> None:
    frame = pl.DataFrame({"part": ["test", "train", "val", "train", "valid"]})
    split = split_table(frame, ColumnSplit(column="part"))
    assert (split.train.tolist(), split.valid.tolist(), split.test.tolist()) == ([1, 3], [2, 4], [0])


def test_validation_rows_are_sampled_from_training_rows_only() -> None:
    part = np.repeat([0, 1], [900, 100])
    y = np.tile([0, 0, 0, 0, 1], 200)
    how = ColumnSplit(column="part", train=("0",), test=("1",), valid_share=0.1, stratify=True)
    split = split_table(pl.DataFrame({"part": part}), how, seed=5, y=y)
    assert split.sizes == {"train": 810, "valid": 90, "test": 100}
    assert split.test.tolist() == list(range(900, 1000))
    assert y[split.valid].sum() == 18
    assert split_table(pl.DataFrame({"part": part}), how, seed=6, y=y).valid.tolist() != split.valid.tolist()


def test_bad_tables_are_told_in_one_sentence(subtests):
    for values, how, message in [
        (["train", "tset"], ColumnSplit(column="p"), "holds 'tset' in row 1"),
        (["train", None], ColumnSplit(column="p"), "holds None in row 1"),
        (["train", "test"], ColumnSplit(column="q"), "'q' must be in the table, found only: p"),
        (["train", "test"], ColumnSplit(column="p"), "valid empty; give their values"),
        (["train", "valid"], ColumnSplit(column="p", valid_share=0.5), "has 1; omit valid_share"),
        ([1, None, 3], TimeSplit(column="p"), "holds None in row 1"),
        ([1.0, float("nan"), 3.0], TimeSplit(column="p"), "row 1"),
        (["2026-01-01", "soon", "2026-01-03"], TimeSplit(column="p"), "holds 'soon' in row 1"),
        ([1, 1, 2], TimeSplit(column="p"), "at least 3 different times: column 'p' holds 2"),
        ([1, 2, 3], TimeSplit(), "give the split's column"),
        ([[1], [2], [3]], TimeSplit(column="p"), "is of type List"),
        ([None, None], TimeSplit(column="p"), "2 of 2 rows have none"),
        ([1, 2, 3], LeaveLastOutSplit(user="u", order="p"), "user column 'u' must be in the table"),
        ([1, 2, 3], LeaveLastOutSplit(user="p"), "order"),
        ([1, 2, 3], LeaveLastOutSplit(user="p", order="p"), "3 users have too few rows"),
        ([1, None, 3], LeaveLastOutSplit(user="p", order="p"), "row 1"),
        ([1, 2, 3], RandomSplit(valid=0.01), "leaves valid and test empty"),
        ([], RandomSplit(), "0 rows leaves train and valid and test empty"),
    ]:
        with subtests.test(values=values, how=how, message=message), pytest.raises(DataError, match=message):
            split_table(pl.DataFrame({"p": values}), how)


def test_bad_settings_are_refused(subtests):
    for make, message in [
        (lambda: RandomSplit(valid=0.5, test=0.5), "sum must be below 1"),
        (lambda: RandomSplit(valid=0.0), "valid must be a share"),
        (lambda: TimeSplit(test=1.5), "test must be a share"),
        (lambda: LeaveLastOutSplit(test_rows=0), "test_rows must be at least 1"),
        (lambda: ColumnSplit(column="c", valid=("train",)), "'train' occurs more than once"),
        (lambda: ColumnSplit(column="c", valid_share=1.0), "valid_share must lie"),
        (lambda: ColumnSplit(column="c", stratify=True), "also give valid_share"),
    ]:
        with subtests.test(make=make, message=message), pytest.raises(ConfigError, match=message):
            make()  # type: ignore[operator]


def test_settings_are_built_from_plain_mappings() -> None:
    from dataclasses import make_dataclass

    holder = make_dataclass("Holder", [("split", SplitSettings)], frozen=True)
    assert parse(holder, {"split": {"kind": "leave-last-out", "user": "u"}}, "recipe").split == LeaveLastOutSplit(
        user="u"
    )
    assert parse(holder, {"split": {"kind": "time", "valid": 0.2}}, "recipe").split == TimeSplit(valid=0.2)
    with pytest.raises(ConfigError, match="column, leave-last-out, random, time"):
        parse(holder, {"split": {"kind": "tme"}}, "recipe")


def test_hold_out_at_random_keeps_the_labels_shares_and_is_seeded() -> None:
    y = np.array([1.0] * 100 + [0.0] * 900)
    stay, held = hold_out(rows(1000), 0.2, seed=5, y=y)
    assert sorted([*stay, *held]) == list(range(1000))
    assert (len(held), y[held].sum()) == (200, 20)
    assert np.array_equal(held, hold_out(rows(1000), 0.2, seed=5, y=y)[1])
    assert not np.array_equal(held, hold_out(rows(1000), 0.2, seed=6, y=y)[1])


def test_hold_out_by_time_takes_the_latest_and_never_parts_a_moment() -> None:
    frame = pl.DataFrame({"t": [3, 1, 2, 3, 1, 2, 3, 3]})
    assert hold_out(frame, 0.25, time="t")[1].tolist() == [0, 3, 6, 7]


@pytest.mark.parametrize(("share", "frame"), [(0.1, pl.DataFrame({"t": [1, 2, 3]})), (0.5, pl.DataFrame({"t": [1]}))])
def test_hold_out_needs_rows_on_both_sides(share: float, frame: pl.DataFrame) -> None:
    with pytest.raises(DataError, match="one side empty"):
        hold_out(frame, share)
    with pytest.raises(DataError, match="one side empty"):
        hold_out(frame.with_columns(t=pl.lit(1)), share, time="t")


def test_the_registry_names_what_recipes_take() -> None:
    """A kind's name in the registry is the one that its settings are read by, and an unknown one lists all."""

    @dataclasses.dataclass(frozen=True)
    class Has:
        split: SplitSettings

    needed = {"column": {"column": "part"}}
    for name, cls in SPLITS.items():
        found = parse(Has, {"split": {"kind": name, **needed.get(name, {})}}, "r").split
        assert (type(found), found.kind) == (cls, name)
    with pytest.raises(ConfigError, match=rf"r.split needs kind = one of {', '.join(sorted(SPLITS))}, found 'tiem'"):
        parse(Has, {"split": {"kind": "tiem"}}, "r")
