"""Histories against a loop over rows and a planted leak; in recipes, with negatives, in bundles; each fault."""

import dataclasses
import json
from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from fieldwise import (
    Categorical,
    ConfigError,
    DataError,
    Label,
    NegativeSampling,
    RandomSplit,
    Recipe,
    Schema,
    SchemaError,
    Sequence,
    load_recipe,
)
from fieldwise.cli import run
from fieldwise.data.prepare.histories import add_histories, check_history
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.settings import HistorySettings
from fieldwise.storage.scratch import NO_LIMIT

Rows = list[tuple[object, object, float, float]]  # user, item, moment, target
PARTS = ("train", "valid", "test")
ASK = HistorySettings(user="user", item="film")
SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Categorical("film", role="item"),
        Sequence("history", role="user", shares="film"),
    ),
    label=Label("liked"),
    time="at",
)


def frames_of(parts: dict[str, Rows]) -> tuple[dict[str, pl.DataFrame], dict[str, np.ndarray]]:
    types = {"user": pl.Int64, "film": pl.String, "at": pl.Float64, "liked": pl.Float64}
    frames = {name: pl.DataFrame(rows, schema=types, orient="row") for name, rows in parts.items()}
    return frames, {name: f["liked"].to_numpy() for name, f in frames.items()}


def histories(parts: dict[str, Rows], ask: HistorySettings = ASK) -> dict[str, list[list[object]]]:
    made = add_histories(*frames_of(parts), ask, order="at", budget=NO_LIMIT)
    return {name: f["history"].to_list() for name, f in made.items()}


def by_loops(parts: dict[str, Rows], ask: HistorySettings) -> dict[str, list[list[object]]]:
    results: dict[str, list[list[object]]] = {}
    for name, rows in parts.items():
        results[name] = []
        for user, _, at, _ in rows:
            before = [
                (moment, place, film)
                for place, (who, film, moment, target) in enumerate(parts["train"])
                if user is not None
                and who == user
                and moment < at
                and film is not None
                and (target > 0 or not ask.positives_only)
            ]
            results[name].append([film for _, _, film in sorted(before)][-ask.max_length :])
    return results


cells = st.tuples(
    st.none() | st.integers(1, 3),
    st.none() | st.sampled_from("abcd"),
    st.integers(0, 6).map(float),
    st.sampled_from([0.0, 1.0]),
)
parts_of_rows = st.fixed_dictionaries({name: st.lists(cells, max_size=14) for name in PARTS})


@given(parts_of_rows, st.integers(1, 4), st.booleans())
def test_equals_a_loop_over_rows(parts: dict[str, Rows], length: int, positives: bool) -> None:
    ask = dataclasses.replace(ASK, max_length=length, positives_only=positives)
    assert histories(parts, ask) == by_loops(parts, ask)


def test_a_small_log_by_hand() -> None:
    train: Rows = [(1, "c", 3, 1), (1, "a", 1, 1), (1, "b", 1, 1), (1, "x", 2, 0), (2, "d", 1, 1)]
    test: Rows = [(1, "e", 9, 1), (1, "f", 3, 1), (2, "g", 1, 0), (3, "h", 5, 1)]
    assert histories({"train": train, "test": test}) == {
        # The two rows of moment 1 are not before each other; x was not liked; user 3 has no
        # training row.
        "train": [["a", "b"], [], [], ["a", "b"], []],
        "test": [["a", "b", "c"], ["a", "b"], [], []],
    }


def test_a_planted_leak_stays_out() -> None:
    """Every pair of user and film occurs once, so that "the user liked this film" is the label itself."""
    rng = np.random.default_rng(0)
    pairs = [(user, f"f{film}") for user in range(20) for film in range(60)]
    liked = rng.integers(0, 2, len(pairs))
    order = rng.permutation(len(pairs))
    log = pl.DataFrame(
        {
            "user": [pairs[k][0] for k in order],
            "film": [pairs[k][1] for k in order],
            "at": np.arange(len(pairs)),
            "liked": liked,
        }
    )
    liked_ever = log.filter(liked=1).group_by("user").agg(pl.col("film").alias("leak"))
    leaking = log.join(liked_ever, on="user", how="left")
    assert (
        roc_auc_score(
            liked, leaking.select(pl.col("leak").list.contains(pl.col("film"))).to_series()
        )
        == 1
    )
    prepared = made(log)
    for name in PARTS:
        frame = getattr(prepared, name).frame
        assert not frame.select(pl.col("history").list.contains(pl.col("film"))).to_series().any()
        assert frame["history"].list.len().sum() > 0


def made(
    log: pl.DataFrame, ask: HistorySettings = ASK, schema: Schema = SCHEMA, **more: NegativeSampling
) -> Prepared:
    return prepare(log, schema, split=RandomSplit(), seed=0, history=ask, **more)


def a_log(rows: int = 600, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": rng.integers(0, 12, rows),
            "film": [f"f{k}" for k in rng.integers(0, 40, rows)],
            "at": rng.permutation(rows),
            "liked": rng.integers(0, 2, rows),
        }
    )


@pytest.mark.parametrize("positives", [True, False])
def test_a_sampled_negative_has_its_positives_history_and_is_no_event(positives: bool) -> None:
    log = a_log().filter(liked=1).unique(["user", "film"], maintain_order=True)
    used = set(log.select("user", "film").rows())
    draw = NegativeSampling(user="user", item="film", per_positive=1, parts=PARTS)
    prepared = made(log, dataclasses.replace(ASK, positives_only=positives), negatives=draw)
    for name in PARTS:
        frame = getattr(prepared, name).frame
        positive, negative = frame.filter(liked=1), frame.filter(liked=0)
        assert positive.height == negative.height
        assert negative["history"].equals(positive["history"])
        assert {
            (user, film) for user, films in frame.select("user", "history").rows() for film in films
        } <= used


def test_text_and_dates_order_rows_too() -> None:
    log = a_log()
    numbered = made(log).test.frame["history"]
    for moment in (
        pl.col("at").cast(pl.String),
        pl.col("at").cast(pl.Datetime),
        pl.datetime(2026, 1, 1) + pl.duration(days="at"),
    ):
        assert made(log.with_columns(moment.alias("at"))).test.frame["history"].equals(numbered)


def test_the_order_may_be_another_column_than_the_time() -> None:
    log = a_log().with_columns(place=-pl.col("at"))
    ask = dataclasses.replace(ASK, order="place")
    backwards = made(log, ask).train.frame
    row = backwards.filter(pl.col("history").list.len() > 0).sort("at").row(0, named=True)
    first = backwards.filter(
        (pl.col("film") == row["history"][-1]) & (pl.col("user") == row["user"])
    )
    assert first["at"].max() > row["at"]


def test_what_does_not_fit_the_table_is_one_sentence(subtests):
    for change, error, sentence in [
        (
            {"user": "usr"},
            DataError,
            "a history's user column must be in the table: 'usr' is not; did you mean 'user'",
        ),
        (
            {"item": "movie"},
            DataError,
            "a history's item column must be in the table: 'movie' is not",
        ),
        (
            {"order": "when"},
            DataError,
            "a history's order column must be in the table: 'when' is not",
        ),
        (
            {"column": "liked"},
            DataError,
            "a history needs a new column, but the table has 'liked' already",
        ),
        (
            {"column": "past"},
            SchemaError,
            "a field must read the histories: the schema has none of column 'past'",
        ),
        (
            {"user": "liked"},
            SchemaError,
            "a history's user must not be the label's column 'liked': choose another",
        ),
        (
            {"order": "liked"},
            SchemaError,
            "a history's order must not be the label's column 'liked'",
        ),
    ]:
        with subtests.test(change=change, error=error, sentence=sentence):
            with pytest.raises(error, match=sentence) as caught:
                made(a_log(), dataclasses.replace(ASK, **change))
            assert "\n" not in str(caught.value)


def test_no_order_and_absent_moments_are_named() -> None:
    timeless = dataclasses.replace(SCHEMA, time=None)
    with pytest.raises(
        ConfigError, match=r"a history needs an order: give history\.order, or the schema's time"
    ):
        check_history(a_log(), timeless, ASK, budget=NO_LIMIT)
    gap = a_log().with_columns(at=pl.when(pl.int_range(600) != 77).then("at"))
    with pytest.raises(DataError, match=r"for ordering: column 'at' holds None in row 77 "):
        made(gap)


def test_bad_settings_name_themselves(subtests):
    for change, sentence in [
        ({"column": "user"}, "a history's column must be a new one, but 'user' is used twice"),
        ({"column": ""}, "a history's column must be a column name, found an empty one"),
        ({"order": ""}, "a history's order must be a column name, found an empty one"),
        ({"max_length": 0}, "a history's max_length must be at least 1, found 0"),
    ]:
        with (
            subtests.test(change=change, sentence=sentence),
            pytest.raises(ConfigError, match=sentence),
        ):
            dataclasses.replace(ASK, **change)


def test_no_python_work_a_row(calls_of: Callable[[Callable[[], object]], int]) -> None:
    short = a_log()
    tables = short, short, pl.concat([short] * 100)  # the first call imports
    _, few, many = (
        calls_of(
            lambda f=f: add_histories(
                {"train": f}, {"train": f["liked"].to_numpy()}, ASK, order="at", budget=NO_LIMIT
            )
        )
        for f in tables
    )
    assert few == many


RECIPE = """
[data]
path = "log.csv"
[history]
user = "user"
item = "film"
max_length = 5
[schema]
time = "at"
label = { column = "liked" }
fields = [
    { kind = "categorical", name = "user", role = "user" },
    { kind = "categorical", name = "film", role = "item" },
    { kind = "sequence", name = "history", role = "user", shares = "film" },
]
[model]
name = "fm"
embedding_dim = 4
[training]
epochs = 1
"""


def test_a_recipes_bundle_is_evaluated_on_rows_with_their_histories(tmp_path, capsys):
    a_log().write_csv(tmp_path / "log.csv")
    (tmp_path / "mine.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "mine.toml", ["history.max_length=4"])
    assert recipe.history == HistorySettings(user="user", item="film", max_length=4)
    assert Recipe.from_dict(recipe.to_dict(), recipe.name) == recipe
    assert run(["describe", str(tmp_path / "mine.toml")]) == 0
    assert "shared with film" in capsys.readouterr().out
    assert (
        run(
            [
                "train",
                str(tmp_path / "mine.toml"),
                "--out",
                str(tmp_path / "b"),
                "--quiet",
                "--json",
            ]
        )
        == 0
    )
    trained = json.loads(capsys.readouterr().out)["test"]
    assert run(["evaluate", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["auc"] == pytest.approx(
        trained["auc"], abs=1e-9
    )
    # Other rows bring the column: as text from a CSV file.
    scored = ["predict", str(tmp_path / "b"), "--out", str(tmp_path / "p.csv"), "--data"]
    assert run([*scored, str(tmp_path / "log.csv")]) != 0
    assert "'history' (field 'history') is missing" in capsys.readouterr().err
    a_log(5).with_columns(history=pl.lit("f1|f2")).write_csv(tmp_path / "new.csv")
    assert run([*scored, str(tmp_path / "new.csv")]) == 0
    assert pl.read_csv(tmp_path / "p.csv").height == 5
