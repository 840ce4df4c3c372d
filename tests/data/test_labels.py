"""Labels against a plain loop over rows, and each fault as one sentence with the table's own row number."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.data.prepare.labels import read_label, read_labels
from fieldwise.errors import DataError
from fieldwise.schema import Label


def table(values: list[object], **options: object) -> pl.DataFrame:
    return pl.DataFrame({"row": range(len(values)), "y": pl.Series(values, **options)})


@given(st.lists(st.integers(1, 5), min_size=1), st.sets(st.integers(1, 5)), st.integers(0, 5))
def test_rule_equals_a_plain_loop(ratings: list[int], dropped: set[int], above: int) -> None:
    label = Label("y", positive_above=above, drop_values=tuple(dropped))
    kept = [(i, r) for i, r in enumerate(ratings) if r not in dropped]
    if not kept:
        with pytest.raises(DataError, match="no row is left"):
            read_label(table(ratings), label)
        return
    rows = read_label(table(ratings), label)
    assert rows.frame["row"].to_list() == [i for i, _ in kept]
    assert rows.main.tolist() == [float(r > above) for _, r in kept]
    assert rows.dropped == len(ratings) - len(kept)
    assert rows.y.dtype == np.float32
    assert rows.y.flags.writeable


def test_without_a_rule_zero_and_one_in_every_form(subtests):
    for values in [[1, 0], [1.0, 0.0], ["1", "0"], [True, False], ["true", "false"]]:
        with subtests.test(values=values):
            assert read_label(table(values), Label("y")).main.tolist() == [1.0, 0.0]


def test_positive_values_in_every_form(subtests):
    for values, positive in [
        (["yes", "no"], "yes"),
        ([2, 1], 2),
        ([2.0, 1.0], 2),
        (["2", "1"], 2),
        ([True, False], True),
        ([5, 4], "5"),
    ]:
        with subtests.test(values=values, positive=positive):
            assert read_label(table(values), Label("y", positive_values=(positive,))).main.tolist() == [1.0, 0.0]


def test_regression_keeps_numbers_within_the_range() -> None:
    label = Label("y", task="regression", range=(-1, 1), drop_values=(0,))
    rows = read_label(table([-1, 0, 1]), label)
    assert rows.main.tolist() == [-1.0, 1.0]
    with pytest.raises(DataError, match=r"range \[-1, 1\]: column 'y' holds 2 in row 3 "):
        read_label(table([-1, 0, 0, 2]), label)


def test_rows_are_counted_before_dropping() -> None:
    values = ["3", "3", "1", "maybe"]
    with pytest.raises(DataError, match="column 'y' holds 'maybe' in row 3 "):
        read_label(table(values), Label("y", drop_values=(3,)))
    with pytest.raises(DataError, match="label column 'y' holds the text 'maybe' in row 3 "):
        read_label(table(values), Label("y", positive_above=2, drop_values=(3,)))
    assert read_label(table(values), Label("y", positive_above=0, drop_values=("maybe",))).dropped == 1


def test_an_absent_label_names_the_first_row(subtests: pytest.Subtests) -> None:
    for absent in [None, float("nan"), ""]:
        with subtests.test(absent=absent):
            values = ["1", absent, absent] if absent == "" else [1.0, absent, absent]
            for label in (
                Label("y"),
                Label("y", positive_above=0),
                Label("y", drop_values=(0,)),
                Label("y", task="regression"),
            ):
                with pytest.raises(DataError, match=r"2 of 3 rows have none in column 'y', the first is row 1 "):
                    read_label(table(values), label)


@pytest.mark.parametrize("label", [Label("y", positive_above=0), Label("y", task="regression")])
def test_infinity_and_text_name_the_row(label: Label) -> None:
    with pytest.raises(DataError, match=r"must be finite .* label column 'y' holds inf in row 1 "):
        read_label(table([1.0, float("inf")]), label)
    with pytest.raises(DataError, match=r"label column 'y' holds the text 'high' in row 0 "):
        read_label(table(["high", "1"]), label)


def test_a_value_outside_zero_and_one_names_the_row() -> None:
    with pytest.raises(
        DataError, match=r"must be 0 or 1: column 'y' holds 2 in row 2 .*positive_above or positive_values"
    ):
        read_label(table([0, 1, 2]), Label("y"))


def test_no_column_no_rows_none_left() -> None:
    with pytest.raises(DataError, match="the label's column 'click' must be in the table, found only: row, y"):
        read_label(table([1]), Label("click"))
    with pytest.raises(DataError, match="a table needs rows, found none below its columns row, y"):
        read_label(table([], dtype=pl.Int64), Label("y"))
    with pytest.raises(DataError, match="all 2 have a label in drop_values of column 'y'"):
        read_label(table([3, 3]), Label("y", drop_values=(3,)))


def test_the_given_table_stays_as_it_is() -> None:
    frame = table([1, 2, 3])
    before = frame.clone()
    read_label(frame, Label("y", positive_above=2, drop_values=(2,)))
    assert frame.equals(before)


def test_a_rule_for_other_spellings_is_refused_not_all_negative():
    frame = pl.DataFrame({"income": [">50K.", "<=50K."]})
    label = Label("income", positive_values=(">50K",))
    with pytest.raises(DataError, match=r"\['>50K'\] must occur in column 'income', found only '<=50K\.', "):
        read_label(frame, label)
    assert read_label(frame, label, all_negative=True).main.tolist() == [0, 0]


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
    rows = read_labels(watched(), SEVERAL)
    assert rows.frame["row"].to_list() == [0, 3, 5]
    assert rows.y.tolist() == [[1, 90, 1], [1, 7.5, 0], [0, 3, 0]]
    assert rows.dropped == 3
    assert (rows.y.dtype, rows.y.flags.writeable) == (np.float32, True)
    assert rows.main.tolist() == [1, 1, 0]
    some = rows.take(np.array([2, 0]))
    assert (some.y.tolist(), some.main.tolist(), some.dropped) == ([[0, 3, 0], [1, 90, 1]], [0, 1], 0)


def test_one_label_of_several_reads_as_if_alone() -> None:
    alone = [read_label(watched().filter(pl.col("row").is_in([0, 3, 5])), label).main for label in SEVERAL]
    np.testing.assert_array_equal(read_labels(watched(), SEVERAL).y, np.stack(alone, axis=1))
    assert read_labels(watched(), SEVERAL[:1]).y.shape == (4, 1)


def test_what_a_dropped_row_holds_in_other_labels_is_not_looked_at() -> None:
    frame = watched(minutes=[90.0, None, 0, 7.5, 500, 3])  # rows 1 and 4 are dropped by their rating
    assert read_labels(frame, SEVERAL).dropped == 3


def test_faults_name_the_label_that_has_them(subtests):
    for columns, message in [
        ({"minutes": [90, 80, 0, None, 0, 3]}, "1 of 6 rows have none in column 'minutes', the first is row 3 "),
        ({"minutes": [90, 80, 0, 7, 0, 101]}, r"range \[0, 100\]: column 'minutes' holds 101 in row 5 "),
        ({"rating": [4, 3, 1, 4, 3, 2]}, r"positive_values \[5\] must occur in column 'rating'"),
        ({"rating": [3, 3, 5, 3, 3, 3]}, "all 6 have a label in drop_values of column 'rating' or 'minutes'"),
    ]:
        with subtests.test(columns=columns, message=message):
            with pytest.raises(DataError, match=message):
                read_labels(watched(**columns), SEVERAL)
            with pytest.raises(DataError, match="the label's column 'minutes' must be in the table"):
                read_labels(watched().drop("minutes"), SEVERAL)


def test_a_rule_written_for_text_holds_for_booleans() -> None:
    """pandas writes True to a CSV file, where it is text, and hands it over as a boolean."""
    for values in (["True", "False"], [True, False]):
        assert read_label(pl.DataFrame({"y": values}), Label("y", positive_values=("True",))).main.tolist() == [1, 0]
        assert read_label(pl.DataFrame({"y": values}), Label("y")).main.tolist() == [1, 0]
    dropped = read_label(
        pl.DataFrame({"y": [True, False]}), Label("y", positive_values=(True,), drop_values=("False",))
    )
    assert (dropped.main.tolist(), dropped.dropped) == ([1], 1)
