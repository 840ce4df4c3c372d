"""Planted columns that know the label are found by kind and column; noise is not."""

import numpy as np
import polars as pl
import pytest

import fieldwise
from fieldwise import Categorical, ColumnSplit, ConfigError, Label, Numeric, Schema
from fieldwise.auditing import AuditReport, Finding

RNG = np.random.default_rng(5)
ROWS = 1000
Y = (RNG.random(ROWS) < 0.3).astype(int)
NOISE = {"a": RNG.normal(size=ROWS), "b": RNG.integers(0, 6, ROWS), "c": RNG.random(ROWS).round(2)}
PRICE = RNG.random(ROWS) * 90


def found(column, y=Y, **more):
    frame = pl.DataFrame({**NOISE, "x": pl.Series(column, strict=False), "label": y})
    report = fieldwise.audit(frame, "label", **more)
    return {(f.severity, f.kind) for f in report.findings if f.column == "x"}, report


def test_each_way_of_telling_the_label_is_found(subtests):
    some = RNG.random(ROWS)
    for column, expected in [
        (Y * 5 + RNG.random(ROWS), ("high", "predicts-alone")),
        (-Y * 5 + RNG.random(ROWS), ("high", "predicts-alone")),
        (np.where(Y > 0, "paid", "left"), ("high", "predicts-alone")),
        (np.where(Y > 0, RNG.choice([-9, 9], ROWS), 0) + some, ("high", "predicts-alone")),
        ([None if t else v for t, v in zip(Y, PRICE, strict=True)], ("high", "absence")),
        ([f"{v:.{2 + t}f}" for t, v in zip(Y, PRICE, strict=True)], ("high", "precision")),
        (
            ["n" * (3 + 4 * t) + str(int(v) + 100) for t, v in zip(Y, PRICE, strict=True)],
            ("high", "length"),
        ),
        (2.2 * Y + RNG.normal(size=ROWS), ("medium", "predicts-alone")),
        (np.where(Y & (some < 0.4), "refund", "none"), ("medium", "pure-values")),
        # absent for a tenth of one class alone
        ([None if t and s < 0.4 else s for t, s in zip(Y, some, strict=True)], ("high", "absence")),
    ]:
        with subtests.test(expected=expected, first=list(column)[:3]):
            assert expected in found(column)[0]


def test_noise_and_honest_columns_are_not_found():
    _, report = found(0.5 * Y + RNG.normal(size=ROWS))
    assert report.failing("medium") == []


def test_the_rows_to_look_at_are_numbers_of_the_table():
    _, report = found(Y * 5 + RNG.random(ROWS))
    (finding,) = [f for f in report.findings if f.column == "x"]
    assert {int(Y[row]) for row in finding.rows} == {0, 1}
    assert finding.strength.low <= finding.strength.value <= finding.strength.high


def test_several_classes_and_numbers(subtests):
    classes = RNG.choice(["red", "green", "blue"], ROWS)
    codes = {"red": 2.5, "green": 9.0, "blue": -1.0}
    with subtests.test("classes"):
        column = [codes[c] + RNG.random() for c in classes]
        assert ("high", "predicts-alone") in found(column, classes)[0]
    price = RNG.normal(50, 9, ROWS)
    with subtests.test("numbers"):
        assert ("high", "predicts-alone") in found(price * 2 + 1, price)[0]
    with subtests.test("copies"):
        some = np.where(RNG.random(ROWS) < 0.2, price, RNG.normal(50, 9, ROWS))
        assert ("medium", "equals-label") in found(some, price)[0]


def test_rows_sorted_by_the_label_are_said():
    order = np.argsort(Y, kind="stable")
    frame = pl.DataFrame({**NOISE, "label": Y})[order]
    (finding,) = fieldwise.audit(frame, "label").findings
    assert (finding.kind, finding.severity) == ("row-order", "medium")


def test_a_schema_names_the_columns_that_are_audited():
    frame = pl.DataFrame({**NOISE, "refund": 9.0 * Y, "label": Y})
    schema = Schema(fields=(Numeric("a"), Categorical("b")), label=Label("label"))
    assert fieldwise.audit(frame, schema=schema).findings == []


def test_a_recipe_is_audited_with_its_own_settings():
    recipe = fieldwise.load_recipe("simulated/lr", ["data.rows=3000"])
    report = fieldwise.audit(recipe)
    assert report.facts["rows"] == 3000
    assert report.failing("high") == []
    with pytest.raises(ConfigError, match="a recipe has its own schema, split and seed"):
        fieldwise.audit(recipe, split=ColumnSplit(column="part"))


def test_a_report_says_what_fails_and_is_plain_json():
    _, report = found(Y * 5 + RNG.random(ROWS))
    assert [f.column for f in report.failing("high")] == ["x"]
    plain = report.to_plain()
    assert plain["findings"][0]["strength"]["value"] == pytest.approx(1.0)
    assert "'x'" in report.table().rows[0][3]
    with pytest.raises(ConfigError, match="a severity must be high, medium, low"):
        report.failing("awful")
    finding = Finding(kind="k", severity="low", what="w", remedy="r")
    assert AuditReport(findings=[finding], facts={}).failing("low") == [finding]
