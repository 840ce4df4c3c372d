"""What names users and items: said once in the schema, or by one rule, and the same for everything that asks."""

import dataclasses

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare

from fieldwise import (
    Bag,
    Categorical,
    ConfigError,
    Label,
    LeaveLastOutSplit,
    NegativeSampling,
    RandomSplit,
    Schema,
    SchemaError,
    Sequence,
    infer_schema,
)
from fieldwise.data.prepare.prepared import group_codes
from fieldwise.data.prepare.settings import HistorySettings
from fieldwise.schema.ids import id_column, id_columns
from fieldwise.storage.scratch import NO_LIMIT

GENDER, PLACE = Categorical("gender", role="user"), Categorical("place", role="context")
GENRE, FILM = Categorical("genre", role="item"), Categorical("film_no", role="item")


def schema_of(*fields, **changes):
    return Schema(
        **({"fields": fields or (GENDER, PLACE, GENRE, FILM), "label": Label("click")} | changes)
    )


# The schema's keys


def test_keys_are_read_and_written_at_the_top():
    schema = schema_of(user="member", item="film_no")
    first, second, *_ = schema.to_toml().splitlines()
    assert (first, second) == ('user = "member"', 'item = "film_no"')
    assert Schema.from_toml(schema.to_toml()) == schema
    assert (schema.grouping, schema.row_keys) == ("member", ("member", "film_no"))
    other = dataclasses.replace(schema, group="place", keys=("row",))
    assert (other.grouping, other.row_keys) == ("place", ("row",))
    assert (schema_of().grouping, schema_of().row_keys) == (None, ())


def test_invalid_keys_are_refused(subtests):
    for changes, sentence in [
        (
            {"user": "film_no"},
            "user must not be a column of the other side: the field 'film_no' reads 'film_no' with",
        ),
        (
            {"item": "gender"},
            "item must not be a column of the other side: the field 'gender' reads 'gender' with",
        ),
        (
            {"user": "member", "item": "member"},
            "user and item must be two different columns, found 'member' for both",
        ),
        ({"user": "click"}, "user must not be the label's column 'click'"),
        ({"item": ""}, "item must be a column name, found an empty one"),
        (
            {"fields": (Sequence("past"), FILM), "user": "past"},
            "one value per cell: the field 'past' reads 'past' as",
        ),
        (
            {"fields": (Bag("tags"), FILM), "item": "tags"},
            "one value per cell: the field 'tags' reads 'tags' as a bag",
        ),
    ]:
        with (
            subtests.test(changes=changes, sentence=sentence),
            pytest.raises(SchemaError, match=sentence),
        ):
            schema_of(**changes)


# The rule


def test_the_rule_by_hand(subtests):
    for role, fields, changes, columns, result in [
        # an id before what merely stands first
        ("item", (GENRE, FILM), {}, ["genre", "film_no"], "film_no"),
        ("item", (Categorical("film", role="item"), FILM), {}, ["film", "film_no"], "film_no"),
        ("item", (GENRE,), {}, ["genre", "item_id"], "item_id"),
        ("item", (GENRE,), {}, ["genre", "film_no"], "genre"),  # no field reads film_no
        ("item", (GENRE, FILM), {"item": "shelf"}, ["genre", "film_no", "shelf"], "shelf"),
        ("user", (GENDER, FILM), {}, ["gender", "user_id"], "user_id"),
        (
            "user",
            (GENDER, Categorical("cust_id", role="user")),
            {},
            ["gender", "cust_id", "user_id"],
            "cust_id",
        ),
        ("user", (GENDER, FILM), {"group": "place"}, ["gender", "place", "user_id"], "place"),
        ("user", (GENDER, FILM), {"group": "film_no"}, ["gender", "film_no", "user_id"], "user_id"),
        (
            "user",
            (GENDER, FILM),
            {"group": "place", "user": "who"},
            ["gender", "place", "who"],
            "who",
        ),
        ("user", (GENDER, FILM), {}, ["film_no"], None),
    ]:
        with subtests.test(
            role=role, fields=fields, changes=changes, columns=columns, found=result
        ):
            schema = schema_of(*fields, **changes)
            assert id_columns(columns, schema)[role] == result
            if result is not None:
                assert id_column(role, [schema_of(PLACE), schema], columns) == result


def test_a_column_of_the_schema_is_never_replaced_by_the_rule():
    schema = schema_of(user="member")
    sentence = "the schema's user column is 'member', but the table has no such column: did you mean 'members'"
    with pytest.raises(ConfigError, match=sentence):
        id_column("user", [schema], ["gender", "user_id", "members"])
    with pytest.raises(ConfigError, match=sentence):
        id_columns(["gender", "user_id", "members"], schema)
    assert id_column("user", [schema], ["gender", "user_id"], "gender") == "gender"
    assert id_column("user", [schema_of(), schema], None) == "member"


# Every part that asks


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Users `w`, films `film_no`; decoys come first: gender, user_id (a session), genre."""
    rng = np.random.default_rng(0)
    rows = 600
    w, film = rng.integers(0, 20, rows), rng.integers(0, 30, rows)
    return pl.DataFrame(
        {
            "gender": np.where(w % 2, "f", "m"),
            "user_id": rng.integers(0, 300, rows),
            "w": w,
            "genre": film % 4,
            "film_no": film,
            "place": rng.integers(0, 3, rows),
            "day": np.arange(rows),
            "click": ((w + film) % 3 == 0).astype(int),
        }
    )


FIELDS = (GENDER, Categorical("w", role="user"), GENRE, FILM, PLACE)
SAID = Schema(fields=FIELDS, label=Label("click"), time="day", user="w", item="film_no")


def test_preparation_reads_the_schema(log):
    """Groups, the split, histories and negatives are those of the columns given by hand."""
    past = Sequence("history", shares="film_no")
    schema = dataclasses.replace(SAID, fields=(*FIELDS, past))
    bare = dataclasses.replace(schema, user=None, item=None, group="w", keys=("w", "film_no"))
    split, draw = LeaveLastOutSplit(), NegativeSampling(per_positive=1, item_columns=("genre",))
    result = prepare(log, schema, split=split, seed=3, history=HistorySettings(), negatives=draw)
    by_hand = prepare(
        log,
        bare,
        split=dataclasses.replace(split, user="w"),
        seed=3,
        history=HistorySettings(user="w", item="film_no"),
        negatives=dataclasses.replace(draw, user="w", item="film_no"),
    )
    assert result.counts == by_hand.counts
    for name in ("train", "valid", "test"):
        assert getattr(result, name).frame.equals(getattr(by_hand, name).frame)
        np.testing.assert_array_equal(getattr(result, name).group, getattr(by_hand, name).group)
    assert result.test.frame.get_column("w").n_unique() == 20
    codes = group_codes(log, SAID, budget=NO_LIMIT)
    assert len(set(zip(codes.tolist(), log.get_column("w"), strict=True))) == 20


def test_preparation_needs_ids_in_the_schema(log):
    past = (*FIELDS, Sequence("history", shares="film_no"))
    for section, settings, fields in (
        ("history", HistorySettings(), past),
        ("negatives", NegativeSampling(), FIELDS),
    ):
        schema = Schema(fields=fields, label=Label("click"), time="day", item="film_no")
        with pytest.raises(
            ConfigError, match=rf"\[{section}\] needs the column of user ids, .* in the schema"
        ):
            prepare(log, schema, split=RandomSplit(), seed=0, **{section: settings})
    for role, column in (("user", "w"), ("item", "film_no")):
        schema = dataclasses.replace(SAID, **{role: f"{column}2"})
        with pytest.raises(
            SchemaError, match=f"the schema's {role} must be in the table: '{column}2' is not; "
        ):
            prepare(log, schema, split=RandomSplit(), seed=0)


def test_inferred_schemas_name_id_columns(log):
    table = log.rename({"w": "member_no"}).drop("user_id")
    guess = infer_schema(table)
    assert (guess.schema.user, guess.schema.item) == ("member_no", "film_no")
    for column, role in (("member_no", "user"), ("film_no", "item")):
        assert guess.notes[column].endswith(f"the {role} id")
    text = guess.to_toml()
    assert '# Columns of user and item ids.\nuser = "member_no"\n' in text
    assert Schema.from_toml(text) == guess.schema
    # A schema with the same fields that does not say them gets the same answer by the rule.
    silent = dataclasses.replace(guess.schema, user=None, item=None)
    assert id_columns(table.columns, silent) == {"user": "member_no", "item": "film_no"}
    assert "user =" not in infer_schema(table.drop("member_no", "film_no")).to_toml()
