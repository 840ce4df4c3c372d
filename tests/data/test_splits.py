"""Labels by their rules, and splits."""

import dataclasses
from datetime import date, datetime
from typing import get_args

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise import (
    Categorical,
    ColumnSplit,
    ConfigError,
    DataError,
    Label,
    LeaveLastOutSplit,
    RandomSplit,
    Schema,
    TimeSplit,
)
from fieldwise.config import parse
from fieldwise.data.prepare import splits
from fieldwise.data.prepare.labels import read_label, read_labels
from fieldwise.data.prepare.settings import SplitSettings
from fieldwise.data.prepare.splits import Split, hold_out
from fieldwise.storage.scratch import NO_LIMIT


def covers_once(split: Split, rows: int) -> bool:
    parts = (split.train, split.valid, split.test)
    ordered = all(p.dtype == np.int64 and (np.diff(p) > 0).all() for p in parts)
    return ordered and sorted(np.concatenate(parts).tolist()) == list(range(rows))


def schema_of(**columns: str) -> Schema:
    return Schema(fields=(Categorical("x"),), label=Label("y"), **columns)


def rows(n: int) -> pl.DataFrame:
    return pl.DataFrame({"t": np.arange(n)})


def split_table(frame, how, schema=None, *, seed=0, y=None) -> Split:
    targets = np.zeros(frame.height) if y is None else y
    return splits.split_table(
        frame, how, schema or schema_of(), seed=seed, y=targets, budget=NO_LIMIT
    )


def test_random_follows_the_seed() -> None:
    one, same, other = (split_table(rows(200), RandomSplit(), seed=s) for s in (1, 1, 2))
    assert one.test.tolist() == same.test.tolist() != other.test.tolist()


def test_stratified_keeps_class_shares() -> None:
    y = np.random.default_rng(0).permutation(np.repeat([0.0, 1.0], [937, 63]))
    split = split_table(rows(1000), RandomSplit(valid=0.2, test=0.1, stratify=True), seed=0, y=y)
    assert split.sizes == {"train": 700, "valid": 200, "test": 100}
    assert (y[split.test].sum(), y[split.valid].sum()) == (6, 13)  # 6.3 and 12.6


def test_stratify_needs_a_label_with_several_rows_a_value() -> None:
    with pytest.raises(DataError, match="at least 3 rows of each value of the label: 2 has 1"):
        split_table(rows(9), RandomSplit(stratify=True), y=np.array([0, 1, 2, 0, 0, 0, 1, 1, 1]))


def test_equally_near_cuts_take_the_earlier() -> None:
    # Cuts at 2 | 6 | 8 of 10, wanted 4 and 8.
    t = [0, 0, 1, 1, 1, 1, 2, 2, 3, 3]
    split = split_table(pl.DataFrame({"t": t}), TimeSplit(valid=0.4, test=0.2), schema_of(time="t"))
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
            assert (split.train.tolist(), split.valid.tolist(), split.test.tolist()) == (
                [1, 2, 4],
                [3],
                [0],
            )


@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=40).filter(lambda t: len(set(t)) >= 3),
    st.floats(0.05, 0.45),
    st.floats(0.05, 0.45),
)
@settings(max_examples=100, deadline=None)
def test_time_split_is_the_best_of_all_pairs_of_cuts(
    t: list[int], valid: float, test: float
) -> None:
    split = split_table(
        pl.DataFrame({"t": t}), TimeSplit(valid=valid, test=test), schema_of(time="t")
    )
    assert covers_once(split, len(t))
    times = [{t[i] for i in p} for p in (split.train, split.valid, split.test)]
    assert max(times[0]) < min(times[1]) <= max(times[1]) < min(times[2])
    cuts = [sum(v < u for v in t) for u in sorted(set(t))[1:]]
    want = len(t) * (1 - valid - test), len(t) * (1 - test)
    best = min(abs(a - want[0]) + abs(b - want[1]) for a in cuts for b in cuts if a < b)
    got = abs(len(split.train) - want[0]) + abs(len(split.train) + len(split.valid) - want[1])
    assert got == pytest.approx(best, abs=1e-4)
    backwards = split_table(
        pl.DataFrame({"t": t[::-1]}), TimeSplit(valid=valid, test=test), schema_of(time="t")
    )
    assert sorted(t[::-1][i] for i in backwards.test) == sorted(t[i] for i in split.test)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), min_size=1, max_size=40),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 2),
)
@settings(max_examples=100, deadline=None)
def test_leave_last_out_as_a_plain_loop_does_it(
    log: list[tuple[str, int]], valid: int, test: int, least: int
) -> None:
    expected: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    kept = 0
    for user in sorted({u for u, _ in log}):
        mine = sorted(
            (i for i, (u, _) in enumerate(log) if u == user), key=lambda i: (log[i][1], i)
        )
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
            split_table(frame, how, schema_of(time="t", user="u"))
        return
    split = split_table(frame, how, schema_of(time="t", user="u"))
    assert {k: getattr(split, k).tolist() for k in expected} == {
        k: sorted(v) for k, v in expected.items()
    }
    assert split.users_kept_in_train == kept


@given(
    st.integers(3, 200),
    st.floats(0.02, 0.6),
    st.floats(0.02, 0.39),
    st.integers(0, 5),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_random_parts_cover_every_row_once(
    n: int, valid: float, test: float, seed: int, stratify: bool
) -> None:
    y = (np.arange(n) % 3 == 0).astype(np.float32)
    how = RandomSplit(valid=valid, test=test, stratify=stratify and n > 8)
    held = int(n * valid + 0.5), int(n * test + 0.5)
    if min(*held, n - sum(held)) == 0:
        with pytest.raises(DataError, match="every part needs rows"):
            split_table(rows(n), how, seed=seed, y=y)
        return
    split = split_table(rows(n), how, seed=seed, y=y)
    assert covers_once(split, n)
    assert (len(split.valid), len(split.test)) == held
    if stratify and n > 8:
        assert abs(y[split.test].sum() - y.sum() * test) < 1 + 1e-6
        assert abs(y[split.valid].sum() - y.sum() * valid) < 1 + 1e-6


@given(st.integers(40, 120), st.integers(2, 25), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_validation_rows_by_a_column_as_pandas_sorts_and_drops_them(
    n: int, users: int, seed: int
) -> None:
    """The steps of the IntTower authors' script, in pandas: drop users without positives, sort by film, cut the end."""
    rng = np.random.default_rng(seed)
    log = pd.DataFrame(
        {
            "user": rng.integers(0, users, n),
            "film": rng.integers(0, 12, n),
            "y": rng.integers(0, 2, n),
        }
    )
    y = log["y"].to_numpy().astype(np.float32)
    drawn = split_table(pl.from_pandas(log), RandomSplit(valid=0.16, test=0.2), seed=seed, y=y).test
    how = RandomSplit(valid=0.16, test=0.2, drop_without_positive="user", valid_last_by="film")
    kept = []
    for side in (log.drop(index=drawn), log.loc[drawn]):
        happy = side.loc[side["y"] == 1, ["user"]].drop_duplicates()
        kept.append(side.reset_index().merge(happy, on="user"))
    rest, test = kept
    in_order = rest.sort_values(["film", "index"])["index"].to_list()
    cut = len(in_order) - int(len(in_order) * 0.2 + 0.5)
    if not 0 < cut < len(in_order) or test.empty:
        return
    split = split_table(pl.from_pandas(log), how, seed=seed, y=y)
    assert split.test.tolist() == sorted(test["index"])
    assert split.train.tolist() == sorted(in_order[:cut])
    assert split.valid.tolist() == sorted(in_order[cut:])
    assert split.dropped == n - len(rest) - len(test)


def test_columns_of_a_random_split_must_be_in_the_table() -> None:
    for name in ("drop_without_positive", "valid_last_by"):
        with pytest.raises(
            DataError, match=f"{name} column 'film' must be in the table, found only: t"
        ):
            split_table(rows(20), RandomSplit(**{name: "film"}))


def test_column_split_reads_the_parts() -> None:
    frame = pl.DataFrame({"part": ["test", "train", "val", "train", "valid"]})
    split = split_table(frame, ColumnSplit(column="part"))
    assert (split.train.tolist(), split.valid.tolist(), split.test.tolist()) == (
        [1, 3],
        [2, 4],
        [0],
    )


def test_validation_rows_are_sampled_from_training_rows_only() -> None:
    part = np.repeat([0, 1], [900, 100])
    y = np.tile([0, 0, 0, 0, 1], 200)
    how = ColumnSplit(column="part", train=("0",), test=("1",), valid_share=0.1, stratify=True)
    split = split_table(pl.DataFrame({"part": part}), how, seed=5, y=y)
    assert split.sizes == {"train": 810, "valid": 90, "test": 100}
    assert split.test.tolist() == list(range(900, 1000))
    assert y[split.valid].sum() == 18
    assert (
        split_table(pl.DataFrame({"part": part}), how, seed=6, y=y).valid.tolist()
        != split.valid.tolist()
    )


def test_bad_tables_are_told_in_one_sentence(subtests):
    for values, how, message in [
        (["train", "tset"], ColumnSplit(column="p"), "holds 'tset' in row 1"),
        (["train", None], ColumnSplit(column="p"), "holds None in row 1"),
        (["train", "test"], ColumnSplit(column="q"), "'q' must be in the table, found only: p"),
        (["train", "test"], ColumnSplit(column="p"), "valid empty; mark rows of the empty parts"),
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
        with (
            subtests.test(values=values, how=how, message=message),
            pytest.raises(DataError, match=message),
        ):
            split_table(pl.DataFrame({"p": values}), how)


def test_bad_settings_are_refused(subtests):
    for make, message in [
        (lambda: RandomSplit(valid=0.5, test=0.5), "sum must be below 1"),
        (lambda: RandomSplit(valid=0.0), "valid must be a share"),
        (
            lambda: RandomSplit(valid_last_by=""),
            "valid_last_by must be a column name, found an empty one",
        ),
        (lambda: RandomSplit(valid_last_by="t", stratify=True), "omit one of the two"),
        (lambda: TimeSplit(test=1.5), "test must be a share"),
        (lambda: LeaveLastOutSplit(test_rows=0), "test_rows must be at least 1"),
        (lambda: ColumnSplit(column="c", valid=("train",)), "'train' occurs more than once"),
        (lambda: ColumnSplit(column="c", valid_share=1.0), "valid_share must lie"),
        (lambda: ColumnSplit(column="c", stratify=True), "also give valid_share"),
    ]:
        with subtests.test(make=make, message=message), pytest.raises(ConfigError, match=message):
            make()  # type: ignore[operator]


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


@pytest.mark.parametrize(
    ("share", "frame"), [(0.1, pl.DataFrame({"t": [1, 2, 3]})), (0.5, pl.DataFrame({"t": [1]}))]
)
def test_hold_out_needs_rows_on_both_sides(share: float, frame: pl.DataFrame) -> None:
    with pytest.raises(DataError, match="one side empty"):
        hold_out(frame, share)
    with pytest.raises(DataError, match="one side empty"):
        hold_out(frame.with_columns(t=pl.lit(1)), share, time="t")


def test_a_split_is_read_by_its_kind() -> None:
    """A kind's name is the one that its settings are read by, and an unknown one lists all."""

    @dataclasses.dataclass(frozen=True)
    class Has:
        split: SplitSettings

    needed = {"column": {"column": "part"}}
    kinds = {cls.kind: cls for cls in get_args(SplitSettings)}
    for name, cls in kinds.items():
        result = parse(Has, {"split": {"kind": name, **needed.get(name, {})}}, "r").split
        assert (type(result), result.kind) == (cls, name)
    assert parse(Has, {"split": {"kind": "time", "valid": 0.2}}, "r").split == TimeSplit(valid=0.2)
    with pytest.raises(
        ConfigError, match=rf"r.split needs kind = one of {', '.join(sorted(kinds))}, found 'tiem'"
    ):
        parse(Has, {"split": {"kind": "tiem"}}, "r")


def table(values: list[object], **options: object) -> pl.DataFrame:
    return pl.DataFrame({"row": range(len(values)), "y": pl.Series(values, **options)})


@given(st.lists(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)), st.integers(0, 5))
def test_rule_equals_a_plain_loop(ratings: list[int], dropped: set[int], above: int) -> None:
    label = Label("y", positive_above=above, drop_values=tuple(dropped))
    kept = [(i, r) for i, r in enumerate(ratings) if r not in dropped]
    if not kept:
        with pytest.raises(
            DataError, match=r"no row is left: all .* have a label in drop_values of column 'y'"
        ):
            read_label(table(ratings), label, budget=NO_LIMIT)
        return
    rows = read_label(table(ratings), label, budget=NO_LIMIT)
    assert rows.frame["row"].to_list() == [i for i, _ in kept]
    assert rows.main.tolist() == [float(r > above) for _, r in kept]
    assert rows.dropped == len(ratings) - len(kept)
    assert rows.y.dtype == np.float32
    assert rows.y.flags.writeable


def test_a_class_is_known_in_every_form(subtests):
    """pandas writes True to a CSV file, where it is text, and hands it over as a boolean."""
    for values, rule in [
        ([1, 0], {}), ([1.0, 0.0], {}), (["1", "0"], {}), ([True, False], {}), (["True", "False"], {}),
        (["yes", "no"], {"positive_values": ("yes",)}), ([2, 1], {"positive_values": (2,)}),
        ([2.0, 1.0], {"positive_values": (2,)}), (["2", "1"], {"positive_values": (2,)}),
        ([5, 4], {"positive_values": ("5",)}), ([True, False], {"positive_values": (True,)}),
        ([True, False], {"positive_values": ("True",)}), (["True", "False"], {"positive_values": ("True",)}),
    ]:  # fmt: skip
        with subtests.test(values=values, rule=rule):
            assert read_label(table(values), Label("y", **rule), budget=NO_LIMIT).main.tolist() == [
                1.0,
                0.0,
            ]
    dropped = read_label(
        table([True, False]),
        Label("y", positive_values=(True,), drop_values=("False",)),
        budget=NO_LIMIT,
    )
    assert (dropped.main.tolist(), dropped.dropped) == ([1], 1)
    assert (
        read_label(
            table(["1", "maybe"]),
            Label("y", positive_above=0, drop_values=("maybe",)),
            budget=NO_LIMIT,
        ).dropped
        == 1
    )


def test_labels_that_cannot_be_read_name_the_row(subtests):
    above, number = Label("y", positive_above=0), Label("y", task="regression")
    for values, labels, message in [
        (
            [1.0, None, None],
            (Label("y"), above, number),
            r"2 of 3 rows have none in column 'y', the first is row 1 ",
        ),
        (
            [1.0, float("nan"), 1.0],
            (Label("y"), above, number),
            r"1 of 3 rows have none in column 'y'",
        ),
        (
            ["1", "", ""],
            (Label("y", drop_values=(0,)),),
            r"2 of 3 rows have none in column 'y', the first is row 1 ",
        ),
        (
            [1.0, float("inf")],
            (above, number),
            r"must be finite .* label column 'y' holds inf in row 1 ",
        ),
        (["high", "1"], (above, number), r"label column 'y' holds the text 'high' in row 0 "),
        (
            ["3", "3", "maybe"],
            (Label("y", drop_values=(3,)),),
            "column 'y' holds 'maybe' in row 2 ",
        ),
        (
            [0, 1, 2],
            (Label("y"),),
            r"must be 0 or 1: column 'y' holds 2 in row 2 .*positive_above or positive_values",
        ),
        (
            [1],
            (Label("click"),),
            "the label's column 'click' must be in the table, found only: row, y",
        ),
        ([], (Label("y"),), "a table needs rows, found none below its columns row, y"),
    ]:
        for label in labels:
            with subtests.test(values=values, label=label), pytest.raises(DataError, match=message):
                read_label(table(values), label, budget=NO_LIMIT)


def test_regression_keeps_numbers_within_the_range() -> None:
    label = Label("y", task="regression", range=(-1, 1), drop_values=(0,))
    rows = read_label(table([-1, 0, 1]), label, budget=NO_LIMIT)
    assert rows.main.tolist() == [-1.0, 1.0]
    with pytest.raises(DataError, match=r"range \[-1, 1\]: column 'y' holds 2 in row 3 "):
        read_label(table([-1, 0, 0, 2]), label, budget=NO_LIMIT)


def test_a_rule_for_other_spellings_is_refused_not_all_negative():
    frame = pl.DataFrame({"income": [">50K.", "<=50K."]})
    label = Label("income", positive_values=(">50K",))
    with pytest.raises(
        DataError, match=r"\['>50K'\] must occur in column 'income', found only '<=50K\.', "
    ):
        read_label(frame, label, budget=NO_LIMIT)
    assert read_label(frame, label, all_negative=True, budget=NO_LIMIT).main.tolist() == [0, 0]


# Multi-task

SEVERAL = (
    Label("rating", positive_above=3, drop_values=(3,)),
    Label("minutes", task="regression", range=(0, 100), drop_values=(0,)),
    Label("rating", name="loved", positive_values=(5,)),
)


def watched(**columns: list[object]) -> pl.DataFrame:
    given = {"rating": [5, 3, 1, 4, 3, 2], "minutes": [90.0, 80, 0, 7.5, 0, 3]} | columns
    return pl.DataFrame({"row": range(6), **given})


def test_a_row_that_any_label_drops_is_dropped_and_counted_once() -> None:
    rows = read_labels(watched(), SEVERAL, budget=NO_LIMIT)
    assert rows.frame["row"].to_list() == [0, 3, 5]
    assert rows.y.tolist() == [[1, 90, 1], [1, 7.5, 0], [0, 3, 0]]
    assert rows.dropped == 3
    assert (rows.y.dtype, rows.y.flags.writeable) == (np.float32, True)
    assert rows.main.tolist() == [1, 1, 0]
    some = rows.take(np.array([2, 0]))
    assert (some.y.tolist(), some.main.tolist(), some.dropped) == (
        [[0, 3, 0], [1, 90, 1]],
        [0, 1],
        0,
    )


def test_one_label_of_several_reads_as_if_alone() -> None:
    alone = [
        read_label(watched().filter(pl.col("row").is_in([0, 3, 5])), label, budget=NO_LIMIT).main
        for label in SEVERAL
    ]
    np.testing.assert_array_equal(
        read_labels(watched(), SEVERAL, budget=NO_LIMIT).y, np.stack(alone, axis=1)
    )
    assert read_labels(watched(), SEVERAL[:1], budget=NO_LIMIT).y.shape == (4, 1)


def test_what_a_dropped_row_holds_in_other_labels_is_not_looked_at() -> None:
    # rows 1 and 4 are dropped by their rating
    frame = watched(minutes=[90.0, None, 0, 7.5, 500, 3])
    assert read_labels(frame, SEVERAL, budget=NO_LIMIT).dropped == 3


def test_faults_name_the_label_that_has_them(subtests):
    for columns, message in [
        (
            {"minutes": [90, 80, 0, None, 0, 3]},
            "1 of 6 rows have none in column 'minutes', the first is row 3 ",
        ),
        (
            {"minutes": [90, 80, 0, 7, 0, 101]},
            r"range \[0, 100\]: column 'minutes' holds 101 in row 5 ",
        ),
        ({"rating": [4, 3, 1, 4, 3, 2]}, r"positive_values \[5\] must occur in column 'rating'"),
        (
            {"rating": [3, 3, 5, 3, 3, 3]},
            "all 6 have a label in drop_values of column 'rating' or 'minutes'",
        ),
    ]:
        with subtests.test(columns=columns, message=message):
            with pytest.raises(DataError, match=message):
                read_labels(watched(**columns), SEVERAL, budget=NO_LIMIT)
            with pytest.raises(
                DataError, match="the label's column 'minutes' must be in the table"
            ):
                read_labels(watched().drop("minutes"), SEVERAL, budget=NO_LIMIT)
