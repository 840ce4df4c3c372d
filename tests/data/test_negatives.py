"""Negatives against sets in plain Python: never used, same context, uniform, seeded, exact at the edge."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise.data.prepare.negatives import sample_negatives
from fieldwise.data.prepare.settings import NegativeSampling
from fieldwise.errors import ConfigError, DataError


def a_log(rows: int = 3000, users: int = 50, items: int = 120, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    item = rng.integers(0, items, rows)
    return pl.DataFrame(
        {
            "user": [f"u{u}" for u in rng.integers(0, users, rows)],
            "app": item,
            "cost": [("free", "paid")[i % 2] for i in item],
            "hour": rng.integers(0, 24, rows),
            "label": np.ones(rows, dtype=np.int8),
        }
    )


ASK = NegativeSampling(user="user", item="app", per_positive=3, item_columns=("cost",))


def draw(positives: pl.DataFrame, log: pl.DataFrame, ask: NegativeSampling = ASK, seed: int = 0) -> pl.DataFrame:
    return sample_negatives(positives, log=log, settings=ask, seed=seed, label=("label", 0))


def test_never_an_item_that_the_user_used_in_any_part() -> None:
    log = a_log()
    train = log.head(2000)
    negatives = draw(train, log)
    used = set(log.select("user", "app").iter_rows())
    assert not used & set(negatives.select("user", "app").iter_rows())
    assert negatives.height == 3 * train.height
    assert negatives.schema == log.schema
    assert set(negatives["label"]) == {0}


def test_context_stays_and_item_columns_follow_the_item() -> None:
    log = a_log()
    negatives = draw(log, log)
    repeated = np.repeat(np.arange(log.height), 3)
    assert negatives.select("user", "hour").equals(log[repeated].select("user", "hour"))
    assert negatives["cost"].to_list() == [("free", "paid")[i % 2] for i in negatives["app"]]


def test_items_of_one_positive_differ() -> None:
    log = a_log()
    items = draw(log, log)["app"].to_numpy().reshape(-1, 3)
    assert all(len(set(row)) == 3 for row in items.tolist())


def test_follows_the_seed() -> None:
    log = a_log()
    assert draw(log, log, seed=1).equals(draw(log, log, seed=1))
    assert not draw(log, log, seed=1).equals(draw(log, log, seed=2))


def test_every_unused_item_is_sampled_as_often() -> None:
    log = pl.DataFrame({"user": ["a"] * 20_000 + ["b"] * 10, "app": [3] * 20_000 + list(range(10)), "label": 1})
    ask = NegativeSampling(user="user", item="app", per_positive=2)
    items, counts = np.unique(draw(log.head(20_000), log, ask)["app"].to_numpy(), return_counts=True)
    assert items.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    expected = 40_000 / 9
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_user_of_nearly_everything_gets_exactly_the_rest() -> None:
    log = pl.DataFrame({"user": [1] * 997 + [2] * 1000, "app": [*range(997), *range(1000)], "label": 1})
    ask = NegativeSampling(user="user", item="app", per_positive=3)
    items = draw(log.head(997), log, ask)["app"].to_numpy().reshape(-1, 3)
    assert (np.sort(items, axis=1) == [997, 998, 999]).all()
    with pytest.raises(DataError, match=r"at least 3 unused items .* user 2 used 1000 of 1000"):
        draw(log, log, ask)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_rules_hold_for_any_log(pairs: list[tuple[int, int]], n: int, seed: int) -> None:
    log = pl.DataFrame(pairs, schema=["user", "app"], orient="row")
    ask = NegativeSampling(user="user", item="app", per_positive=n)
    catalogue = {i for _, i in pairs}
    unused = {u: catalogue - {i for v, i in pairs if v == u} for u, _ in pairs}
    if min(map(len, unused.values())) < n:
        with pytest.raises(DataError, match="unused items"):
            draw(log, log, ask, seed)
        return
    negatives = draw(log, log, ask, seed)
    groups = negatives["app"].to_numpy().reshape(-1, n).tolist()
    for (user, _), items in zip(pairs, groups, strict=True):
        assert set(items) <= unused[user]
        assert len(set(items)) == n


def test_a_log_without_label_column_gets_one() -> None:
    log = pl.DataFrame({"user": [1, 2], "app": ["a", "b"]})
    ask = NegativeSampling(user="user", item="app", per_positive=1)
    assert draw(log, log, ask).rows() == [(1, "b", 0), (2, "a", 0)]


def test_lists_in_other_columns_are_copied() -> None:
    log = pl.DataFrame({"user": [1, 2], "app": ["a", "b"], "tags": [["x", "y"], []]})
    ask = NegativeSampling(user="user", item="app", per_positive=1)
    assert draw(log, log, ask)["tags"].to_list() == [["x", "y"], []]


def test_no_positives_give_no_negatives() -> None:
    log = a_log(100)
    assert draw(log.clear(), log).shape == (0, 5)


def test_bad_tables_are_told_in_one_sentence() -> None:
    log = a_log(200)
    with pytest.raises(DataError, match="log must have column 'cost'"):
        draw(log, log.drop("cost"))
    stranger = log.head(1).with_columns(pl.lit(1_000).alias("app"))
    with pytest.raises(DataError, match="every positive must be in the log: row 0"):
        draw(stranger, log)
    with pytest.raises(DataError, match="'user' of the log is empty in row 1"):
        draw(log, log.with_columns(pl.when(pl.int_range(pl.len()) != 1).then("user").alias("user")))
    with pytest.raises(DataError, match="one description: item"):
        draw(log, log.with_columns(pl.col("hour").cast(pl.String).alias("cost")))
    with pytest.raises(DataError, match="'none' is not of type Int8"):
        sample_negatives(log, log=log, settings=ASK, seed=0, label=("label", "none"))


def test_bad_settings_are_refused(subtests):
    for wrong in [{"per_positive": 0}, {"parts": ()}, {"item_columns": ("app",)}, {"item_columns": ("user",)}]:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError):
            NegativeSampling(**{"user": "user", "item": "app", **wrong})  # type: ignore[arg-type]
