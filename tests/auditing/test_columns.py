"""Planted columns that know the label are found by kind and column; noise is not."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import hypergeom

import fieldwise
from fieldwise import Categorical, ColumnSplit, ConfigError, Label, Numeric, Schema, SchemaError
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
        (np.where(Y & (some < 0.4), PRICE, 0), ("medium", "pure-values")),
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
        pairs, report = found(column, classes)
        assert ("high", "predicts-alone") in pairs
        (finding,) = [f for f in report.findings if f.kind == "predicts-alone"]
        assert 0.99 < finding.strength <= 1.0, "a mean over classes has no interval"
    price = RNG.normal(50, 9, ROWS)
    with subtests.test("numbers"):
        assert ("high", "predicts-alone") in found(price * 2 + 1, price)[0]
    with subtests.test("copies"):
        some = np.where(RNG.random(ROWS) < 0.2, price, RNG.normal(50, 9, ROWS))
        assert ("medium", "equals-label") in found(some, price)[0]


@pytest.mark.parametrize(("filled", "is_found"), [(10, False), (40, True)])
def test_few_filled_cells_count_by_how_many_columns_were_looked_at(filled, is_found):
    """Cells that are in the label's order: ten have p = .018 by chance, in one of four columns .07."""
    rows = 400
    y = np.arange(rows) % 2
    cells = [k + 1000 * y[k] if k < filled else None for k in range(rows)]
    noise = {name: RNG.permutation(values[:rows]) for name, values in NOISE.items()}
    order = RNG.permutation(rows)
    report = fieldwise.audit(pl.DataFrame({**noise, "x": cells, "label": y})[order], "label")
    kinds = {f.kind for f in report.failing("medium") if f.column == "x"}
    assert ("predicts-alone" in kinds) == is_found


def test_a_row_without_a_label_is_refused_whatever_the_label(subtests):
    for label in [
        ["yes", "no"],
        ["red", "green", "blue"],
        [0, 1],
        [1, 2, 3],
        [1.5, 2.5, 9.0, 7.25],
    ]:
        with subtests.test(label=label):
            cells = [*(label * ROWS)[: ROWS - 1], None]
            frame = pl.DataFrame({**NOISE, "label": cells})
            with pytest.raises(SchemaError, match="none in 1 of 1000 rows, the first is row 999"):
                fieldwise.audit(frame, "label")


def test_rows_that_a_label_drops_are_counted():
    frame = pl.DataFrame({**NOISE, "label": [2, *Y[1:]]})
    schema = Schema(fields=(Numeric("a"), Categorical("b")), label=Label("label", drop_values=(2,)))
    facts = fieldwise.audit(frame, schema=schema).facts
    assert (facts["rows"], facts["rows_without_label"]) == (ROWS - 1, 1)


@pytest.mark.parametrize("others", [("yes", "no"), ("1", "2", "3")])
def test_rows_with_a_mark_in_place_of_a_label_are_dropped_and_counted(others):
    labels = np.array(others)[np.arange(ROWS) % len(others)]
    marked = np.where(np.arange(ROWS) < 2, " ? ", labels)
    report = fieldwise.audit(pl.DataFrame({**NOISE, "copy": labels, "label": marked}), "label")
    assert (report.facts["rows"], report.facts["rows_without_label"]) == (ROWS - 2, 2)
    (finding,) = report.failing("high")
    assert finding.column == "copy"
    assert set(finding.rows).isdisjoint({0, 1})


@pytest.mark.parametrize("others", [("yes", "no"), ("red", "green", "blue")])
def test_a_row_with_a_blank_text_as_its_label_is_refused(others):
    cells = [*(others * ROWS)[: ROWS - 1], " "]
    with pytest.raises(SchemaError, match="none in 1 of 1000 rows, the first is row 999"):
        fieldwise.audit(pl.DataFrame({**NOISE, "label": cells}), "label")


def test_a_word_of_several_classes_that_may_be_a_mark_is_a_class():
    grades = np.array(["none", "mild", "severe"])[np.arange(ROWS) % 3]
    report = fieldwise.audit(pl.DataFrame({**NOISE, "copy": grades, "label": grades}), "label")
    assert "rows_without_label" not in report.facts
    assert [f.column for f in report.failing("high")] == ["copy"]


def test_the_probability_of_pure_values_is_no_lower_than_that_of_any_pure_value_by_chance():
    values, rows = 20, 20
    cells = np.repeat(np.arange(values), rows)
    y = np.arange(values * rows) % 2
    y[:rows] = 1  # One value has the label 1 alone, and the labels stay balanced.
    y[rows : 2 * rows] = 0
    column = pl.Series([f"shop {value}" for value in cells])
    shuffled = np.random.default_rng(0).permutation(values * rows)
    frame = pl.DataFrame({"shop": column, "label": y})[shuffled]
    (finding,) = [f for f in fieldwise.audit(frame, "label").findings if f.kind == "pure-values"]
    all_one_label = hypergeom(values * rows, values * rows // 2, rows).pmf(rows)
    assert finding.p >= 2 * values * all_one_label


def test_rows_sorted_by_the_label_are_said():
    order = np.argsort(Y, kind="stable")
    frame = pl.DataFrame({**NOISE, "label": Y})[order]
    (finding,) = fieldwise.audit(frame, "label").findings
    assert (finding.kind, finding.severity) == ("row-order", "medium")


def test_a_schema_names_the_columns_that_are_audited():
    frame = pl.DataFrame({**NOISE, "refund": 9.0 * Y, "label": Y})
    schema = Schema(fields=(Numeric("a"), Categorical("b")), label=Label("label"))
    assert fieldwise.audit(frame, schema=schema).findings == []
    with pytest.raises(ConfigError, match="a schema names the label"):
        fieldwise.audit(frame, "refund", schema=schema)


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


def test_columns_without_a_value_say_nothing(subtests):
    for name, column in [
        ("numbers", pl.Series([None] * ROWS, dtype=pl.Float64)),
        ("NaN", np.full(ROWS, np.nan)),
        ("nulls", [None] * ROWS),
        ("texts", [""] * ROWS),
        ("dates", pl.Series([None] * ROWS, dtype=pl.Datetime)),
    ]:
        with subtests.test(name):
            assert found(column)[0] == set()


def test_a_finding_on_cells_of_one_label_names_the_label(subtests):
    for label, column, expected in [
        (Y, np.where(Y & (PRICE < 30), None, PRICE), "is empty in"),
        (Y, np.where(Y & (PRICE < 30), PRICE, None), "is filled in"),
        (Y, np.where(Y & (PRICE < 30), "refund", "none"), "the label of each is positive"),
        (
            np.array(["no", "so", "yes"])[Y + (PRICE < 30)],
            np.where(Y & (PRICE < 30), "q", "none"),
            "each is 'yes'",
        ),
    ]:
        with subtests.test(expected):
            _, report = found(list(column), label)
            assert any(expected in f.sentence for f in report.findings if f.column == "x")


def test_cells_of_one_part_of_a_label_of_numbers_are_found(subtests):
    price = RNG.normal(50, 9, ROWS)
    is_high = price > np.quantile(price, 0.75)
    tenth = np.argsort(np.argsort(price)) * 10 // ROWS
    for name, column, expected in [
        ("empty", np.where(is_high & (PRICE < 20), None, PRICE), ("medium", "absence")),
        ("tenth", np.where(PRICE < 30, tenth.astype(str), "open"), ("high", "predicts-alone")),
        ("top", np.where((tenth == 9) & (PRICE < 60), "vip", "no"), ("medium", "pure-values")),
    ]:
        with subtests.test(name):
            assert expected in found(list(column), price)[0]


def test_a_number_that_adds_much_to_all_others_is_found():
    price = RNG.normal(50, 9, ROWS)
    assert ("medium", "adds-most") in found(price + RNG.normal(0, 9, ROWS), price)[0]


def test_a_column_that_is_the_label_where_it_is_filled_is_found(subtests):
    price = RNG.normal(50, 9, ROWS)
    score = Y * 3.0 + RNG.random(ROWS)
    is_filled = RNG.random(ROWS) < 0.3
    for name, column, label in [
        ("numbers", np.where(is_filled, 0.19 * price, None), price),
        ("labels", np.where(is_filled, score, None), Y),
        ("zeros", np.where(is_filled, score, 0.0), Y),
    ]:
        with subtests.test(name):
            assert ("high", "predicts-alone") in found(list(column), label)[0]
    with subtests.test("few values, of which none stands for none"):
        odour = np.where(Y, np.where(is_filled, "foul", "none"), RNG.choice(["none", "mint"], ROWS))
        assert ("high", "predicts-alone") not in found(odour, Y)[0]
    with subtests.test("noise"):
        noise = np.where(is_filled, PRICE, None)
        assert found(list(noise), price)[0] == set()


def test_a_value_that_holds_much_of_a_rare_label_is_found():
    is_rare = RNG.random(ROWS) < 0.06
    column = np.where(
        is_rare & (RNG.random(ROWS) < 0.6), "chargeback", RNG.choice(["ok", "late"], ROWS)
    )
    assert ("medium", "pure-values") in found(column, is_rare.astype(int))[0]
