"""Fields that a model should not have are found, by figures worked out here, and the others are left alone."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from fieldwise import Bag, Categorical, ConfigError, Label, Numeric, Schema, SchemaError, Sequence
from fieldwise.auditing.fields import USELESS, audit_fields, without

ROWS = 400
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, ROWS).astype(float)


def found(column, field, y=Y, label=None):
    frame = pl.DataFrame({"x": column, "other": RNG.integers(0, 3, len(y))})
    schema = Schema(fields=(field, Categorical("other")), label=label or Label("y"))
    findings = audit_fields(frame, y, schema, 0)
    left = without(schema, findings).columns
    for one in findings:
        assert (one.column in left) == (one.kind not in USELESS and one.severity != "high")
    return findings


def kinds(*arguments):
    return [(one.severity, one.kind) for one in found(*arguments)]


def test_columns_that_are_left_out(subtests):
    for column, field, kind in [
        (["fi"] * ROWS, Categorical("x"), "constant"),
        ([None] * ROWS, Categorical("x"), "constant"),
        ([2.5] * ROWS, Numeric("x"), "constant"),
        ([f"r{k}" for k in RNG.permutation(ROWS)], Categorical("x"), "id-like"),
        (range(1, ROWS + 1), Numeric("x"), "id-like"),
        (Y.astype(int), Categorical("x"), "predicts-alone"),
        (np.where(Y > 0, "bought", "left"), Categorical("x"), "predicts-alone"),
        (Y * 10 + RNG.random(ROWS), Numeric("x"), "predicts-alone"),
        (-Y * 10 + RNG.random(ROWS), Numeric("x"), "predicts-alone"),
        ([1.0 if y else None for y in Y], Numeric("x"), "absence"),  # absence tells
        # tells, but not by its order
        (np.where(Y > 0, RNG.choice([-9, 9], ROWS), 0), Numeric("x"), "predicts-alone"),
        ([["hit"] if y else ["miss"] for y in Y], Bag("x"), "predicts-alone"),
        (["hit|a" if y else "miss|a" for y in Y], Sequence("x"), "predicts-alone"),
    ]:
        with subtests.test(column=column, field=field, kind=kind):
            severity = "low" if kind in USELESS else "high"
            assert kinds(column, field) == [(severity, kind)]


def test_columns_that_stay(subtests):
    for column, field in [
        (RNG.integers(0, 3, ROWS), Categorical("x")),
        (RNG.random(ROWS), Numeric("x")),
        (Y + RNG.normal(0, 1, ROWS), Numeric("x")),
        ([["a"] if k % 2 else None for k in range(ROWS)], Bag("x")),
        # each value twice: no name of single rows
        ([f"r{k // 2}" for k in range(ROWS)], Categorical("x")),
        (RNG.permutation(ROWS), Numeric("x")),  # all different, but in no order: a measurement
    ]:
        with subtests.test(column=column, field=field):
            assert kinds(column, field) == []


def test_a_column_is_judged_by_auc_out_of_fold():
    wrong = RNG.random(ROWS) < 0.03
    close = np.where(wrong, 1 - Y, Y)
    (one,) = found(close.astype(int), Categorical("x"))
    assert (one.kind, one.severity) == ("predicts-alone", "medium")
    assert one.strength.value == pytest.approx(roc_auc_score(Y, close), abs=0.01)
    assert "AUC 0.9" in one.sentence
    # In sample a category for each pair of rows would tell half of the labels.
    pairs = [f"r{k // 2}" for k in range(ROWS)]
    assert found(pairs, Categorical("x")) == []


def test_a_missing_cell_is_a_value_of_its_own():
    """Of missing cells all are positive, of b 60 %, more than of all rows, of a none."""
    cells, y = [None] * 150 + ["b"] * 100 + ["a"] * 150, np.r_[np.ones(210), np.zeros(190)]
    (one,) = found(cells, Categorical("x"), y)
    by_rate = [{None: 1.0, "b": 0.6, "a": 0.0}[cell] for cell in cells]
    assert one.strength.value == pytest.approx(roc_auc_score(y, by_rate), abs=0.01)


def test_a_label_of_numbers_is_judged_by_ranks():
    y = RNG.normal(0, 1, ROWS)
    label = Label("y", task="regression")
    (one,) = found(3 * y + 1, Numeric("x"), y, label)
    assert (one.kind, one.strength.value) == ("predicts-alone", pytest.approx(1.0))
    assert ".5 + rho/2 1.0000" in one.sentence
    assert found(y + RNG.normal(0, 1, ROWS), Numeric("x"), y, label) == []


def test_few_rows_of_a_class_tell_nothing():
    y = np.zeros(ROWS)
    y[:4] = 1
    assert kinds(y.astype(int), Categorical("x"), y) == []


def test_a_column_to_keep_stays_a_field():
    frame = pl.DataFrame({"x": Y.astype(int), "other": RNG.integers(0, 3, ROWS)})
    schema = Schema(fields=(Categorical("x"), Categorical("other")), label=Label("y"))
    findings = audit_fields(frame, Y, schema, 0)
    assert without(schema, findings).columns == ("other",)
    assert without(schema, findings, keep=["x"]) == schema
    with pytest.raises(ConfigError, match="keep must name a column that a field reads, found 'z'"):
        without(schema, findings, keep=["z"])


def test_without_takes_fields_out_and_what_shared_them_has_its_own_rows():
    fields = (Categorical("x"), Sequence("past", shares="x"), Categorical("other"))
    schema = Schema(fields=fields, label=Label("y"))
    frame = pl.DataFrame(
        {"x": ["a"] * ROWS, "past": ["a|b"] * (ROWS - 1) + ["b"], "other": RNG.integers(0, 3, ROWS)}
    )
    left = without(schema, audit_fields(frame, Y, schema, 0))
    assert [f.name for f in left.fields] == ["past", "other"]
    assert left.fields[0].shares is None


def test_no_column_left_is_one_sentence():
    schema = Schema(fields=(Categorical("x"),), label=Label("y"))
    with pytest.raises(
        SchemaError, match=r"no column is left to learn from: column 'x' is constant"
    ):
        without(schema, audit_fields(pl.DataFrame({"x": ["a"] * ROWS}), Y, schema, 0))
