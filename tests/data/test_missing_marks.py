"""Marks of missing values are empty cells, and amounts with units are plain numbers, wherever they stand."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from chunks_lab import prepare
from random_bundle import random_bundle
from serving.asgi import client

from fieldwise import (
    FM,
    Categorical,
    DataError,
    Encoder,
    Label,
    Numeric,
    RandomSplit,
    Recommender,
    Schema,
    SchemaError,
    TimeSplit,
    as_table,
    infer_schema,
)
from fieldwise.auditing.fields import audit_fields
from fieldwise.data.encode.columns import as_number
from fieldwise.data.encode.encoder import missing_marks
from fieldwise.data.encode.numbers import marks_in, marks_sentences, number_formats
from fieldwise.data.prepare.labels import positive_rows, read_label
from fieldwise.data.prepare.ordering import latest_rows
from fieldwise.data.prepare.splits import split_table
from fieldwise.report.slice_sections import slices_of
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, Stores, TableStore
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

FIELDS = (Categorical("land"), Numeric("price"), Numeric("paid", number_format="€ 1.234,5"))
SCHEMA = Schema(fields=FIELDS, label=Label("click"))


def log_of(*marks: str | None) -> pl.DataFrame:
    """40 rows; every fourth has a mark in its numbers."""
    rows = range(40)
    given = [marks[k // 4 % len(marks)] for k in rows]
    return pl.DataFrame(
        {
            "land": [("NA", "FR", "DE")[k % 3] for k in rows],
            "price": [given[k] if k % 4 == 0 else f"{k * 1.5}" for k in rows],
            "paid": [given[k] if k % 4 == 0 else f"{k},50 €" for k in rows],
            "click": [k % 2 for k in rows],
        }
    )


def test_a_mark_is_an_empty_cell_and_a_category_stays_one() -> None:
    marked, empty = log_of(*MISSING_MARKS), log_of(None)
    encoder = Encoder.fit(marked, SCHEMA)
    assert encoder == Encoder.fit(empty, SCHEMA)
    for frame in (
        marked,
        marked.to_pandas(),
        marked.with_columns(pl.col("price").cast(pl.Categorical)),
    ):
        got, want = encoder.transform(frame), encoder.transform(empty)
        np.testing.assert_array_equal(got.values, want.values)
        np.testing.assert_array_equal(got.ids, want.ids)
    assert "NA" in encoder.fitted[0].values
    plain = empty.with_columns(paid=pl.col("paid").str.replace(" €", "").str.replace(",", "."))
    numbers = Schema(fields=(*FIELDS[:2], Numeric("paid")), label=Label("click"))
    assert Encoder.fit(plain, numbers).fitted == encoder.fitted


def test_marks_are_the_schemas_and_may_be_switched_off() -> None:
    frame = log_of("k.A.", "-999")
    own = Schema(fields=FIELDS, label=Label("click"), missing=["K.A.", "-999"])
    assert Schema.from_toml(own.to_toml()) == own
    assert Encoder.fit(frame, own).fitted == Encoder.fit(log_of(None), own).fitted
    assert Encoder.from_json(Encoder.fit(frame, own).to_json()).missing == ("K.A.", "-999")
    numbers = frame.with_columns(price=pl.col("price").replace("k.A.", "-999").cast(pl.Float64))
    assert Encoder.fit(numbers, own).fitted[1] == Encoder.fit(log_of(None), own).fitted[1]
    assert missing_marks(frame, own, budget=NO_LIMIT) == {
        name: {"k.A.": 5, "-999": 5} for name in ("price", "paid")
    }
    whole = numbers.with_columns(pl.col("price").cast(pl.Int64))
    assert missing_marks(whole, own, budget=NO_LIMIT)["price"] == {"-999": 10}
    for marks in ([], ["x"]):
        with pytest.raises(DataError, match=r"column 'price' .* holds the text 'NULL' in row 0"):
            Encoder.fit(log_of("NULL"), Schema(fields=FIELDS, label=Label("click"), missing=marks))
    for wrong in ("NA", [""], [7]):
        with pytest.raises(SchemaError, match="missing must be a list of texts"):
            Schema(fields=FIELDS, label=Label("click"), missing=wrong)


@pytest.mark.parametrize(
    "kind", [pl.Int64, pl.Int16, pl.Float32, pl.Float64, pl.Decimal(9, 2), pl.String]
)
def test_a_mark_that_is_a_number_is_one_in_a_column_of_any_type(kind: pl.DataType) -> None:
    frame = pl.DataFrame({"x": [1, -999, 3, -999]}).cast(kind)
    schema = Schema(fields=(Numeric("x"),), label=Label("y"), missing=["NULL", "-999"])
    (mark, count), *others = missing_marks(frame, schema, budget=NO_LIMIT)["x"].items()
    assert (float(mark), count, others) == (-999, 2, [])
    assert (
        Encoder.fit(frame, schema).fitted
        == Encoder.fit(pl.DataFrame({"x": [1, None, 3, None]}), schema).fitted
    )


def test_training_says_which_marks_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.concat([log_of("NULL", "?")] * 4)
    prepared = prepare(frame, SCHEMA, split=RandomSplit(), seed=0)
    assert prepared.marks == {name: {"?": 20, "NULL": 20} for name in ("price", "paid")}
    Recommender(SCHEMA, FM(embedding_dim=2), verbose=True).fit(frame)
    said = "".join(capsys.readouterr())
    assert "2 columns ('price', 'paid'): '?' in 40, 'NULL' in 40 cells read as missing" in said


def test_marks_of_many_columns_are_one_sentence_with_a_count() -> None:
    marks = {f"x{k}": {"NA": k + 1} for k in range(2_000)} | {"age": {"?": 1}}
    assert marks_sentences(marks) == [
        "2,000 columns ('x0', 'x1', 'x2', 'x3', 'x4', ...): 'NA' in 2,001,000 cells read as missing",
        "column 'age': '?' in 1 cell read as missing",
    ]


def test_a_single_row_may_hold_marks_and_amounts() -> None:
    bundle = random_bundle(FM(embedding_dim=4), SCHEMA, log_of(None))
    rows = [
        {"land": "FR", "price": price, "paid": paid}
        for price, paid in [("NULL", "-"), ("7.5", "3,5 €"), (7.5, 3.5)]
    ]
    want = [bundle.predict(pl.DataFrame([row | {"price": p, "paid": q}])) for row, p, q in
            zip(rows, (None, 7.5, 7.5), (None, 3.5, 3.5), strict=True)]  # fmt: skip
    np.testing.assert_array_equal([bundle.predict(pl.DataFrame([row])) for row in rows], want)


@pytest.mark.parametrize(
    "label", [Label("y", positive_above=3), Label("y", task="regression"), Label("y")]
)
def test_a_row_whose_label_is_a_mark_has_none(label: Label) -> None:
    cells = ["1", "NA", "0", "NA"] if label == Label("y") else ["1", "NA", "5", "NA"]
    frame = pl.DataFrame({"y": cells})
    with pytest.raises(
        DataError, match=r"2 of 4 rows have none .* row 1 .*'NA': write drop_values = \[\"NA\"\]"
    ):
        read_label(frame, label, budget=NO_LIMIT)
    rows = read_label(
        frame,
        Label("y", task=label.task, positive_above=label.positive_above, drop_values=("NA",)),
        budget=NO_LIMIT,
    )
    assert (len(rows.main), rows.dropped) == (2, 2)


@pytest.mark.parametrize(
    "cells", [[1, -999, 0, -999], [1.0, -999.0, 0.0, -999.0], ["1", "-999", "0", "-999"]]
)
@pytest.mark.parametrize("rule", [{"positive_above": 0.5}, {"task": "regression"}, {}])
def test_a_number_that_marks_a_missing_one_is_no_label(
    cells: list[object], rule: dict[str, Any]
) -> None:
    frame = pl.DataFrame({"y": cells})
    with pytest.raises(
        DataError, match=r"2 of 4 rows have none .* row 1 .*999.*: write drop_values = "
    ):
        read_label(frame, Label("y", **rule), missing=("-999",), budget=NO_LIMIT)
    rows = read_label(
        frame, Label("y", drop_values=(-999,), **rule), missing=("-999",), budget=NO_LIMIT
    )
    assert rows.main.tolist() == [1, 0]
    assert rows.dropped == 2
    schema = Schema(fields=(Categorical("u"),), label=Label("y", **rule), missing=["-999"])
    with pytest.raises(DataError, match="every row needs a label"):
        prepare(
            pl.concat([frame.with_columns(u=pl.lit("a"))] * 5), schema, split=RandomSplit(), seed=0
        )


def test_rows_of_a_log_whose_label_is_empty_or_a_mark_are_not_positive() -> None:
    log = pl.DataFrame({"rating": ["5", "", "NA", None, "2"]})
    assert positive_rows(log, Label("rating", positive_above=3)).tolist() == [
        True,
        False,
        False,
        False,
        False,
    ]
    words = pl.DataFrame({"answer": ["yes", "", None, "NA"]})
    assert positive_rows(words, Label("answer", positive_values=("yes",))).tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_labels_that_may_be_thousands_are_fractions(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    (tmp_path / "log.csv").write_text(
        "u,y\n" + "".join(f"u{k % 7},{1 + k % 2}.000\n" for k in range(60))
    )
    table = as_table(tmp_path / "log.csv")
    for rule, expected in [
        ({"positive_values": (2,)}, [0, 1]),
        ({"positive_values": ("2.000",)}, [0, 1]),
        ({"positive_above": 1}, [0, 1]),
        ({"task": "regression"}, [1, 2]),
        ({"task": "regression", "number_format": "1.234,5"}, [1000, 2000]),
        ({"task": "regression", "drop_values": (2,)}, [1, 1]),
    ]:
        with subtests.test(rule=rule):
            assert (
                read_label(table, Label("y", **rule), budget=NO_LIMIT).main[:2].tolist() == expected
            )
    guess = infer_schema(table, label="y")
    assert guess.schema.label.positive_values == (2,)
    assert 'number_format = "1.234,5" if it is 1000' in guess.doubts["y"]


@pytest.mark.parametrize(
    ("cells", "form", "numbers"),
    [
        (["12,50", "3"], "1.234,5", [12.5, 3]),
        (["¥1,200", "¥980"], "¥ 1,234.5", [1200, 980]),
        (["$ 3.5", "-$4,000.25", "$-1"], "$ 1,234.5", [3.5, -4000.25, -1]),
        (["€ 9,90", "1.200,50 €", "7"], "€ 1.234,5", [9.9, 1200.5, 7]),
        (["12.5 %", "3%"], "1,234.5 %", [12.5, 3]),
        (["1 200,5 руб.", "3 руб."], "1 234,5 руб.", [1200.5, 3]),
        (["1'200.50 CHF", "12 chf"], "1'234.5 CHF", [1200.5, 12]),
        (["3,5 кг", "12 кг"], "1.234,5 кг", [3.5, 12]),
        (["1200円", "80円"], "1,234.5 円", [1200, 80]),
        (["R$ 1.200,50", "R$ 3"], "R$ 1.234,5", [1200.5, 3]),
    ],
)
def test_amounts_are_numbers_with_a_unit(cells: list[str], form: str, numbers: list[float]) -> None:
    assert form in number_formats(pl.Series(cells))
    assert as_number(pl.Series(cells), "it", form=form).to_list() == numbers


@pytest.mark.parametrize(
    "cells",
    [["u1", "u2"], ["€ 3", "$ 4"], ["3m", "4m"], ["1-2", "3-4"], ["a 3", "b 4"], ["3", "4"]],
)
def test_what_is_no_amount_has_no_format(cells: list[str]) -> None:
    assert number_formats(pl.Series(cells)) == []


@pytest.mark.parametrize("form", ["1234.5", "€", "€ 1.234,5 €", "12 1,234.5", "", "a b 1,234.5"])
def test_a_wrong_number_format_is_told(form: str) -> None:
    for made in (lambda: Numeric("x", number_format=form), lambda: Label("y", number_format=form)):
        with pytest.raises(
            SchemaError, match=r"number_format must be one of '1,234.5', .* such as '€ 1.234,5'"
        ):
            made()


def test_pandas_missing_values_beside_marks_are_one_thing() -> None:
    frame = pd.DataFrame({"x": ["1", None, "NA", float("nan"), "2"]})
    assert as_number(pl.from_pandas(frame["x"]), "x").to_list() == [1, None, None, None, 2]


def test_requests_and_stored_rows_have_the_schemas_marks_and_amounts() -> None:
    paid = Numeric("paid", number_format="€ 1.234,5")
    fields = (Categorical("who", role="user"), Numeric("price", role="user"), paid)
    schema = Schema(fields=fields, label=Label("click"), missing=["K.A.", "-999"], user="who")
    rows = {
        "who": ["u1", "u1", "u2", "u2", "u3", "u3"],
        "price": ["k.A.", None, "-999", "7.5", "7.5", " K.A. "],
        "paid": ["1.234,50 €", "€ 1.234,50", "k.A.", "-999", None, "3 €"],
    }
    frame = pl.DataFrame(rows)
    bundle = random_bundle(FM(embedding_dim=3), schema, log_of(None).with_columns(who=pl.lit("u1")))
    expected = bundle.predict(frame)
    assert len({*expected.round(7)}) > 1
    server = client(Service(bundle))
    answer = server.post("/v1/predict", {"rows": frame.to_dicts()})
    np.testing.assert_allclose(
        [one["prediction"] for one in answer.json()["predictions"]], expected, rtol=1e-5
    )
    refused = server.post("/v1/predict", {"rows": [{"who": "u1", "price": "NULL", "paid": None}]})
    assert refused.status_code == 422, "a mark of other schemas is no mark of this one"

    users = frame.select(pl.format("u{}", pl.int_range(6)).alias("who"), "price")
    stored = client(Service(bundle), Stores(users=Lookup("users", TableStore("who", users))))
    asked = [{"who": f"u{k}", "paid": paid} for k, paid in enumerate(rows["paid"])]
    answer = stored.post("/v1/predict", {"rows": asked})
    own = bundle.predict(frame.with_columns(users["who"]))
    np.testing.assert_allclose(
        [one["prediction"] for one in answer.json()["predictions"]], own, rtol=1e-5
    )


@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_mark_is_no_time(in_chunks: bool) -> None:
    """It is missing, and said as such: in text of dates, in text of numbers, and as a number."""
    budget = MemoryBudget(chunk_rows=7) if in_chunks else MemoryBudget()
    for cells, marks, shown in (
        ([f"2026-01-{1 + k % 28:02d}" for k in range(40)], ("NULL", "\\N"), "NULL"),
        ([f"{1_700_000_000 + k}" for k in range(40)], ("-999",), "-999"),
        ([1_700_000_000 + k for k in range(40)], ("-999",), "-999"),
    ):
        given = [int(mark) if isinstance(cells[0], int) else mark for mark in marks]
        cells[11], cells[30] = given[0], given[-1]
        schema = Schema(fields=FIELDS, label=Label("click"), time="when", missing=marks)
        frame = log_of(None).with_columns(when=pl.Series(cells))
        # each chunk of numbers is read alone
        in_chunk = in_chunks and not isinstance(cells[0], str)
        have_none = "1 of 7" if in_chunk else "2 of 40"
        rule = rf"needs its time .*'when' holds '?{shown}'? in row 11 \(counting from 0\), %s rows have none"
        with pytest.raises(DataError, match=rule % have_none):
            split_table(frame, TimeSplit(), schema, y=np.arange(40) % 2, budget=budget)
        with pytest.raises(DataError, match=rule % "2 of 40"):
            latest_rows(frame, "land", [schema])
    other = Schema(fields=FIELDS, label=Label("click"), time="when", missing=())
    with pytest.raises(DataError, match="needs a number or a date for ordering"):
        split_table(
            log_of(None).with_columns(when=pl.lit("NULL")),
            TimeSplit(),
            other,
            y=np.arange(40) % 2,
            budget=NO_LIMIT,
        )


def test_slices_and_the_audit_take_the_schemas_marks() -> None:
    numbers = pl.Series("price", [-999 if k % 20 == 3 else k for k in range(400)])
    frame = pl.DataFrame([numbers, pl.Series("click", [k // 2 % 2 for k in range(400)])])
    schema = Schema(fields=(Numeric("price"),), label=Label("click"), missing=["-999"])
    slices, _ = slices_of("price", frame, schema)
    assert {one.name: len(one.rows) for one in slices}["(absent)"] == 20
    assert not any("-999" in one.name for one in slices)
    found = audit_fields(frame, frame["click"].to_numpy(), schema, 0)
    assert [one.kind for one in found] == ["id-like"], "a row number but for the marked cells"
    plain = Schema(fields=(Numeric("price"),), label=Label("click"))
    assert audit_fields(frame, frame["click"].to_numpy(), plain, 0) == []


@pytest.mark.parametrize("name", ["", "mark", "count"])
def test_marks_are_counted_in_a_column_of_any_name_the_most_frequent_first(name):
    cells = pl.Series(name, ["?", "NULL", "7", "-", "NULL", None])
    assert list(marks_in(cells, ("null", "-", "?")).items()) == [("NULL", 2), ("-", 1), ("?", 1)]
