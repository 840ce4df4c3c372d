"""A request as raw values: a bundle scores one context's candidates as it scores the whole rows."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest
from random_bundle import random_bundle

from fieldwise import (
    AFM,
    AutoInt,
    Bag,
    Categorical,
    DataError,
    Label,
    Numeric,
    Recommender,
    Schema,
    Sequence,
    TrainingSettings,
)
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.models import MODELS
from fieldwise.scoring.batches import SCORING_BATCH

SCHEMA = Schema(
    fields=(
        Categorical("item", role="item"),
        Categorical("user", role="user"),
        Sequence("history", role="user", max_length=3, shares="item"),
        Bag("genres", role="item", pooling="max"),
        Numeric("price", role="item"),
        Bag("tags", role="context", hash_buckets=5),
        Numeric("hour", encoding="quantile", bins=3),
        Numeric("age", role="user"),
        # two fields read one column
        Categorical("shown_user", role="user", column="user", hash_buckets=7),
    ),
    label=Label("click"),
    more_labels=(),
)
ITEM_COLUMNS = ["item", "genres", "price"]
USER_COLUMNS = ["user", "history", "tags", "hour", "age"]


def log(rows=40, seed=0):
    rng = np.random.default_rng(seed)

    def lists(letter, most):
        return [
            [f"{letter}{k}" for k in rng.integers(0, 5, n)] for n in rng.integers(0, most, rows)
        ]

    return pl.DataFrame(
        {
            "item": [f"i{k}" for k in rng.integers(0, 9, rows)],
            "user": rng.integers(0, 6, rows),
            "history": ["|".join(cell) for cell in lists("i", 6)],
            "genres": lists("g", 4),
            "price": rng.normal(size=rows),
            "tags": lists("t", 3),
            "hour": rng.integers(0, 24, rows),
            "age": [None if n < 20 else n for n in rng.uniform(15, 60, rows)],
            "unrelated": ["x"] * rows,
        }
    )


def make(settings=None, schema=SCHEMA):
    return random_bundle(settings or AFM(embedding_dim=4), schema, log(), std=0.2)


def whole_rows(context, candidates):
    """The rows that a context makes with each candidate."""
    return candidates.join(context, how="cross")


def plain(frame):
    """A table of one row as a mapping of columns to plain values."""
    return frame.row(0, named=True)


def test_candidates_score_as_whole_rows(subtests):
    """Of a model a way of scoring; every network's scores are compared in models/test_candidates.py."""
    for name in ("afm", "autoint+", "din", "ffm", "inttower"):
        with subtests.test(name=name):
            bundle, fresh = make(MODELS[name]()), log(30, seed=1)
            bundle.network.double()
            context, candidates = (
                fresh[:1].select(USER_COLUMNS),
                fresh.select([*ITEM_COLUMNS, "unrelated"]),
            )
            expected = bundle.score(whole_rows(context, candidates))
            for given in (context, plain(context), {**plain(context), "another": object()}):
                result = bundle.score_candidates(given, candidates)
                assert (result.dtype, result.shape) == (np.float64, (30,))
                np.testing.assert_allclose(result, expected, atol=1e-10, rtol=1e-10)
            assert np.ptp(expected) > 1e-3


def test_a_field_is_of_the_side_that_has_its_column():
    """An item's column may be the same for all candidates, and a context's may differ between them."""
    bundle, fresh = make(AutoInt(embedding_dim=4, attention_dim=6)), log(30, seed=1)
    for own in (
        ["user", "genres"],
        ["history", "item", "age"],
        ["hour"],
        [*USER_COLUMNS, "price", "item"],
    ):
        context, candidates = (
            fresh[3:4].select(own),
            fresh.select([*ITEM_COLUMNS, *USER_COLUMNS]).drop(own),
        )
        expected = bundle.score(whole_rows(context, candidates))
        np.testing.assert_allclose(
            bundle.score_candidates(context, candidates), expected, atol=1e-6, rtol=1e-6
        )


def test_any_number_of_candidates_and_labels(subtests):
    more = Schema(
        fields=SCHEMA.fields, label=Label("click"), more_labels=(Label("stars", task="regression"),)
    )
    fresh = log(SCORING_BATCH + 1, seed=2)
    for rows, schema, shape in [
        (0, SCHEMA, (0,)),
        (0, more, (0, 2)),
        (len(fresh), more, (len(fresh), 2)),
    ]:
        with subtests.test(rows=rows, shape=shape):
            context, candidates = fresh[:1].select(USER_COLUMNS), fresh[:rows].select(ITEM_COLUMNS)
            bundle = make(schema=schema)
            result = bundle.score_candidates(context, candidates)
            assert result.shape == shape
            expected = bundle.score(whole_rows(context, candidates))
            np.testing.assert_allclose(result, expected.reshape(shape), atol=1e-6, rtol=1e-6)


def test_values_never_seen_and_absent_ones():
    bundle, fresh = make(), log(5, seed=1)
    context = {"user": "nobody", "history": "", "tags": None, "hour": None, "age": float("nan")}
    candidates = fresh.select(ITEM_COLUMNS).with_columns(
        item=pl.Series(["new", None, "", "i1", "i2"])
    )
    row = pl.DataFrame({c: [v] for c, v in context.items()})
    expected = bundle.score(whole_rows(row, candidates))
    np.testing.assert_allclose(
        bundle.score_candidates(context, candidates), expected, atol=1e-6, rtol=1e-6
    )


def test_a_column_is_on_one_side(subtests):
    for context, candidates, message in [
        (
            USER_COLUMNS,
            ["item", "genres"],
            r"'price' \(field 'price', role item\) in neither: give it to the cand",
        ),
        (
            USER_COLUMNS[1:],
            ITEM_COLUMNS,
            r"'user' \(field 'user', role user\) in neither: .* context",
        ),
        (
            USER_COLUMNS,
            [*ITEM_COLUMNS, "age"],
            r"found 'age' \(field 'age'\) in both: remove it from one",
        ),
        (
            [],
            [*USER_COLUMNS, *ITEM_COLUMNS],
            "found none in the context: to score whole rows, use score",
        ),
        ([*USER_COLUMNS, *ITEM_COLUMNS], ["unrelated"], "found none in the candidates"),
    ]:
        with subtests.test(context=context, candidates=candidates, message=message):
            bundle, frame = make(), log(3)
            given = plain(frame[:1].select(context)) if context else {}
            for _ in range(2):  # a refused set of columns is not cached
                with pytest.raises(DataError, match=message) as caught:
                    bundle.score_candidates(given, frame.select(candidates))
                assert "\n" not in str(caught.value)


def test_a_wrong_context_or_value_is_one_sentence():
    bundle, candidates, context = (
        make(),
        log(3).select(ITEM_COLUMNS),
        plain(log(1).select(USER_COLUMNS)),
    )
    for rows in (0, 2):
        with pytest.raises(
            DataError, match=f"in one context, found {rows} context rows: give one row"
        ):
            bundle.score_candidates(log(rows).select(USER_COLUMNS), candidates)
    for value in (["a", 1, {}], object()):
        with pytest.raises(DataError) as caught:
            bundle.score_candidates({**context, "tags": value}, candidates)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"column 'price'.*'dear'"):
        bundle.score_candidates(context, candidates.with_columns(price=pl.lit("dear")))


def test_a_bundle_that_has_scored_candidates_can_be_copied():
    bundle, fresh = make(), log(4, seed=1)
    context, candidates = plain(fresh.select(USER_COLUMNS)), fresh.select(ITEM_COLUMNS)
    scores = bundle.score_candidates(context, candidates)
    copied = copy.deepcopy(bundle)
    np.testing.assert_array_equal(copied.score_candidates(context, candidates), scores)


def test_an_estimator_scores_candidates_of_any_table():
    frame = log(60).with_columns(click=pl.Series(np.arange(60) % 2))
    settings = TrainingSettings(epochs=1, batch_size=16)
    recommender = Recommender(SCHEMA, AFM(embedding_dim=4), training=settings).fit(frame)
    context, candidates = frame[:1].select(USER_COLUMNS), frame.select(ITEM_COLUMNS)
    expected = recommender.decision_function(whole_rows(context, candidates))
    pandas = pd.DataFrame({c: candidates[c].to_list() for c in candidates.columns})
    for given, table in ((context, candidates), (plain(context), pandas)):
        np.testing.assert_allclose(
            recommender.score_candidates(given, table), expected, atol=1e-6, rtol=1e-6
        )


def test_few_texts_are_looked_up_as_many_are():
    """Both ways of `Vocabulary.ids`: a request's few texts, and a table's."""
    values = tuple(f"v{k}" for k in range(1000))
    vocabulary = Vocabulary(values=values)
    texts = pl.Series([*values[::-1], None, "new", ""] * 2)
    many = vocabulary.ids(texts)
    assert (many[0], many[1000:1003].tolist()) == (1001, [0, 1, 1])
    few = [vocabulary.ids(texts[n : n + 10]) for n in range(0, len(texts), 10)]
    np.testing.assert_array_equal(np.concatenate(few), many)
    assert few[0].dtype == many.dtype == np.int32
