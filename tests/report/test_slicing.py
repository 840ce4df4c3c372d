"""How fields and columns are cut, and who is new."""

import datetime
import itertools

import numpy as np
import polars as pl
import pytest

from fieldwise import Bag, Categorical, ConfigError, Label, Numeric, Schema, Sequence
from fieldwise.report.slice_sections import (
    check_slices,
    cold_section,
    slice_names,
    slices_of,
    slices_section,
)
from fieldwise.runs.records import LabelScores
from fieldwise.schema.ids import id_columns

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user", column="uid"),
        Categorical("item", role="item"),
        Bag("tags", role="item"),
        Sequence("history", role="user"),
        Numeric("price"),
    ),
    label=Label("click"),
    group="uid",
)


def frame(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "uid": [f"u{k}" for k in rng.integers(0, 8, rows)],
            "item": rng.integers(0, 5, rows),
            "tags": ["|".join(f"t{k}" for k in range(n)) for n in rng.integers(0, 3, rows)],
            "history": [[f"i{k}" for k in range(n)] for n in rng.integers(0, 9, rows)],
            "price": rng.random(rows).round(3),
            "stars": rng.integers(1, 6, rows),
            "day": [
                datetime.date(2026, 1, 1) + datetime.timedelta(days=int(k))
                for k in rng.integers(0, 90, rows)
            ],
            "click": rng.integers(0, 2, rows),
        }
    )


def cut(name, table=None):
    table = frame() if table is None else table
    slices, note = slices_of(name, table, SCHEMA)
    return {one.name: one.rows for one in slices}, note


def test_categories_are_cut_by_value_whatever_the_column_is_called():
    result, note = cut("user")
    expected = {u: np.flatnonzero(frame()["uid"].to_numpy() == u) for u in frame()["uid"].unique()}
    assert note == ""
    assert {name: rows.tolist() for name, rows in result.items()} == {
        u: r.tolist() for u, r in expected.items()
    }
    assert {name: len(rows) for name, rows in cut("uid")[0].items()} == {
        u: len(r) for u, r in expected.items()
    }


def test_a_row_of_a_bag_is_in_each_of_its_values():
    result, note = cut("tags")
    cells = frame()["tags"].to_list()
    for name in ("t0", "t1"):
        assert result[name].tolist() == [
            k for k, cell in enumerate(cells) if name in cell.split("|")
        ]
    assert result["(absent)"].tolist() == [k for k, cell in enumerate(cells) if not cell]
    assert "each of its values" in note


def test_histories_are_cut_by_length_and_numbers_by_quantile():
    result, _ = cut("history")
    lengths = np.array([len(h) for h in frame()["history"].to_list()])
    assert sum(map(len, result.values())) == 200
    for name, rows in result.items():
        low, _, high = name.partition(" to ")
        assert (lengths[rows] >= int(low)).all()
        assert (lengths[rows] <= int(high or low)).all()
    prices = [frame()["price"].to_numpy()[rows] for rows in cut("price")[0].values()]
    assert [len(p) for p in prices] == pytest.approx([40] * 5, abs=2)
    assert all(a.max() < b.min() for a, b in itertools.pairwise(prices))


def test_few_numbers_are_values_and_days_have_their_dates():
    assert sorted(cut("stars")[0]) == ["1", "2", "3", "4", "5"]
    days, _ = cut("day")
    first = next(iter(days))
    assert first.startswith(f"{frame()['day'].min()} to 2026-01-")
    assert sum(map(len, days.values())) == 200
    absent = frame().with_columns(
        pl.when(pl.col("stars") > 3).then(None).otherwise("stars").alias("stars")
    )
    assert len(cut("stars", absent)[0]["(absent)"]) == (frame()["stars"] > 3).sum()


def test_what_is_no_field_or_column():
    assert slice_names(frame(), SCHEMA) == (
        *("user", "item", "tags", "history", "price"),
        "uid",
        "stars",
        "day",
    )
    with pytest.raises(ConfigError, match="found 'itm': did you mean 'item'"):
        check_slices(["user", "itm"], frame(), SCHEMA)
    with pytest.raises(ConfigError, match="found 'click'"):
        check_slices(["click"], frame(), SCHEMA)


def scored(table):
    return LabelScores(
        table["click"].to_numpy().astype(float), np.random.default_rng(1).normal(size=table.height)
    )


def test_a_table_of_a_slice_shows_what_is_too_small():
    table = frame(400)
    section = slices_section(["tags"], table, SCHEMA, scored(table), True)
    by_value = {row[0]: row for row in section.blocks[0].rows}
    assert by_value["t0"][1] == str(sum("t0" in cell for cell in table["tags"]))
    assert "to" in by_value["t0"][3]
    few = slices_section(["uid"], table[:40], SCHEMA, scored(table[:40]), True)
    assert {row[3] for row in few.blocks[0].rows} == {"too small"}
    none = slices_section([], table, SCHEMA, scored(table), True)
    assert "--slice FIELD" in none.blocks[0]


def test_new_users_and_items_are_counted_by_training_rows():
    train, test = frame(300, seed=1), frame(200, seed=2)
    train = train.filter(~pl.col("uid").is_in(["u0", "u1"]))
    columns = id_columns(test.columns, SCHEMA)
    assert columns == {"user": "uid", "item": "item"}
    users, items, both, _ = cold_section(train, test, columns, scored(test), True).blocks
    times = dict(train["uid"].value_counts().iter_rows())
    counts = [times.get(u, 0) for u in test["uid"]]
    assert users.rows[0][:2] == ["none (new)", str(sum(n == 0 for n in counts))]
    assert [row[1] for row in users.rows][3:] == [
        str(sum(20 <= n <= 99 for n in counts)),
        str(sum(n >= 100 for n in counts)),
    ]
    new = sum(u in ("u0", "u1") for u in test["uid"])
    assert (
        users.note
        == f"{new} test rows have one of 2 values of uid that are not in the training rows."
    )
    assert items.note == "Every item of the test rows is in the training rows."
    assert [row[1] for row in both.rows] == [str(200 - new), str(new), "0", "0"]


def test_columns_of_users_and_items():
    bare = Schema(fields=(Numeric("price"),), label=Label("click"))
    assert id_columns(frame().columns, bare) == {"user": None, "item": None}
    blocks = cold_section(
        frame(), frame(), {"user": None, "item": None}, scored(frame()), True
    ).blocks
    assert "set user = COLUMN" in blocks[0]
    with pytest.raises(ConfigError, match="must be single values"):
        cold_section(frame(), frame(), {"user": "history", "item": None}, scored(frame()), True)
