"""Inferred schemas against what a person would write for known tables."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise.data.infer import infer_schema
from fieldwise.data.labels import read_label
from fieldwise.data.libfm import read_libfm
from fieldwise.data.simulated import simulate
from fieldwise.errors import SchemaError
from fieldwise.schema import Bag, Categorical, Label, Numeric, Schema, Sequence


def with_label(**columns: object) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    return frame.with_columns((pl.int_range(pl.len()) % 2).alias("label"))


def test_the_simulated_log_is_read_as_its_docs_say() -> None:
    guess = infer_schema(simulate(5000))
    kinds = {f.name: (f.kind, f.role) for f in guess.schema.fields}
    assert kinds == {
        "user_id": ("categorical", "user"),
        "age_group": ("categorical", "user"),
        "gender": ("categorical", "user"),
        "city": ("categorical", "user"),
        "item_id": ("categorical", "item"),
        "genres": ("bag", "item"),
        "release_decade": ("categorical", "item"),
        "length": ("numeric", "item"),
        "hour": ("categorical", "context"),
        "weekday": ("categorical", "context"),
        "device": ("categorical", "context"),
        "history": ("sequence", "user"),
    }
    assert guess.schema.label == Label("liked")
    assert (guess.schema.time, guess.schema.group, guess.schema.keys) == (
        "timestamp",
        "user_id",
        ("user_id", "item_id"),
    )
    assert guess.notes["title"] == "left out: it goes one to one with 'item_id'"
    assert guess.notes["true_probability"].startswith("left out: ")


def test_notes_cover_every_column_and_stand_in_the_toml() -> None:
    frame = simulate(3000)
    guess = infer_schema(frame)
    assert list(guess.notes) == frame.columns
    text = guess.to_toml()
    assert all(f"# {name}: {note}" in text or f"#   {name}: {note}" in text for name, note in guess.notes.items())
    assert Schema.from_toml(text) == guess.schema
    assert f'# genres: {guess.notes["genres"]}\n[[fields]]\nname = "genres"' in text


def test_movielens_names_give_ratings_users_and_items() -> None:
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "userId": rng.integers(1, 500, 3000),
            "movieId": rng.integers(1, 900, 3000),
            "rating": rng.integers(1, 6, 3000),
            "timestamp": rng.integers(0, 10**9, 3000),
            "ts_lo": rng.integers(0, 10**9, 3000),
            "occupation": rng.integers(0, 21, 3000),
            "zip_code": [f"{k:05d}" for k in rng.integers(0, 400, 3000)],
        }
    )
    schema = infer_schema(frame).schema
    assert schema.label == Label("rating", positive_above=3, drop_values=(3,))
    assert [(f.name, f.kind, f.role) for f in schema.fields] == [
        ("userId", "categorical", "user"),
        ("movieId", "categorical", "item"),
        ("occupation", "categorical", "user"),
        ("zip_code", "categorical", "user"),
    ]
    assert (schema.time, schema.group) == ("timestamp", "userId")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series("tags", ["a;b", "b", "c;a", "a;c"] * 5), Bag("tags", separator=";")),
        (pl.Series("tags", ["a, b", "b", "c, a", "a, c"] * 5), Bag("tags", separator=",")),
        (pl.Series("tags", [["a"], ["b", "a"], [], ["c"]] * 5), Bag("tags")),
        (pl.Series("past_items", [[1], [2, 1], [], [3]] * 5), Sequence("past_items")),
        (pl.Series("weight", np.linspace(0, 1, 20)), Numeric("weight", encoding="quantile", transform="none")),
        (pl.Series("count", np.arange(100) ** 2), Numeric("count", encoding="quantile", transform="none")),
        (pl.Series("count", [1, 2, 3, 4] * 5), Categorical("count")),
        (pl.Series("count", [1.0, 2.0, None, 4.0] * 5), Categorical("count")),
        (pl.Series("site_id", np.arange(100)), Categorical("site_id")),
        (pl.Series("flag", [True, False] * 10), Categorical("flag")),
        (pl.Series("note", ["Lyon, France", "Rome, Italy"] * 10), Categorical("note")),
        (
            pl.Series("amount", [str(k / 7) for k in range(100)]),
            Numeric("amount", encoding="quantile", transform="none"),
        ),
    ],
)
def test_kinds_follow_the_content(column: pl.Series, kind: object) -> None:
    (field,) = infer_schema(with_label(**{column.name: column})).schema.fields
    assert field == (kind if column.name != "past_items" else Sequence("past_items", role="user"))


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pl.Series("x", [None] * 2000), "every cell is empty"),
        (pl.Series("x", [float("nan")] * 2000), "every cell is empty"),
        (pl.Series("x", [[]] * 2000, dtype=pl.List(pl.String)), "every cell is empty"),
        (pl.Series("x", [7] * 2000), "it is constant"),
        (pl.Series("x", [f"row {k}" for k in range(2000)]), "nearly every cell is another"),
        (pl.Series("event_id", range(2000)), "nearly every cell is another"),
        (pl.Series("x", [{"a": 1}] * 2000), "none that a field reads"),
        (pl.Series("split", ["train", "test"] * 1000), "part of the split"),
        (
            pl.Series("when", pl.datetime_range(pl.datetime(2026, 1, 1), pl.datetime(2026, 1, 2), "1h", eager=True)),
            "date",
        ),
    ],
)
def test_useless_columns_are_left_out_with_the_reason(column: pl.Series, why: str) -> None:
    guess = infer_schema(with_label(**{"kept": [k % 3 for k in range(len(column))], column.name: column}))
    assert [f.name for f in guess.schema.fields] == ["kept"]
    assert guess.notes[column.name].startswith("left out: ")
    assert why in guess.notes[column.name]


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([0, 1, 1], Label("y")),
        ([True, False, True], Label("y")),
        (["0", "1", "1"], Label("y")),
        ([-1, 1, 1], Label("y", positive_above=0)),
        ([1, 2, 2], Label("y", positive_values=(2,))),
        ([0.5, 4.5, 5], Label("y", positive_above=3, drop_values=(3,))),
        (["<=50K", ">50K", "<=50K"], Label("y", positive_values=(">50K",))),
        ([1.5, 2.5, 90.0], Label("y", task="regression")),
    ],
)
def test_label_rules_follow_the_values(values: list[object], label: Label) -> None:
    assert infer_schema(pl.DataFrame({"y": values, "x": [1, 2, 1]})).schema.label == label


@pytest.mark.parametrize(
    ("frame", "label", "message"),
    [
        ({"x": [1, 2]}, None, "no column looks like a label"),
        ({"x": [1, 2], "click": [0, 1], "rating": [1, 5]}, None, "several columns look like a label, click, rating"),
        ({"x": [1, 2]}, "z", "'z' must be in the table: known: x"),
        ({"x": [1, 2], "y": [0, None]}, None, "none in 1 of 2 rows, the first is row 1"),
        ({"x": [1, 2], "y": ["no", "no"]}, None, "holds 'no' alone"),
        ({"x": [1, 2], "y": [True, True]}, None, "holds 'true' alone"),
        ({"x": [1, 2], "y": ["4 stars", "5 stars"]}, None, "some are above 3 and some below"),
        ({"x": [1, 2], "y": [1, 1]}, None, "holds 1 alone"),
        ({"x": [1, 2, 3], "y": ["a", "b", "c"]}, None, "holds 3"),
        ({"x": [1, 2], "y": [[1], [2]]}, None, "is of type List"),
        ({"x": [1, 1], "y": [0, 1]}, None, "none of the columns"),
        ({"x": [], "y": []}, None, "the table has none"),
    ],
)
def test_what_cannot_be_guessed_is_told(frame: dict[str, list[object]], label: str | None, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        infer_schema(pl.DataFrame(frame), label=label)


@pytest.mark.parametrize(
    ("often", "rarely"),
    [
        (yes, no)
        for yes, no in [
            ("yes", "no"), ("Y", "N"), ("T", "F"), ("click", "no click"), ("Click", "skip"),
            ("liked", "disliked"), ("positive", "Negative"), ("clicked", "not_clicked"), ("like", "unlike"),
            ("bought", "view"), ("pass", "fail"), ("ja", "nein"), ("oui", "non"), ("👍", "👎"), ("+", "-"),
        ]
    ],
)  # fmt: skip
def test_words_of_a_known_meaning_decide_before_frequency(often: str, rarely: str) -> None:
    for positive_rows in (1, 9):
        values = [often] * positive_rows + [rarely] * (10 - positive_rows)
        guess = infer_schema(pl.DataFrame({"y": values, "x": [1, 2] * 5}))
        assert guess.schema.label == Label("y", positive_values=(often,))
        assert guess.doubts == {}
        assert read_label(pl.DataFrame({"y": values}), guess.schema.label).y.sum() == positive_rows


@pytest.mark.parametrize("values", [["True", "False", "True"], ["TRUE", "FALSE", "TRUE"], [True, False, True]])
def test_true_and_false_in_any_case_need_no_rule(values: list[object]) -> None:
    frame = pl.DataFrame({"y": values, "x": [1, 2, 1]})
    guess = infer_schema(frame)
    assert (guess.schema.label, guess.doubts) == (Label("y"), {})
    assert read_label(frame, guess.schema.label).y.tolist() == [1, 0, 1]


def test_where_frequency_alone_is_left_it_is_said_loudly() -> None:
    frame = pl.DataFrame({"y": ["<=50K"] * 6 + [">50K"] * 4, "x": [1, 2] * 5})
    guess = infer_schema(frame)
    assert guess.schema.label == Label("y", positive_values=(">50K",))
    assert list(guess.doubts) == ["y"]
    assert "nothing but frequency" in guess.doubts["y"]
    assert 'positive_values = ["<=50K"]' in guess.doubts["y"]
    assert f"# CHECK: {guess.doubts['y']}\n[label]" in guess.to_toml()
    assert Schema.from_toml(guess.to_toml()) == guess.schema
    told = infer_schema(frame, positive=["<=50K"])
    assert (told.schema.label, told.doubts) == (Label("y", positive_values=("<=50K",)), {})
    with pytest.raises(SchemaError, match=r"must occur in the label's column 'y': did you mean '>50K'"):
        infer_schema(frame, positive=[">50k"])
    with pytest.raises(SchemaError, match="all those of column 'y'"):
        infer_schema(frame, positive=["<=50K", ">50K"])
    numbers = infer_schema(pl.DataFrame({"y": [1, 2, 2, 2], "x": [1, 2, 1, 2]}))
    assert numbers.schema.label == Label("y", positive_values=(2,))
    assert "--positive 1" in numbers.doubts["y"]


def test_a_note_of_several_lines_stays_one_comment() -> None:
    guess = infer_schema(pl.DataFrame({"y": ["a\nb", "a\nb", "c"], "x": [1, 2, 1]}))
    assert Schema.from_toml(guess.to_toml()) == guess.schema


def test_more_than_two_words() -> None:
    frame = pl.DataFrame({"y": ["yes", "Yes", "no", "NO"], "x": [1, 2, 1, 2]})
    guess = infer_schema(frame)
    assert set(guess.schema.label.positive_values or ()) == {"yes", "Yes"}
    guess = infer_schema(frame.with_columns(y=pl.Series(["yes", "no", "maybe", "maybe"])))
    assert guess.schema.label == Label("y", positive_values=("yes",))
    assert "'maybe' in the label's column 'y' is not known, and 2 rows" in guess.doubts["y"]


def test_stars_make_a_binary_rule_with_a_comment() -> None:
    frame = pl.DataFrame({"stars": ["5 stars", "4 stars", "3 stars", "1 star", "2 stars"], "x": [1, 2, 1, 2, 1]})
    guess = infer_schema(frame)
    assert guess.schema.label == Label("stars", positive_values=("4 stars", "5 stars"), drop_values=("3 stars",))
    assert read_label(frame, guess.schema.label).y.tolist() == [1, 1, 0, 0]
    numbers = infer_schema(pl.DataFrame({"stars": [1, 2, 3, 4, 5], "x": [1, 2, 1, 2, 1]}))
    assert numbers.schema.label == Label("stars", positive_above=3, drop_values=(3,))
    assert "rows with 3 (1 of 5) say neither and are dropped" in numbers.to_toml()


def test_of_libfm_the_values_are_no_field(tmp_path: Path) -> None:
    file = tmp_path / "rows.libfm"
    file.write_text("1 3:1 7:1.0\n-1 3:1\n1\n")
    guess = infer_schema(read_libfm(file))
    assert guess.schema.fields == (Bag("ids"),)
    assert guess.notes["values"] == "left out: every libFM value is 1, so that the ids say it all"
    assert Schema.from_toml(guess.to_toml()) == guess.schema
    file.write_text("1 3:1 7:1\n-1 3:1\n1 3:2\n")
    with pytest.raises(SchemaError, match=r"values other than 1 .* line 3 holds one; convert the file"):
        infer_schema(read_libfm(file))


def test_another_label_is_no_field() -> None:
    """A like follows the click: as a field it would tell the label."""
    frame = pl.DataFrame({"user": [1, 1, 2], "click": [0, 1, 1], "like": [0, 1, 0], "isLiked": [1, 0, 1]})
    guess = infer_schema(frame, label="click")
    assert [f.name for f in guess.schema.fields] == ["user"]
    assert guess.notes["like"].startswith("left out: another label, by its name")
    assert "more_labels" in guess.to_toml()
    assert Schema.from_toml(guess.to_toml()) == guess.schema
