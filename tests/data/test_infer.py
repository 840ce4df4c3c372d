"""Inferring schemas: names, contents, reasons, doubts, and the corpus of tables."""

import re
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks.inference.tables import judged, planted
from chunks_lab import prepare
from sklearn import datasets

from fieldwise import (
    Bag,
    Categorical,
    DataError,
    Label,
    NegativeSampling,
    Numeric,
    RandomSplit,
    Schema,
    SchemaError,
    Sequence,
    infer_schema,
    simulate,
)
from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.inference import Inference
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.suggested_split import suggest_split
from fieldwise.data.read.formats.libfm import read_libfm
from fieldwise.data.read.text_stream import ByteSource
from fieldwise.schema.ids import id_columns
from fieldwise.storage.scratch import NO_LIMIT

BINS = {"encoding": "quantile", "transform": "none", "bins": 8, "point_masses": True}  # of few rows


def with_label(**columns: object) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    return frame.with_columns((pl.int_range(pl.len()) % 2).alias("label"))


def test_the_simulated_log_is_read_as_its_docs_say() -> None:
    guess = infer_schema(simulate(5000))
    kinds = {(f.kind, f.role): [] for f in guess.schema.fields}
    for f in guess.schema.fields:
        kinds[f.kind, f.role].append(f.name)
    assert kinds == {
        ("categorical", "user"): ["user_id", "age_group", "gender", "city"],
        ("categorical", "item"): ["item_id", "release_decade"],
        ("bag", "item"): ["genres"],
        ("numeric", "item"): ["length"],
        ("categorical", "context"): ["hour", "weekday", "device"],
        ("sequence", "user"): ["history"],
    }
    assert guess.schema.label == Label("liked")
    assert (guess.schema.time, guess.schema.user, guess.schema.item) == (
        "timestamp",
        "user_id",
        "item_id",
    )
    assert guess.notes["title"].startswith(
        "omitted: a display name of the item, nearly one to one (397 values for 397 of 'item_id')"
    )
    assert guess.notes["true_probability"].startswith("omitted: ")


def test_notes_cover_every_column_and_stand_in_the_toml() -> None:
    frame = simulate(3000)
    guess = infer_schema(frame)
    assert list(guess.notes) == frame.columns
    text = guess.to_toml()
    assert all(
        f"# {name}: {note}" in text or f"#   {name}: {note}" in text
        for name, note in guess.notes.items()
    )
    assert Schema.from_toml(text) == guess.schema
    assert f'# genres: {guess.notes["genres"]}\n[[fields]]\nname = "genres"' in text


def test_kinds_follow_the_content(subtests):
    for column, kind in [
        (pl.Series("tags", ["a;b", "b", "c;a", "a;c"] * 5), Bag("tags", separator=";")),
        (pl.Series("tags", ["a, b", "b", "c, a", "a, c"] * 5), Bag("tags", separator=",")),
        (pl.Series("tags", [["a"], ["b", "a"], [], ["c"]] * 5), Bag("tags")),
        (pl.Series("past_items", [[1], [2, 1], [], [3]] * 5), Sequence("past_items")),
        (pl.Series("weight", np.linspace(0, 1, 20)), Numeric("weight", **BINS)),
        (pl.Series("count", np.arange(100) ** 2), Numeric("count", **BINS)),
        (pl.Series("count", [1, 2, 3, 4] * 5), Numeric("count", **BINS)),
        (pl.Series("count", [1.0, 2.0, None, 4.0] * 5), Numeric("count", **BINS)),
        (pl.Series("hour", [0, 3, 1, 2] * 5), Categorical("hour")),
        (pl.Series("site_id", np.arange(100) * 7 % 41), Categorical("site_id")),
        (pl.Series("flag", [True, False] * 10), Categorical("flag")),
        (pl.Series("note", ["Lyon, France", "Rome, Italy"] * 10), Categorical("note")),
        (pl.Series("amount", [str(k / 7) for k in range(100)]), Numeric("amount", **BINS)),
    ]:
        with subtests.test(column=column, kind=kind):
            (field,) = infer_schema(with_label(**{column.name: column})).schema.fields
            assert field == (
                kind if column.name != "past_items" else Sequence("past_items", role="user")
            )


def test_useless_columns_are_left_out_with_the_reason(subtests):
    for column, why in [
        (pl.Series("x", [None] * 2000), "every cell is empty"),
        (pl.Series("x", [float("nan")] * 2000), "every cell is empty"),
        (pl.Series("x", [[]] * 2000, dtype=pl.List(pl.String)), "every cell is empty"),
        (pl.Series("x", [7] * 2000), "it is constant"),
        (pl.Series("x", [f"row {k}" for k in range(2000)]), "nearly every cell is different"),
        (pl.Series("event_id", range(2000)), "nearly every cell is different"),
        (pl.Series("x", [f"row {k}" for k in range(60)]), "nearly every cell is different"),
        (pl.Series("row", range(60)), "nearly every cell is different"),
        (pl.Series("x", [{"a": 1}] * 2000), "no field reads its type"),
        (pl.Series("split", ["train", "test"] * 1000), "part of the split"),
        (
            pl.Series("birthdate", [date(2026, 1, 1 + k) for k in range(25)]),
            "a date or time must be converted",
        ),
        (pl.Series("born", [f"{1900 + k}-01-02" for k in range(60)]), "its text is dates"),
    ]:
        with subtests.test(column=column, why=why):
            guess = infer_schema(
                with_label(**{"kept": [k % 3 for k in range(len(column))], column.name: column})
            )
            assert [f.name for f in guess.schema.fields] == ["kept"]
            assert guess.notes[column.name].startswith("omitted: ")
            assert why in guess.notes[column.name]


def test_label_rules_follow_the_values(subtests):
    for values, label in [
        ([0, 1, 1], Label("y")),
        ([True, False, True], Label("y")),
        (["True", "False", "True"], Label("y")),
        (["TRUE", "FALSE", "TRUE"], Label("y")),
        (["0", "1", "1"], Label("y")),
        ([-1, 1, 1], Label("y", positive_above=0)),
        ([1, 2, 2], Label("y", positive_values=(2,))),
        ([0.5, 4.5, 5], Label("y", positive_above=3)),
        ([1, 7, 10], Label("y", positive_above=6)),
        ([0, 35, 100], Label("y", positive_above=60)),
        ([0, 1, 2], Label("y", positive_above=0)),
        (["<=50K", ">50K", "<=50K"], Label("y", positive_values=(">50K",))),
        ([1.5, 2.5, 90.0], Label("y", task="regression")),
        (["yes", "Yes", "no", "NO"], Label("y", positive_values=("Yes", "yes"))),
    ]:
        with subtests.test(values=values, label=label):
            frame = pl.DataFrame({"y": values, "x": [1, 2, 1, 2][: len(values)]})
            guess = infer_schema(frame)
            assert guess.schema.label == label
            if label == Label("y"):
                assert guess.doubts == {}
                assert read_label(frame, label, budget=NO_LIMIT).main.tolist() == [
                    int(str(value).lower() in ("1", "true")) for value in values
                ]


def test_what_cannot_be_guessed_is_told(subtests):
    for frame, label, message in [
        ({"x": [1, 2]}, None, "no column looks like a label"),
        ({"x": [1, 2]}, "z", "'z' must be in the table: known: x"),
        ({"x": [1, 2], "y": [0, None]}, None, "none in 1 of 2 rows, the first is row 1"),
        ({"x": [1, 2], "y": ["no", "no"]}, None, "only holds 'no'"),
        ({"x": [1, 2], "y": [True, True]}, None, "only holds 'true'"),
        ({"x": [1, 2], "y": ["4 stars", "5 stars"]}, None, "some are above 3 and some below"),
        ({"x": [1, 2], "y": [1, 1]}, None, "only holds 1,"),
        ({"x": [1, 2, 3], "y": ["a", "b", "c"]}, None, "holds 3"),
        ({"x": [1, 2], "y": [[1], [2]]}, None, "is of type List"),
        ({"x": [1, 1], "y": [0, 1]}, None, "none of the columns"),
        ({"x": [], "y": []}, None, "the table has none"),
    ]:
        with (
            subtests.test(frame=frame, label=label, message=message),
            pytest.raises(SchemaError, match=message),
        ):
            infer_schema(pl.DataFrame(frame), label=label)


def test_of_several_labels_the_likeliest_is_taken_and_the_others_are_shown() -> None:
    frame = pl.DataFrame(
        {"x": [1, 2] * 20, "rating": [1, 2, 4, 5] * 10, "click": [0, 0, 0, 1] * 10}
    )
    guess = infer_schema(frame)
    assert [(one.label, one.rate) for one in guess.labels[:2]] == [
        (Label("click"), 0.25),
        (Label("rating", positive_above=3), 0.5),
    ]
    assert guess.schema.label == guess.labels[0].label
    assert "others that may be it: 'rating'" in guess.doubts["click"]
    unnamed = infer_schema(frame.rename({"rating": "c2", "click": "c3"}).select("x", "c3"))
    assert unnamed.schema.label == Label("c3")
    assert "chosen by its values" in unnamed.doubts["c3"]


def test_a_log_of_positives_proposes_negatives() -> None:
    rng = np.random.default_rng(0)
    log = pl.DataFrame(
        {"user_id": rng.integers(0, 40, 900), "item_id": rng.integers(0, 60, 900), "t": range(900)}
    )
    log = log.unique(["user_id", "item_id"], maintain_order=True)
    guess = infer_schema(log)
    assert (guess.only_positives, guess.schema.label) == (True, Label("event"))
    assert "the recipe needs [negatives]" in guess.doubts["event"]
    split, _ = suggest_split(log, guess.schema, only_positives=True)
    negatives = NegativeSampling(per_positive=2, parts=("train", "valid", "test"))
    prepared = prepare(log, guess.schema, split=split, seed=0, negatives=negatives)
    assert prepared.counts["negatives_drawn"] == 2 * log.height
    with pytest.raises(DataError, match="in a log of positive events alone the recipe's"):
        prepare(log, guess.schema, split=split, seed=0)


def test_words_of_a_known_meaning_decide_before_frequency(subtests):
    pairs = "yes/no Y/N T/F click/no-click Click/skip liked/disliked positive/Negative clicked/not_clicked like/unlike"
    for often, rarely in (
        pair.split("/") for pair in (pairs + " pass/fail ja/nein oui/non 👍/👎 +/-").split()
    ):
        with subtests.test(often=often, rarely=rarely):
            for positive_rows in (1, 9):
                values = [often] * positive_rows + [rarely] * (10 - positive_rows)
                guess = infer_schema(pl.DataFrame({"y": values, "x": [1, 2] * 5}))
                assert guess.schema.label == Label("y", positive_values=(often,))
                assert guess.doubts == {}
                assert (
                    read_label(
                        pl.DataFrame({"y": values}), guess.schema.label, budget=NO_LIMIT
                    ).y.sum()
                    == positive_rows
                )


@pytest.mark.parametrize(
    ("values", "positive", "doubt", "other"),
    [
        (
            ["bad"] * 3 + ["terrible"] * 7,
            "terrible",
            "'terrible' .* assumed positive, the opposite of 'bad'",
            "bad",
        ),
        (
            ["bad"] * 7 + ["terrible"] * 3,
            "terrible",
            "'terrible' .* assumed positive, the opposite of 'bad'",
            "bad",
        ),
        (
            ["bought"] * 3 + ["browse"] * 7,
            "bought",
            "'browse' .* was assumed negative, the opposite of .*",
            "browse",
        ),
        (
            ["bought"] * 7 + ["browse"] * 3,
            "bought",
            "'browse' .* was assumed negative, the opposite of .*",
            "browse",
        ),
        (
            ["<=50K"] * 6 + [">50K"] * 4,
            ">50K",
            r'unknown which of .* positive_values = \["<=50K"\]',
            "<=50K",
        ),
        (["a\nb"] * 2 + ["c"], "c", "unknown which of", "a\nb"),
        (
            ["yes", "no", "maybe", "maybe"],
            "yes",
            "the meaning of 'maybe' .2 rows. in the label's .* assumed neg",
            None,
        ),
        ([1, 2, 2, 2], 2, "unknown which of .* give 1 as positive", None),
    ],
)
def test_values_of_unknown_meaning_are_in_doubt(values, positive, doubt, other) -> None:
    frame = pl.DataFrame({"y": values, "x": [k % 2 for k in range(len(values))]})
    guess = infer_schema(frame)
    assert guess.schema.label == Label("y", positive_values=(positive,))
    assert list(guess.doubts) == ["y"]
    assert re.search(doubt, guess.doubts["y"])
    doubt = guess.doubts["y"].replace("\n", " ")
    assert f"# CHECK: {doubt}\n[label]" in guess.to_toml()
    assert Schema.from_toml(guess.to_toml()) == guess.schema
    if other is not None:
        assert guess.doubts["y"].endswith("as positive, else every prediction means the opposite")
        told = infer_schema(frame, positive=[other])
        assert (told.schema.label, told.doubts) == (Label("y", positive_values=(other,)), {})


def test_the_positive_values_that_are_given_must_occur_and_leave_others() -> None:
    frame = pl.DataFrame({"y": ["<=50K"] * 6 + [">50K"] * 4, "x": [1, 2] * 5})
    with pytest.raises(
        SchemaError, match=r"must occur in the label's column 'y': did you mean '>50K'"
    ):
        infer_schema(frame, positive=[">50k"])
    with pytest.raises(SchemaError, match="all values of column 'y'"):
        infer_schema(frame, positive=["<=50K", ">50K"])


def test_stars_make_a_binary_rule_with_a_comment() -> None:
    frame = pl.DataFrame(
        {"stars": ["5 stars", "4 stars", "3 stars", "1 star", "2 stars"], "x": [1, 2, 1, 2, 1]}
    )
    guess = infer_schema(frame)
    assert guess.schema.label == Label("stars", positive_values=("4 stars", "5 stars"))
    assert read_label(frame, guess.schema.label, budget=NO_LIMIT).main.tolist() == [1, 1, 0, 0, 0]
    numbers = infer_schema(pl.DataFrame({"stars": [1, 2, 3, 4, 5], "x": [1, 2, 1, 2, 1]}))
    assert numbers.schema.label == Label("stars", positive_above=3)
    assert "above 3 is positive (40% of the rows)" in numbers.to_toml()
    assert "rows with 3 are negative, since they are 20% of the rows" in numbers.to_toml()
    assert (
        "drop_values = [3] would leave them out as neutral, and make 50% positive"
        in numbers.to_toml()
    )


def test_of_libfm_the_values_are_no_field(tmp_path: Path) -> None:
    file = tmp_path / "rows.libfm"
    file.write_text("1 3:1 7:1.0\n-1 3:1\n1\n")
    guess = infer_schema(read_libfm(ByteSource(path=file)))
    assert guess.schema.fields == (Bag("ids"),)
    assert guess.notes["values"] == "omitted: every libFM value is 1, so only the ids matter"
    assert Schema.from_toml(guess.to_toml()) == guess.schema
    file.write_text("1 3:1 7:1\n-1 3:1\n1 3:2\n")
    with pytest.raises(
        SchemaError, match=r"values other than 1 .* line 3 holds one; convert the file"
    ):
        infer_schema(read_libfm(ByteSource(path=file)))


def test_another_label_is_no_field() -> None:
    """A like follows the click: as a field it would tell the label."""
    frame = pl.DataFrame(
        {"user": [1, 1, 2], "click": [0, 1, 1], "like": [0, 1, 0], "isLiked": [1, 0, 1]}
    )
    guess = infer_schema(frame, label="click")
    assert [f.name for f in guess.schema.fields] == ["user"]
    assert guess.notes["like"].startswith("omitted: another label, by its name")
    assert "more_labels" in guess.to_toml()
    assert Schema.from_toml(guess.to_toml()) == guess.schema


def log_of(items: int = 100, users: int = 40, rows: int = 2000) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, users, rows), rng.integers(0, items, rows)
    return pl.DataFrame(
        {"user_id": user, "sku": [f"s{k}" for k in item], "k": item, "u": user}
    ).with_columns(click=pl.Series(rng.integers(0, 2, rows)))


def roles_of(frame: pl.DataFrame) -> dict[str, str]:
    return {f.name: f.role for f in infer_schema(frame.drop("k", "u")).schema.fields}


def test_what_the_item_or_the_user_settles_is_theirs_whatever_its_name() -> None:
    log = log_of().with_columns(
        shade=pl.format("c{}", pl.col("k") % 5),
        mood=pl.col("u") % 3,
        user_score=(pl.col("k") * 37 % 101) / 7,  # a user's by its name, but of the item
        tags=pl.format("t{}|x{}", pl.col("k") % 4, pl.col("k") % 3),
        slot=pl.int_range(pl.len()) % 7,
        weekday=pl.col("u") % 7,
    )
    assert roles_of(log) == {
        "user_id": "user", "sku": "item", "shade": "item", "mood": "user", "user_score": "item", "tags": "item",
        "slot": "context", "weekday": "context",
    }  # fmt: skip
    schema = infer_schema(log).schema
    assert (schema.user, schema.item, schema.group, schema.keys) == ("user_id", "sku", None, ())


def test_a_hundredth_of_the_rows_may_disagree_and_no_more() -> None:
    """More rows that disagree let the column vary, and what is nearly always one value is settled by nobody."""
    log = log_of()
    for share, reason in ((0.005, "determined by the item"), (0.05, "the item id explains")):
        changed = pl.int_range(pl.len()) % round(1 / share) == 0
        shade = pl.when(changed).then(pl.lit("c9")).otherwise(pl.format("c{}", pl.col("k") % 5))
        guess = infer_schema(log.with_columns(shade=shade).drop("k", "u"))
        assert f"role item: {reason}" in guess.notes["shade"]
    shade = pl.when(pl.int_range(pl.len()) % 150 == 0).then(1).otherwise(0)
    assert roles_of(log.with_columns(shade=shade))["shade"] == "context"


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def test_a_varying_column_is_of_the_side_that_explains_most_of_it(subtests) -> None:
    """Sums of an item's, a user's and a row's effect, of known variances; the share of a side is its variance's."""
    log = log_of(rows=8000)
    rng = np.random.default_rng(1)
    of_item = _standard(rng.normal(size=100)[log["k"].to_numpy()])
    of_user = _standard(rng.normal(size=40)[log["u"].to_numpy()])
    of_row = _standard(rng.normal(size=8000))
    for name, item, user, role, check in [
        ("price", 0.97, 0.0, "item", False),
        ("amount", 0.97, 0.0, "item", False),  # its name tells nothing
        ("user_score", 0.8, 0.1, "item", False),  # its name tells the wrong side
        ("item_score", 0.1, 0.8, "user", False),
        ("amount", 0.55, 0.2, "item", True),
        ("price", 0.46, 0.2, "context", True),
        ("price", 0.2, 0.2, "context", False),
        ("amount", 0.0, 0.0, "context", False),
        ("hour", 0.9, 0.0, "context", False),  # a moment's by its name
    ]:
        with subtests.test(name=name, item=item, user=user):
            logarithm = (
                item**0.5 * of_item + user**0.5 * of_user + (1 - item - user) ** 0.5 * of_row
            )
            for cells in (
                pl.Series(np.exp(logarithm)),
                pl.Series([f"{x:.3f}" for x in np.exp(logarithm)]),
            ):
                guess = infer_schema(log.with_columns(cells.alias(name)).drop("k", "u"))
                field = next(f for f in guess.schema.fields if f.name == name)
                assert field.role == role
                assert ("explains" in guess.doubts.get(name, "")) == check, guess.doubts


def test_a_varying_category_is_of_the_side_that_explains_most_of_it(subtests) -> None:
    """A cell of five values is the item's own with probability p, else any: the share is p squared."""
    log = log_of(rows=8000)
    rng = np.random.default_rng(1)
    for p, role, check in ((0.95, "item", False), (0.75, "item", True), (0.6, "context", False)):
        own = rng.random(8000) < p
        shade = np.where(own, log["k"].to_numpy() % 5, rng.integers(0, 5, 8000))
        with subtests.test(p=p):
            guess = infer_schema(
                log.with_columns(shade=pl.Series([f"c{n}" for n in shade])).drop("k", "u")
            )
            assert next(f.role for f in guess.schema.fields if f.name == "shade") == role
            assert ("shade" in guess.doubts) == check
            if role == "item":
                share = (
                    float(guess.notes["shade"].split("the item id explains ")[1].split("%")[0])
                    / 100
                )
                assert share == pytest.approx(p**2, abs=0.03)


def test_a_column_that_both_sides_explain_alike_is_by_its_name_and_to_be_checked() -> None:
    """A user buys at one price level, and so does an item stand at one: the name decides."""
    rng = np.random.default_rng(0)
    level = rng.integers(0, 4, 6000)
    user, item = level * 10 + rng.integers(0, 10, 6000), level * 25 + rng.integers(0, 25, 6000)
    price = level * 10.0 + rng.normal(0, 1, 6000)
    log = pl.DataFrame(
        {"user_id": user, "sku": [f"s{k}" for k in item], "click": rng.integers(0, 2, 6000)}
    )
    for name, role in (("price", "item"), ("income", "user")):
        guess = infer_schema(log.with_columns(pl.Series(price).alias(name)))
        assert next(f.role for f in guess.schema.fields if f.name == name) == role
        assert f"column {name!r} was taken for a field of the {role}" in guess.doubts[name]


def test_a_title_with_a_few_repeats_is_a_display_column() -> None:
    """18 of MovieLens-1M's 1,682 titles come twice."""
    log = log_of(items=300, rows=6000).with_columns(
        caption=pl.format("film {}", pl.when(pl.col("k") < 4).then(0).otherwise(pl.col("k"))),
        nickname=pl.format("user {}", pl.col("u")),
        genre=pl.col("k") % 200,
    )
    guess = infer_schema(log.drop("k", "u"))
    # 40 users are few
    assert [f.name for f in guess.schema.fields] == ["user_id", "sku", "nickname", "genre"]
    assert guess.notes["caption"].startswith(
        "omitted: a display name of the item, nearly one to one (297 values for 300 of 'sku')"
    )


def test_the_time_is_found_by_type_text_stamps_or_name(subtests):
    for column, why in [
        (pl.Series("visit", [datetime(2026, 1, 1 + k % 28) for k in range(200)]), "it holds times"),
        (pl.Series("visit", [date(2026, 1, 1 + k % 28) for k in range(200)]), "it holds days"),
        (pl.Series("visit", [f"{1 + k % 28} Jan 2026" for k in range(200)]), "its text is dates"),
        (
            pl.Series("visit", [1_700_000_000 + 61 * k for k in range(200)]),
            "numbers are seconds since 1970",
        ),
        (
            pl.Series("at", [1_700_000_000_000 + 10**9 * (k // 50) for k in range(200)]),
            "are milliseconds since 1970",
        ),
        (pl.Series("timestamp", list(range(200))), "by its name"),
        (pl.Series("stand", [20_260_101 + k % 28 for k in range(200)]), "dates, year first"),
    ]:
        with subtests.test(column=column, why=why):
            frame = pl.DataFrame(
                {"x": [k % 3 for k in range(200)], "label": [k % 2 for k in range(200)]}
            ).with_columns(column)
            guess = infer_schema(frame)
            assert guess.schema.time == column.name
            assert guess.notes[column.name].startswith("time: ")
            assert why in guess.notes[column.name]
            assert column.name not in {f.name for f in guess.schema.fields}


def test_what_is_no_time_of_an_event() -> None:
    frame = with_label(
        x=[k % 3 for k in range(200)],
        release_date=[date(2026, 1, 1 + k % 28) for k in range(200)],
        time=["noon", "noon", "night", "night"] * 50,
        amount=[1_700_000_000 + k % 5 for k in range(200)],
        when=[None, *(date(2026, 1, 1 + k % 28) for k in range(199))],
    )
    guess = infer_schema(frame)
    assert guess.schema.time is None
    assert [f.name for f in guess.schema.fields] == ["x", "time", "amount"]
    assert "1 of 200 rows have none" in guess.notes["when"]


def test_a_time_that_few_rows_lack_is_asked_about() -> None:
    days = [date(2026, 1, 1 + k % 28) for k in range(200)]
    few = infer_schema(with_label(x=[k % 3 for k in range(200)], when=[None, *days[1:]]))
    assert few.schema.time is None
    assert "1 of 200 rows have none, so the schema has no time" in few.doubts["when"]

    many = infer_schema(with_label(x=[k % 3 for k in range(200)], when=[None] * 40 + days[40:]))
    assert "when" not in many.doubts

    beside = with_label(x=[k % 3 for k in range(200)], when=[None, *days[1:]], timestamp=days)
    assert infer_schema(beside).schema.time == "timestamp"
    assert "when" not in infer_schema(beside).doubts


def test_day_against_month_is_asked_or_written_down() -> None:
    days = [f"{1 + k % 12:02d}/{1 + k % 11:02d}/2026" for k in range(200)]
    frame = with_label(x=[k % 3 for k in range(200)], date=days)
    guess = infer_schema(frame)
    assert (guess.schema.time, guess.schema.time_format) == ("date", None)
    assert 'time_format = "%d/%m/%Y" or time_format = "%m/%d/%Y"' in guess.doubts["date"]
    assert f"# CHECK: {guess.doubts['date']}" in guess.to_toml()
    told = infer_schema(frame.with_columns(date=pl.Series(["31/01/2026", *days[1:]])))
    assert (told.schema.time_format, told.doubts) == ("%d/%m/%Y", {})
    several = infer_schema(
        frame.select("x", "label", pl.lit(0).alias("k"), seen="date", timestamp="date")
    )
    assert (several.schema.time, several.notes["seen"][:21]) == (
        "timestamp",
        "omitted: another time",
    )


def kind_of(name: str, guess: Inference) -> str:
    return {f.name: f.kind for f in guess.schema.fields}[name]


def test_numbers_that_recur_in_alike_rows_are_no_codes() -> None:
    """A survey's weights, which rows of one region and age share, tell of the label what region and age do."""
    rng = np.random.default_rng(0)
    rows = 12_000
    region, age = rng.integers(0, 20, rows), rng.integers(18, 80, rows)
    drawn_from = rng.lognormal(12, 0.6, (20, 80, 6)).astype(
        int
    )  # six weights for each region and age
    weight = drawn_from[region, age, rng.integers(0, 6, rows)]
    effect = rng.normal(0, 1.5, 20)[region] + (age - 49) / 15
    label = rng.random(rows) < 1 / (1 + np.exp(-effect))
    others = {"region": [f"r{k}" for k in region], "age": age}
    guess = infer_schema(pl.DataFrame({**others, "x": weight, "label": label.astype(int)}))
    assert kind_of("x", guess) == "numeric"
    assert "crowd around a middle or one end" in guess.notes["x"]
    assert 'write kind = "categorical"' in guess.doubts["x"]

    gains = np.append(0, rng.choice(100_000, 99, replace=False))
    own_effect = np.append(0, rng.normal(0, 3, 99))
    kind = rng.integers(0, 100, rows) * (rng.random(rows) < 0.3)
    label = rng.random(rows) < 1 / (1 + np.exp(-effect - own_effect[kind]))
    guess = infer_schema(
        pl.DataFrame({**others, "amount": gains[kind], "label": label.astype(int)})
    )
    assert kind_of("amount", guess) == "categorical"
    assert "categories predict the label better, given the other columns" in guess.notes["amount"]


def test_neighbours_are_alike_only_if_more_so_than_in_random_order() -> None:
    """Codes of even frequencies are numbered at random; the counts of a count change step by step."""
    rng = np.random.default_rng(0)
    codes = rng.choice(21, 4_000, p=rng.dirichlet(np.full(21, 8.0)))
    visits = rng.binomial(20, 0.4, 4_000)
    guess = infer_schema(with_label(occupation=codes, x=visits))
    assert kind_of("occupation", guess) == "categorical"
    assert kind_of("x", guess) == "numeric"
    assert "neighbouring numbers are about as frequent" in guess.notes["x"]


def test_attributes_alone_are_no_ids() -> None:
    """Adult has no users: its education must not group rows."""
    schema = infer_schema(
        with_label(education=["a", "b", "c", "d"] * 9, age=[1, 2, 3] * 12, genre_id=[1, 2] * 18)
    ).schema
    assert (schema.user, schema.grouping, schema.row_keys) == (None, None, ())


def test_a_file_of_rows_alone_or_of_none_is_told_by_its_fault(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("user,item,label\n")
    with pytest.raises(
        SchemaError,
        match=r"inferred from rows, but .*empty.csv has none; write the schema yourself",
    ):
        infer_schema(tmp_path / "empty.csv")
    (tmp_path / "bare.csv").write_text("1,7,0\n2,8,1\n3,9,0\n")
    with (
        pytest.warns(UserWarning, match="looks like a row"),
        pytest.raises(
            SchemaError, match=r"no header line, write one or give the names of its columns$"
        ),
    ):
        infer_schema(tmp_path / "bare.csv")
    with pytest.raises(SchemaError, match=r"give it as label$"):
        infer_schema(pl.DataFrame({"user": [1], "item": [2]}))


def shop(rows: int = 4000) -> pl.DataFrame:
    """A log of hashed users and of items whose numbers have gaps, with popularity of a long tail."""
    rng = np.random.default_rng(1)
    weights = [w / w.sum() for w in (rng.lognormal(0, 1, 300), rng.lognormal(0, 1.3, 150))]
    user, item = rng.choice(300, rows, p=weights[0]), rng.choice(150, rows, p=weights[1])
    codes = rng.choice(99_999, 150, replace=False)
    joined = rng.uniform(0, 300, 300)
    days = joined[user] + rng.exponential(20, rows)
    liked = rng.random(rows) < 0.15 + 0.5 * (user % 3 == item % 3)
    frame = pl.DataFrame(
        {
            "visitorid": [f"u{k * 7919 % 9973:05d}x" for k in user],
            "sku": codes[item],
            "brand": [f"b{k % 12}" for k in item],
            "price": (5 + rng.lognormal(3, 0.6, 150)).round(2)[item],
            "age": rng.normal(40, 12, 300).clip(16, 90).astype(int)[user],
            "orders": rng.poisson(2, rows),
            "site_mean": rng.integers(1, 6, 150)[item],
            "when": (1_700_000_000 + days * 86_400).astype(int),
            "bought": liked.astype(int),
        }
    )
    return frame.sort("when")


def meaning(frame: pl.DataFrame, **ids: str) -> dict[str, object]:
    schema = infer_schema(frame, **ids).schema
    kinds: dict[str, object] = {f.column: (f.kind, f.role) for f in schema.fields}
    return kinds | {
        "user": schema.user,
        "item": schema.item,
        "time": schema.time,
        "label": schema.label.column,
    }


def test_ids_kinds_roles_and_label_are_found_under_names_that_mean_nothing() -> None:
    log = shop()
    names = {name: f"c{k}" for k, name in enumerate(log.columns, 1)}
    guess = infer_schema(log.rename(names))
    assert guess.possible_ids == {"user": "c1", "item": "c2"}
    result = meaning(log.rename(names), **guess.possible_ids)
    assert result == {
        "c1": ("categorical", "user"), "c2": ("categorical", "item"), "c3": ("categorical", "item"),
        "c4": ("numeric", "item"), "c5": ("numeric", "user"), "c6": ("numeric", "context"), "c7": result["c7"],
        "user": "c1", "item": "c2", "time": "c8", "label": "c9",
    }  # fmt: skip
    assert {"c1", "c2", "c9"} <= guess.doubts.keys(), "what the rows alone tell is to be checked"
    named = meaning(log)
    assert (named["user"], named["item"], named["label"]) == ("visitorid", "sku", "bought")


def test_nothing_follows_from_ids_in_doubt(tmp_path: Path) -> None:
    """Rows alone do not make a column an id: it is asked, and until then no field has its side."""
    names = ["anka", "bero", "cilu", "dova", "enti"]
    log = shop().rename(
        dict(zip(["visitorid", "sku", "brand", "price", "age"], names, strict=True))
    )
    guess = infer_schema(log)
    schema = guess.schema
    assert (schema.user, schema.item, schema.grouping, schema.row_keys) == (None, None, None, ())
    assert {f.column: f.role for f in schema.fields if f.column in names} == dict.fromkeys(
        names, "context"
    )
    assert id_columns(log.columns, schema) == {"user": None, "item": None}, (
        "no rule takes them either"
    )
    prepared = prepare(log, schema, split=RandomSplit(), seed=0)
    assert prepared.test.group is None, "no group AUC"
    text = guess.to_toml()
    assert Schema.from_toml(text) == schema
    assert '\n# user = "anka"\n' in text
    assert '\n# item = "bero"\n' in text
    assert "# CHECK: column 'anka' may hold the user ids" in text
    half = infer_schema(log, user="anka")
    assert (half.schema.user, half.schema.item, half.possible_ids) == (
        "anka",
        None,
        {"item": "bero"},
    )
    assert {f.column: f.role for f in half.schema.fields}["enti"] == "user"
    swapped = infer_schema(log, user="bero")
    assert (swapped.schema.user, swapped.possible_ids) == ("bero", {"item": "anka"})
    said = infer_schema(log, user="anka", item="bero").schema
    assert {f.column: f.role for f in said.fields if f.column in names} == {
        "anka": "user", "bero": "item", "cilu": "item", "dova": "item", "enti": "user",
    }  # fmt: skip
    with pytest.raises(SchemaError, match="the user ids must be a column: 'c' is not"):
        infer_schema(log, user="c")
    with pytest.raises(
        SchemaError,
        match=r"give the columns of ids as user and item \(user may be 'anka', item may be",
    ):
        infer_schema(log.drop("bought", "orders", "site_mean"))
    assert infer_schema(
        log.drop("bought", "orders", "site_mean"), user="anka", item="bero"
    ).only_positives


def test_what_a_column_is_follows_from_its_cells_and_the_label(subtests):
    log, rng = shop(), np.random.default_rng(2)
    rows, paid = log.height, log.select(pl.when(pl.col("bought") == 1).then("price"))["price"]
    weights = [str(k) for k in rng.integers(100, 900, rows)]
    weights[5] = weights[900] = "#REF!"
    days = [f"Week {k}, {day}" for k in range(1, 9) for day in ("Mon", "Tue", "Wed")]
    cases = {  # the cells, the kind or None, and what is said
        "few": (rng.poisson(1, rows), "numeric", ""),
        "orders": (log["orders"], "numeric", ""),
        "shelf": (rng.choice(rng.choice(90_000, 40), rows), "categorical", ""),
        "weight_g": (
            weights,
            "numeric",
            "2 of 4,000 cells of column 'weight_g' are no numbers ('#REF!')",
        ),
        "rate": (
            [f"{x:.2f}%" for x in rng.uniform(1, 20, rows)],
            "numeric",
            "text with numbers such as",
        ),
        "day": (rng.choice(days, rows), "bag", "look like times"),
        "row": (np.arange(rows) + 17, None, "nearly every cell is different"),
        "contract": (
            rng.choice(5 * rows, rows, replace=False),
            None,
            "nearly every cell is different",
        ),
        "order": (np.sort(rng.integers(70_000, 71_000, rows)), None, "running number"),
        "refund": (paid, None, "empty except where the label is positive"),
        "outcome_text": (
            log["bought"].replace_strict({0: "B", 1: "A"}),
            None,
            "each of its values has one value of the label",
        ),
        "fold": (rng.choice(["train", "valid", "test"], rows), None, "part of the split"),
    }
    guess = infer_schema(
        log.drop("when").with_columns(pl.Series(name, cells) for name, (cells, *_) in cases.items())
    )
    kinds = {f.column: f.kind for f in guess.schema.fields}
    for name, (_, kind, said) in cases.items():
        with subtests.test(name=name):
            assert kinds.get(name) == kind
            assert said in guess.notes[name] + guess.doubts.get(name, "")
    assert (guess.schema.user, guess.schema.item, guess.schema.time) == ("visitorid", "sku", None)
    counts = np.minimum(rng.geometric(0.6, rows), 10)  # from one: no label of a log of positives
    assert infer_schema(log.drop("bought").with_columns(count=pl.Series(counts))).only_positives


@pytest.mark.parametrize(
    "values",
    [["a", "b", "c"] * 10, [2, 3] * 15, ["seen", "x"] * 15, [1] * 30, ["1 star", "2 stars"] * 15],
)
@pytest.mark.parametrize("label", ["y", None])
def test_messages_name_no_option_of_the_command_line(values, label):
    frame = pl.DataFrame(
        {"user": [f"u{k}" for k in range(30)], "item": ["i", "j", "k"] * 10, "y": values}
    )
    try:
        guess = infer_schema(frame, label=label)
        said = [*guess.doubts.values(), *guess.notes.values()]
    except SchemaError as e:
        said = [str(e)]
    assert not [one for one in said if re.search(r"(?<!\w)--[a-z]", one)], said


def test_ids_are_found_by_rows_whatever_numbers_or_text_they_are() -> None:
    rng = np.random.default_rng(4)
    log = shop()
    codes = {
        column: log[column].rank("dense").cast(pl.Int64) - 1 for column in ("visitorid", "sku")
    }
    for user, item in [
        # too great for a float; eight digits
        (rng.integers(10**14, 10**16, 5000), rng.choice(10**8, 5000)),
        (rng.integers(-(2**62), 2**62, 5000), np.array([rng.bytes(4).hex() for _ in range(5000)])),
    ]:
        cells = [
            pl.Series(c, ids[codes[c].to_numpy()])
            for c, ids in (("visitorid", user), ("sku", item))
        ]
        guess = infer_schema(log.with_columns(cells).rename({"visitorid": "k1", "sku": "k2"}))
        assert guess.possible_ids == {"user": "k1", "item": "k2"}
        assert {f.column: f.kind for f in guess.schema.fields if f.column in ("k1", "k2")} == {
            "k1": "categorical",
            "k2": "categorical",
        }


def test_a_number_before_its_title_is_the_id_and_an_amount_after_it_is_not() -> None:
    log = shop()
    titles = pl.col("pzn").rank("dense").cast(pl.String).str.replace("$", "th of them")
    result = infer_schema(log.rename({"sku": "pzn"}).with_columns(title=titles))
    assert (result.possible_ids["item"], "display name" in result.notes["title"]) == ("pzn", True)


@pytest.mark.parametrize(
    ("cells", "label"),
    [
        (
            ["1 Stern", "2 Sterne", "4 Sterne", "5 Sterne"],
            Label("v", positive_values=("4 Sterne", "5 Sterne")),
        ),
        (["★☆☆☆☆", "★★☆☆☆", "★★★★☆"], Label("v", positive_values=("★★★★☆",))),
        (["Sì", "No"], Label("v", positive_values=("Sì",))),
        (list(range(80, 101)), Label("v", task="regression")),
        ([k / 40 for k in range(41)], Label("v", task="regression")),
    ],
)
def test_a_label_is_known_by_its_values(cells: list[object], label: Label) -> None:
    log = shop().drop("bought")
    values = pl.Series("v", cells).gather(
        np.random.default_rng(6).integers(0, len(cells), log.height)
    )
    guess = infer_schema(log.with_columns(values.alias("v")), label="v")
    assert guess.schema.label == label
    if label.task != "regression" or isinstance(cells[0], float):
        assert infer_schema(log.with_columns(values.alias("v"))).schema.label == label


# The shares that must be reached, with the headers and without.
LEAST = {
    False: {"read without options": 0.9, "columns right": 0.95, "ids found": 0.9},
    True: {"read without options": 0.9, "columns right": 0.95, "ids found": 0.8},
}


@pytest.mark.parametrize(
    ("anonymous", "only"),
    [
        pytest.param(False, "", marks=pytest.mark.slow),
        pytest.param(True, "", marks=pytest.mark.slow),
        (True, ": food"),  # without headers is harder
        (True, ": education"),
    ],
)
def test_the_corpus_is_read_as_it_is_meant(tmp_path, anonymous, only):
    verdicts = [judged(table) for table in planted(tmp_path, anonymous=anonymous, only=only)]
    ids = [right for one in verdicts for right in one["ids"].values()]
    results = {
        "read without options": sum(not one["unread"] for one in verdicts) / len(verdicts),
        "columns right": 1
        - sum(len(one["wrong"]) for one in verdicts) / sum(one["columns"] for one in verdicts),
        "ids found": sum(ids) / len(ids),
    }
    less = {
        name: results[name] for name, least in LEAST[anonymous].items() if results[name] < least
    }
    assert less == {}, [one for one in verdicts if one["wrong"] or one["unread"]]


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes", "wine"])
def test_public_sets_are_read_without_options(name, tmp_path):
    bunch = getattr(datasets, f"load_{name}")()
    y = bunch.target if name in ("breast_cancer", "diabetes") else bunch.target == bunch.target[0]
    frame = pl.DataFrame(bunch.data, schema=[f"x{k}" for k in range(bunch.data.shape[1])])
    frame.with_columns(target=pl.Series(y).cast(pl.Int64)).write_csv(
        tmp_path / "table.csv", separator=";"
    )
    assert infer_schema(tmp_path / "table.csv").schema.label.column == "target"


def test_equal_doubts_are_one_sentence_with_a_count() -> None:
    codes = [f"zip_{k}" for k in range(8)]
    doubts = dict.fromkeys(codes, f"column {THIS_COLUMN} may be a code") | {
        "day": f"column {THIS_COLUMN} may be a time"
    }
    grouped = replace(infer_schema(simulate(500)), column_doubts=doubts).grouped_doubts()
    assert grouped == {
        "zip_0": "column 'zip_0' may be a code (the same holds for 7 other columns: "
        "'zip_1', 'zip_2', 'zip_3', 'zip_4', 'zip_5', ...)",
        "day": "column 'day' may be a time",
    }


@pytest.mark.parametrize("kind", [pl.Int64, pl.Decimal(12, 0), pl.Decimal(14, 2)])
def test_decimals_that_are_whole_numbers_are_read_as_such(kind: pl.DataType) -> None:
    seconds = 1_600_000_000 + np.random.default_rng(0).integers(0, 10**6, 400)
    frame = with_label(when=seconds, kind=np.arange(400) % 3).with_columns(
        pl.col("when").cast(kind)
    )
    assert infer_schema(frame).schema.time == "when"
