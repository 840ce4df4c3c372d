"""The simulated log against its promises: strictly past histories, calibrated labels, planted effects that exist."""

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from fieldwise import ConfigError, simulate
from fieldwise.data.read.simulation import (
    AGE_GROUPS,
    CITIES,
    DECADES,
    DEVICES,
    GENRES,
    PLANTED,
    Strengths,
    planted_tables,
)

ONLY_CITY = dict.fromkeys(Strengths.__dataclass_fields__, 0.0) | {
    "city_release_decade": 1.2,
    "bias": -0.5,
}


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return simulate()


def test_follows_the_seed() -> None:
    assert simulate(500, seed=4).equals(simulate(500, seed=4))
    assert not simulate(500, seed=4).equals(simulate(500, seed=5))


def test_histories_are_the_last_ten_likes_before_the_row() -> None:
    log = simulate(4000, users=30, items=60, seed=2)
    liked: dict[str, list[str]] = {}
    for user, item, history, like in log.select(
        "user_id", "item_id", "history", "liked"
    ).iter_rows():
        assert history == "|".join(liked.get(user, [])[-10:])
        if like:
            liked.setdefault(user, []).append(item)


def test_columns_are_what_the_docs_say(log: pl.DataFrame) -> None:
    assert log.height == 120_000
    assert (log["timestamp"].diff().drop_nulls() > 0).all()
    clock = log.select(pl.from_epoch("timestamp", time_unit="s").alias("t"), "hour", "weekday")
    assert (clock["t"].dt.hour() == clock["hour"]).all()
    assert (clock["t"].dt.strftime("%a") == clock["weekday"]).all()
    assert set(log["liked"].unique()) == {0, 1}
    assert set(log["genres"].str.split("|").explode().unique()) == set(GENRES)
    assert set(log["genres"].str.split("|").list.len().unique()) == {1, 2, 3}
    assert log["length"].is_between(60, 200).all()
    assert log.null_count().sum_horizontal().item() == 0
    films = log.select("item_id", "title", "genres", "release_decade", "length").unique()
    assert films.height == films["item_id"].n_unique() == films["title"].n_unique()
    people = log.select("user_id", "age_group", "gender", "city").unique()
    assert people.height == people["user_id"].n_unique()


def test_labels_are_sampled_with_the_true_probability(log: pl.DataFrame) -> None:
    bins = log.with_columns((pl.col("true_probability") * 20).floor().alias("bin"))
    table = bins.group_by("bin").agg(
        pl.col("liked").cast(pl.Float64).sum(),
        pl.col("true_probability").sum().alias("expected"),
        (pl.col("true_probability") * (1 - pl.col("true_probability"))).sum().sqrt().alias("error"),
    )
    assert table.height == 20
    assert ((table["liked"] - table["expected"]).abs() < 4 * table["error"]).all()


def test_popularity_follows_zipf(log: pl.DataFrame) -> None:
    counts = np.sort(log["item_id"].value_counts()["count"].to_numpy())[::-1]
    ranks = np.arange(1, len(counts) + 1)
    slope = np.polyfit(np.log(ranks[:200]), np.log(counts[:200]), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.05)


def test_a_planted_pair_is_recovered_from_the_labels() -> None:
    log = simulate(seed=3, strengths=Strengths(**ONLY_CITY))
    table = planted_tables(3, Strengths(**ONLY_CITY))["city_release_decade"]
    cells = log.group_by("city", "release_decade").agg(
        pl.col("liked").cast(pl.Float64).sum().alias("k"), pl.len()
    )
    got = np.zeros_like(table)
    for city, decade, k, n in cells.iter_rows():
        got[CITIES.index(city), DECADES.index(decade)] = np.log((k + 0.5) / (n - k + 0.5))
    assert np.abs(got - (table - 0.5)).max() < 0.35  # cells of some 1,000 rows
    assert np.corrcoef(got.ravel(), table.ravel())[0, 1] > 0.98


def test_true_logits_hold_the_planted_tables_and_nothing_else() -> None:
    none = dict.fromkeys(Strengths.__dataclass_fields__, 0.0)
    strengths = Strengths(**(none | {"age_group_genres": 0.9, "device_weekend_genres": 0.4}))
    log = simulate(2000, seed=8, strengths=strengths)
    tables = planted_tables(8, strengths)
    for age, device, day, genres, probability in log.select(
        "age_group", "device", "weekday", "genres", "true_probability"
    ).iter_rows():
        which = [GENRES.index(g) for g in genres.split("|")]
        pair = tables["age_group_genres"][AGE_GROUPS.index(age), which].mean()
        third = tables["device_weekend_genres"][
            DEVICES.index(device), int(day in ("Sat", "Sun")), which
        ].mean()
        assert np.log(probability / (1 - probability)) == pytest.approx(pair + third, abs=1e-9)


def test_tables_are_centred_and_of_the_given_strength() -> None:
    tables = planted_tables(0)
    for name, (columns, shape, _) in PLANTED.items():
        table = tables[name]
        assert table.std() == pytest.approx(getattr(Strengths(), name))
        for axis in range(table.ndim):
            assert np.abs(table.mean(axis=axis)).max() < 1e-12
        assert len(columns) >= 2
        assert table.shape == shape


def test_a_linear_model_stays_clearly_below_the_best(log: pl.DataFrame) -> None:
    features = log.drop("title", "length", "history", "timestamp", "liked", "true_probability")
    x = OneHotEncoder(handle_unknown="ignore").fit_transform(features.to_numpy())
    y, probability = log["liked"].to_numpy(), log["true_probability"].to_numpy()
    test = np.random.default_rng(0).random(len(y)) < 0.2
    linear = LogisticRegression(C=0.3, max_iter=300, tol=1e-3).fit(x[~test], y[~test])
    best = roc_auc_score(y[test], probability[test])
    assert 0.80 < best < 0.86
    assert roc_auc_score(y[test], linear.decision_function(x[test])) < best - 0.03


def test_odd_sizes_work(subtests: pytest.Subtests) -> None:
    for rows, users, items in [(1, 1, 1), (50, 1, 7000), (200, 20_000, 1)]:
        with subtests.test(rows=rows, users=users, items=items):
            log = simulate(rows, users=users, items=items)
            assert log.height == rows
            assert log["true_probability"].is_finite().all()


def test_bad_sizes_and_strengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="users must be a whole number of at least 1, found 0"):
        simulate(10, users=0)
    with pytest.raises(ConfigError, match="gender_genres is -1"):
        Strengths(gender_genres=-1)


@pytest.mark.parametrize("rows", ["3", 3.0, True, 0])
def test_a_number_of_rows_is_a_whole_number(rows: object) -> None:
    with pytest.raises(
        ConfigError, match=f"rows must be a whole number of at least 1, found {rows!r}"
    ):
        simulate(rows)  # type: ignore[arg-type]
