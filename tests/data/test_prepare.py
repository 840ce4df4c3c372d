"""From a raw table to three encoded parts: counts, no leakage between parts, and reproducibility by seed."""

import dataclasses
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from chunks_lab import assert_equal, assert_equal_parts, prepare

from fieldwise import (
    Bag,
    Categorical,
    ColumnSplit,
    ConfigError,
    DataError,
    Label,
    NegativeSampling,
    Numeric,
    RandomSplit,
    Schema,
    SchemaError,
    Sequence,
)
from fieldwise.data.prepare.labels import read_label
from fieldwise.data.prepare.preparation import Preparation
from fieldwise.data.prepare.prepared import Prepared, SplitPart, group_codes
from fieldwise.storage.scratch import NO_LIMIT

PARTS = ("train", "valid", "test")
BY_PART = ColumnSplit(column="part")
SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Categorical("item", role="item", min_count=2),
        Numeric("price", role="item"),
        Numeric("age", encoding="quantile", role="user"),
        Bag("genres", role="item"),
        Sequence("history", role="user"),
    ),
    label=Label("rating", positive_above=3, drop_values=(3,)),
    group="user",
)


def ratings(rows: int = 400, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)

    def words(most: int) -> list[str]:
        return ["|".join(map(str, rng.integers(0, 6, rng.integers(0, most)))) for _ in range(rows)]

    return pl.DataFrame(
        {
            "user": rng.integers(0, 30, rows),
            "item": rng.integers(0, 60, rows),
            "price": rng.normal(10, 3, rows),
            "age": rng.integers(18, 60, rows),
            "genres": words(3),
            "history": words(5),
            "rating": rng.integers(1, 6, rows),
            "part": rng.choice(["train", "valid", "test"], rows, p=[0.6, 0.2, 0.2]),
        }
    )


def test_rows_targets_groups_and_counts_equal_plain_filters() -> None:
    frame = ratings()
    prepared = prepare(frame, SCHEMA, split=BY_PART, seed=0)
    kept = frame.filter(pl.col("rating") != 3)
    for name in PARTS:
        part: SplitPart = getattr(prepared, name)
        reference = kept.filter(pl.col("part") == name)
        assert part.frame.equals(reference)
        assert part.main.tolist() == [float(r > 3) for r in reference["rating"]]
        assert len(part.table) == prepared.counts[f"{name}_rows"] == reference.height
        assert part.group is not None
        pairs = set(zip(part.group.tolist(), reference["user"].to_list(), strict=True))
        assert len(pairs) == reference["user"].n_unique() == len(set(part.group.tolist()))
    assert prepared.counts["dropped_by_label"] == frame.height - kept.height
    assert "negatives_drawn" not in prepared.counts


def test_unseen_counts_what_no_training_row_has() -> None:
    frame = ratings()
    prepared = prepare(frame, SCHEMA, split=BY_PART, seed=0)
    kept = frame.filter(pl.col("rating") != 3)
    train = kept.filter(part="train")
    often = {i for (i,), rows in train.group_by("item") if rows.height >= 2}
    for name in ("valid", "test"):
        items = kept.filter(part=name)["item"].to_list()
        assert prepared.unseen[name]["item"] == pytest.approx(
            sum(i not in often for i in items) / len(items)
        )
        users = kept.filter(part=name)["user"].to_list()
        known = set(train["user"])
        assert prepared.unseen[name]["user"] == pytest.approx(
            sum(u not in known for u in users) / len(users)
        )


@pytest.mark.parametrize("part", ["valid", "test"])
def test_the_encoder_sees_training_rows_only(part: str) -> None:
    frame = ratings()
    other = ratings(seed=1).with_columns(
        pl.col("user") + 1000,
        pl.col("price") * 1e6,
        pl.col("age") + 500,
        genres=pl.lit("z|y"),
        part=frame["part"],
    )
    inside = (frame["part"] == part) & (frame["rating"] != 3)
    changed = frame.with_columns(
        pl.when(inside).then(other[c]).otherwise(frame[c]).alias(c)
        for c in ("user", "item", "price", "age", "genres")
    )
    before, after = (prepare(f, SCHEMA, split=BY_PART, seed=0) for f in (frame, changed))
    assert before.encoder == after.encoder
    for name in PARTS:
        if name != part:
            assert_equal_parts(getattr(before, name), getattr(after, name))


@pytest.mark.parametrize("split", [BY_PART, RandomSplit()])
def test_labels_of_test_rows_change_nothing_else(split: ColumnSplit | RandomSplit) -> None:
    frame = ratings().filter(pl.col("rating") != 3).with_row_index("row")
    before = prepare(frame, SCHEMA, split=split, seed=3)
    inside = frame["row"].is_in(before.test.frame["row"].to_list())
    flipped = frame.with_columns(
        rating=pl.when(inside).then(6 - pl.col("rating")).otherwise(pl.col("rating"))
    )
    after = prepare(flipped, SCHEMA, split=split, seed=3)
    assert before.encoder == after.encoder
    assert_equal_parts(before.train, after.train)
    assert_equal_parts(before.valid, after.valid)
    np.testing.assert_array_equal(after.test.y, 1 - before.test.y)
    np.testing.assert_array_equal(after.test.table.ids, before.test.table.ids)


def implicit(rows: int = 300, negatives_in: tuple[str, ...] = ()) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "user": rng.integers(0, 20, rows),
            "item": rng.integers(0, 100, rows),
            "hour": rng.integers(0, 24, rows),
            "part": np.resize(["train", "train", "train", "valid", "test"], rows),
            "used": np.ones(rows, dtype=np.int64),
        }
    )
    extra = [
        frame.filter(part=p).with_columns(item=pl.col("item") + 500, used=pl.lit(0, pl.Int64))
        for p in negatives_in
    ]
    return pl.concat([frame, *extra])


CLICKS = Schema(
    fields=(Categorical("user"), Categorical("item"), Categorical("hour")), label=Label("used")
)


def ask(*parts: str, **options: object) -> NegativeSampling:
    return NegativeSampling(user="user", item="item", per_positive=2, parts=parts, **options)


def drawn_for(
    frame: pl.DataFrame, *parts: str, schema: Schema = CLICKS, **options: object
) -> Prepared:
    return prepare(frame, schema, split=BY_PART, seed=0, negatives=ask(*parts, **options))


def test_negatives_are_added_where_they_are_missing_only() -> None:
    frame = implicit(negatives_in=("valid", "test"))
    prepared = drawn_for(frame, *PARTS, only_where_missing=True)
    positives = frame.filter(part="train").height
    assert prepared.counts["negatives_drawn"] == 2 * positives
    assert prepared.counts["train_rows"] == 3 * positives == len(prepared.train.table)
    assert prepared.train.main.tolist() == [1.0] * positives + [0.0] * 2 * positives
    assert prepared.train.frame["used"].to_list() == prepared.train.main.tolist()
    used = set(frame.filter(used=1).select("user", "item").iter_rows())
    drawn = prepared.train.frame.filter(used=0)
    assert not used & set(drawn.select("user", "item").iter_rows())
    assert set(drawn["item"]) <= set(frame.filter(used=1)["item"])
    for name in ("valid", "test"):
        assert getattr(prepared, name).frame.equals(frame.filter(part=name))


def test_negatives_go_to_every_part_that_is_named() -> None:
    frame = implicit(negatives_in=("test",))
    prepared = drawn_for(frame, *PARTS)
    assert prepared.counts["negatives_drawn"] == 2 * frame.filter(used=1).height
    for name in PARTS:
        assert int(getattr(prepared, name).y.sum()) == frame.filter(part=name, used=1).height
    untouched = drawn_for(implicit(negatives_in=("valid", "test")), "train")
    assert untouched.counts["valid_rows"] == 2 * frame.filter(part="valid").height


def test_negatives_of_a_squared_loss_take_the_labels_least_value() -> None:
    frame = implicit(negatives_in=("valid", "test")).with_columns(used=pl.col("used") * 2.0 - 1)
    schema = Schema(fields=CLICKS.fields, label=Label("used", task="regression", range=(-1, 1)))
    prepared = drawn_for(frame, "train", schema=schema)
    assert sorted(set(prepared.train.main.tolist())) == [-1.0, 1.0]


def test_negatives_of_other_labels() -> None:
    frame = implicit()
    for column, label in (
        (pl.lit(True), Label("used")),
        (pl.lit("yes"), Label("used", positive_values=("yes",))),
        (pl.lit(5), Label("used", positive_above=3)),
    ):
        schema = Schema(fields=CLICKS.fields, label=label)
        prepared = drawn_for(frame.with_columns(used=column), *PARTS, schema=schema)
        assert prepared.train.y.mean() == pytest.approx(1 / 3)


@pytest.mark.parametrize("negatives", [None, ask(*PARTS)])
def test_the_seed_fixes_everything(negatives: NegativeSampling | None) -> None:
    frame, schema = (ratings(), SCHEMA) if negatives is None else (implicit(), CLICKS)
    first, again, other = (
        prepare(frame, schema, split=RandomSplit(), seed=s, negatives=negatives) for s in (5, 5, 6)
    )
    assert_equal(first, again)
    assert not first.train.frame.equals(other.train.frame)


def test_parts_of_ones_own() -> None:
    frame = ratings()
    parts = {
        name: read_label(frame.filter(part=name), SCHEMA.label, budget=NO_LIMIT)
        for name in ("train", "valid")
    }
    preparation = Preparation(schema=SCHEMA, split=BY_PART, seed=0)
    complete, counts = preparation.derived(parts, budget=NO_LIMIT)
    encoder, encoded, _ = preparation.encode(complete)
    whole = prepare(frame, SCHEMA, split=BY_PART, seed=0)
    assert set(encoded) == {"train", "valid"}
    assert encoder == whole.encoder
    assert_equal_parts(encoded["train"], whole.train)
    assert_equal_parts(encoded["valid"], whole.valid)
    assert counts == {
        "train_rows": whole.counts["train_rows"],
        "valid_rows": whole.counts["valid_rows"],
    }
    frame = implicit()
    parts = {
        name: read_label(frame.filter(part=name), CLICKS.label, budget=NO_LIMIT)
        for name in ("train", "valid")
    }
    _, counts = Preparation(schema=CLICKS, split=BY_PART, seed=0, negatives=ask(*PARTS)).derived(
        parts, budget=NO_LIMIT
    )
    assert counts["negatives_drawn"] == 2 * sum(part.frame.height for part in parts.values())


def test_groups_are_equal_where_their_text_is() -> None:
    frame = pl.DataFrame({"user": [7.0, None, 12.0, 7.0, None], "rating": [1] * 5})
    codes = group_codes(frame, SCHEMA, budget=NO_LIMIT)
    assert codes is not None
    assert codes[0] == codes[3]
    assert len(set(codes.tolist())) == 4  # a row without a group is a group by itself
    assert group_codes(frame.drop("user"), SCHEMA, budget=NO_LIMIT) is None
    assert group_codes(frame, CLICKS, budget=NO_LIMIT) is None


def test_columns_that_the_schema_names_must_be_there(subtests: pytest.Subtests) -> None:
    for setting in [{"time": "tiem"}, {"group": "usr"}, {"keys": ("user", "itm")}]:
        with subtests.test(setting=setting):
            what, named = next(iter(setting.items()))
            column, near = {
                "time": ("tiem", "time"),
                "group": ("usr", "user"),
                "keys": ("itm", "item"),
            }[what]
            assert column in named
            frame = ratings().with_columns(time=pl.int_range(400))
            with pytest.raises(
                SchemaError,
                match=f"schema's {what} must be in the table: '{column}' .*mean '{near}'",
            ):
                prepare(frame, dataclasses.replace(SCHEMA, **setting), split=BY_PART, seed=0)


def test_a_part_of_one_class_is_named() -> None:
    frame = ratings().with_columns(rating=pl.when(part="valid").then(5).otherwise(pl.col("rating")))
    with pytest.raises(
        DataError, match=r"the valid rows must hold both classes: all \d+ are positive .*'rating'"
    ):
        prepare(frame, SCHEMA, split=BY_PART, seed=0)
    with pytest.raises(
        DataError, match=r"the train rows must hold both classes: all \d+ are negative"
    ):
        prepare(frame.with_columns(rating=pl.lit(1)), SCHEMA, split=BY_PART, seed=0)
    positives = frame.with_columns(rating=pl.lit(5))
    for sampling, remedy in [
        (None, r"in a log of positives only, add \[negatives\]$"),
        (ask("train"), r"or add '(valid|test)' to the parts of \[negatives\]$"),
    ]:
        with pytest.raises(DataError, match=remedy):
            prepare(positives, SCHEMA, split=BY_PART, seed=0, negatives=sampling)
    regression = Schema(fields=SCHEMA.fields, label=Label("rating", task="regression"))
    assert set(
        prepare(frame.with_columns(rating=pl.lit(4)), regression, split=BY_PART, seed=0).test.main
    ) == {4.0}


FAULTS: list[tuple[Callable[[pl.DataFrame], pl.DataFrame], str]] = [
    (lambda f: f.drop("genres"), "'genres' .* is missing among user, item"),
    (lambda f: f.drop("rating"), "the label's column 'rating' must be in the table"),
    (lambda f: f.drop("part"), "part"),
    (lambda f: f.clear(), "a table needs rows, found none"),
    (lambda f: f.filter(pl.col("part") != "valid"), "valid"),
    (lambda f: f.with_columns(rating=pl.lit(3)), "no row is left: all 400"),
    (
        lambda f: f.with_columns(item=pl.lit(None, pl.Int64)),
        "column 'item' .* null or empty in all",
    ),
    (lambda f: f.with_columns(genres=pl.lit("")), "column 'genres' .* null or empty in all"),
    (
        lambda f: with_cell(f, "price", 250, "dear"),
        "column 'price' .* holds the text 'dear' in row 250 ",
    ),
    (lambda f: with_cell(f, "price", 250, "inf"), "column 'price' .* holds 'inf' in row 250 "),
    (
        lambda f: with_cell(f, "rating", 250, None),
        "1 of 400 rows have none in column 'rating', the first is row 250 ",
    ),
    (
        lambda f: with_cell(f, "rating", 250, "bad"),
        "column 'rating' holds the text 'bad' in row 250 ",
    ),
]


def with_cell(frame: pl.DataFrame, column: str, row: int, text: str | None) -> pl.DataFrame:
    cells: list[str | None] = frame[column].cast(pl.String).to_list()
    cells[row] = text
    return frame.with_columns(pl.Series(column, cells, dtype=pl.String))


def test_each_fault_of_a_table_is_one_sentence(subtests):
    for spoil, message in FAULTS:
        with subtests.test(spoil=spoil, message=message):
            with pytest.raises(DataError, match=message) as caught:
                prepare(spoil(ratings()), SCHEMA, split=BY_PART, seed=0)
            assert "\n" not in str(caught.value)


def test_numbers_are_checked_in_every_part_with_the_tables_own_row() -> None:
    frame = ratings()
    row = frame["part"].to_list().index("test", 100)
    with pytest.raises(DataError, match=f"in row {row} "):
        prepare(with_cell(frame, "price", row, "dear"), SCHEMA, split=BY_PART, seed=0)


def test_no_python_work_a_row(calls_of: Callable[[Callable[[], object]], int]) -> None:
    """A table a hundred times as long makes as many calls."""
    hashed = Categorical("hashed", column="genres", hash_buckets=8)
    schema = dataclasses.replace(SCHEMA, fields=(*SCHEMA.fields, hashed))
    short = ratings(500)
    long = pl.concat([short] * 100)
    prepare(short, schema, split=BY_PART, seed=0)
    few, many = (
        calls_of(lambda f=f: prepare(f, schema, split=BY_PART, seed=0)) for f in (short, long)
    )
    assert few == many


# Multi-task

LOVED = Label("rating", name="loved", positive_values=(5,))


def test_several_labels_are_columns_of_the_targets_and_the_main_one_stratifies() -> None:
    frame = ratings().with_columns(minutes=pl.col("price") * 10)
    schema = dataclasses.replace(SCHEMA, more_labels=(LOVED, Label("minutes", task="regression")))
    split = RandomSplit(valid=0.2, test=0.2, stratify=True)
    prepared, one = (prepare(frame, s, split=split, seed=0) for s in (schema, SCHEMA))
    assert prepared.counts == one.counts
    assert prepared.counts["dropped_by_label"] == frame.filter(rating=3).height
    for name in PARTS:
        part, alone = getattr(prepared, name), getattr(one, name)
        assert part.frame.equals(alone.frame)
        rating = part.frame["rating"].to_numpy()
        expected = np.stack(
            [rating > 3, rating == 5, part.frame["minutes"].to_numpy()], axis=1
        ).astype(np.float32)
        np.testing.assert_array_equal(part.y, expected, strict=True)
        assert alone.y.shape == (len(part.table), 1)


@pytest.mark.parametrize("only", ["positive", "negative"])
def test_each_binary_label_needs_both_classes_in_each_part(only: str) -> None:
    wrong = pl.col("part") == "valid"
    frame = ratings().with_columns(
        loved=pl.when(wrong).then(only == "positive").otherwise(pl.col("rating") == 5)
    )
    schema = dataclasses.replace(SCHEMA, more_labels=(Label("loved", name="truly loved"),))
    with pytest.raises(
        DataError, match=rf"the valid rows must .* are {only} by the rule of label 'truly loved'"
    ):
        prepare(frame, schema, split=BY_PART, seed=0)


def test_a_sampled_negative_is_negative_for_every_label() -> None:
    flag = (pl.int_range(pl.len()) % 3 == 0).alias("bought")
    frame = implicit().with_columns(flag, stars=pl.lit("4"))
    bought = Label("bought")
    stars = Label("stars", name="liked", positive_above=3)
    schema = Schema(fields=CLICKS.fields, label=CLICKS.label, more_labels=(bought, stars))
    prepared = drawn_for(frame, *PARTS, schema=schema)
    drawn = prepared.train.frame.filter(used=0)
    positives = frame.filter(part="train").height
    assert drawn.height == 2 * positives
    assert drawn.select("bought", "stars").unique().rows() == [(False, "0")]
    np.testing.assert_array_equal(prepared.train.y[positives:], np.zeros((2 * positives, 3)))
    assert prepared.train.y[:positives, 0].all()
    assert (
        prepared.train.y[:positives, 1].tolist() == frame.filter(part="train")["bought"].to_list()
    )
    plain = drawn_for(frame, *PARTS)
    assert drawn.drop("bought", "stars").equals(
        plain.train.frame.filter(used=0).drop("bought", "stars")
    )


def test_negatives_that_no_label_can_call_negative_are_refused() -> None:
    frame = implicit().with_columns(minutes=pl.lit(3.0))
    minutes = Label("minutes", task="regression")
    schema = Schema(fields=CLICKS.fields, label=CLICKS.label, more_labels=(minutes,))
    with pytest.raises(
        ConfigError, match="negative for every label, but the label 'minutes' is a regression"
    ):
        drawn_for(frame, *PARTS, schema=schema)
    dropped = dataclasses.replace(
        schema, more_labels=(Label("minutes", positive_above=1, drop_values=(0,)),)
    )
    with pytest.raises(
        DataError,
        match="must not be dropped: 0 in column 'minutes' is among the drop_values of label",
    ):
        drawn_for(frame, *PARTS, schema=dropped)
    always = dataclasses.replace(schema, more_labels=(Label("minutes", positive_above=-1),))
    with pytest.raises(
        DataError, match="a sampled negative must not be positive: 0 in column 'minutes'"
    ):
        drawn_for(frame, *PARTS, schema=always)
