"""Sampled negatives and target encoding, against plain Python."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise import (
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
    TimeSplit,
)
from fieldwise.cli.show import row_counts
from fieldwise.data.prepare.negatives import sample_negatives
from fieldwise.data.prepare.settings import PARTS, TargetEncoding
from fieldwise.data.prepare.target_encoding import add_target_encoding
from fieldwise.storage.scratch import NO_LIMIT


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


def draw(
    positives: pl.DataFrame, log: pl.DataFrame, ask: NegativeSampling = ASK, seed: int = 0
) -> pl.DataFrame:
    return sample_negatives(
        positives, log=log, settings=ask, seed=seed, label=("label", 0), budget=NO_LIMIT
    )


def test_context_stays_and_item_columns_follow_the_item() -> None:
    log = a_log()
    negatives = draw(log, log)
    assert (negatives.height, negatives.schema, set(negatives["label"])) == (
        3 * log.height,
        log.schema,
        {0},
    )
    repeated = np.repeat(np.arange(log.height), 3)
    assert negatives.select("user", "hour").equals(log[repeated].select("user", "hour"))
    assert negatives["cost"].to_list() == [("free", "paid")[i % 2] for i in negatives["app"]]


def test_follows_the_seed() -> None:
    log = a_log()
    assert draw(log.clear(), log).shape == (0, 5), "no positives"
    assert draw(log, log, seed=1).equals(draw(log, log, seed=1))
    assert not draw(log, log, seed=1).equals(draw(log, log, seed=2))


def test_every_unused_item_is_sampled_as_often() -> None:
    log = pl.DataFrame(
        {"user": ["a"] * 20_000 + ["b"] * 10, "app": [3] * 20_000 + list(range(10)), "label": 1}
    )
    ask = NegativeSampling(user="user", item="app", per_positive=2)
    items, counts = np.unique(
        draw(log.head(20_000), log, ask)["app"].to_numpy(), return_counts=True
    )
    assert items.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    expected = 40_000 / 9
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_user_of_nearly_everything_gets_exactly_the_rest() -> None:
    log = pl.DataFrame(
        {"user": [1] * 997 + [2] * 1000, "app": [*range(997), *range(1000)], "label": 1}
    )
    ask = NegativeSampling(user="user", item="app", per_positive=3)
    items = draw(log.head(997), log, ask)["app"].to_numpy().reshape(-1, 3)
    assert (np.sort(items, axis=1) == [997, 998, 999]).all()
    with pytest.raises(DataError, match=r"at least 3 unused items .* user 2 used 1000 of 1000"):
        draw(log, log, ask)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=60),
    st.integers(1, 3),
    st.integers(0, 3),
    st.sampled_from(["uniform", "popularity", "mixed"]),
)
@settings(max_examples=150, deadline=None)
def test_rules_hold_for_any_log(pairs: list[tuple[int, int]], n: int, seed: int, kind: str) -> None:
    log = pl.DataFrame(pairs, schema=["user", "app"], orient="row")
    ask = NegativeSampling(user="user", item="app", per_positive=n, kind=kind)
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


def test_shares_of_items_follow_their_rows() -> None:
    """Of one user's unused items, by NumPy's shares; the user's own item never comes."""
    rng = np.random.default_rng(0)
    app = np.append(rng.choice(12, 3000, p=np.arange(1, 13) / 78), 12)
    log = pl.DataFrame({"user": np.append(np.zeros(3000, int), 1), "app": app})
    one = log[-1:].select(pl.all().repeat_by(40_000).explode())
    rows = np.bincount(app)[:12]
    for kind, exponent in (("popularity", 1.0), ("popularity", 0.75), ("mixed", 0.5)):
        share = rows**exponent / (np.append(rows, 1) ** exponent).sum()
        if kind == "mixed":
            share = (share + 1 / 13) / 2
        ask = NegativeSampling(
            user="user", item="app", per_positive=1, kind=kind, exponent=exponent
        )
        drawn = np.bincount(draw(one, log, ask)["app"], minlength=13)
        assert drawn[12] == 0
        expected = 40_000 * share / share.sum()
        chi_square = ((drawn[:12] - expected) ** 2 / expected).sum()
        assert chi_square < 31.3  # 11 degrees of freedom, p = .001


def test_an_exponent_is_a_power_of_at_most_one() -> None:
    with pytest.raises(ConfigError, match="exponent must be from 0 to 1, found 2"):
        NegativeSampling(kind="popularity", exponent=2.0)


def test_a_log_without_label_column_gets_one() -> None:
    log = pl.DataFrame({"user": [1, 2], "app": ["a", "b"]})
    ask = NegativeSampling(user="user", item="app", per_positive=1)
    assert draw(log, log, ask).rows() == [(1, "b", 0), (2, "a", 0)]


def test_lists_in_other_columns_are_copied() -> None:
    log = pl.DataFrame({"user": [1, 2], "app": ["a", "b"], "tags": [["x", "y"], []]})
    ask = NegativeSampling(user="user", item="app", per_positive=1)
    assert draw(log, log, ask)["tags"].to_list() == [["x", "y"], []]


def test_parts_with_equal_rows_have_other_negatives() -> None:
    """One draw for all parts would make the test rows' negatives those of training."""
    log = pl.concat(
        [a_log(60).with_columns(part=pl.lit(part)) for part in ("train", "valid", "test")]
    )
    fields = [{"kind": "categorical", "name": name} for name in ("user", "app")]
    schema = Schema.from_dict({"label": {"column": "label"}, "fields": fields})
    made = prepare(
        log, schema, split=ColumnSplit(column="part"), seed=1, negatives=replace(ASK, parts=PARTS)
    )
    drawn = [
        part.frame.filter(label=0)["app"].to_list() for part in (made.train, made.valid, made.test)
    ]
    assert [len(items) for items in drawn] == [180] * 3
    assert len(set(map(tuple, drawn))) == 3


def test_bad_tables_are_told_in_one_sentence() -> None:
    log = a_log(200)
    with pytest.raises(DataError, match="log must have column 'cost'"):
        draw(log, log.drop("cost"))
    with pytest.raises(DataError, match="'user' of the log is empty in 1 of 200 positive rows"):
        draw(log, log.with_columns(pl.when(pl.int_range(pl.len()) != 1).then("user").alias("user")))
    with pytest.raises(DataError, match="one description: item"):
        draw(log, log.with_columns(pl.col("hour").cast(pl.String).alias("cost")))
    with pytest.raises(DataError, match="'none' is not of type Int8"):
        sample_negatives(
            log, log=log, settings=ASK, seed=0, label=("label", "none"), budget=NO_LIMIT
        )


def a_shop(rows: int = 600) -> pl.DataFrame:
    """A log of positives in which an item's price changes, is empty in some rows, and has a fixed brand."""
    rng = np.random.default_rng(8)
    log = pl.DataFrame(
        {"user": rng.integers(0, 40, rows), "app": rng.integers(0, 30, rows)}
    ).unique(maintain_order=True)
    many = log.height
    price = pl.Series(rng.integers(1, 99, many), dtype=pl.Float64)
    price = price.set(pl.Series(rng.random(many) < 0.2), None)
    days = np.sort(rng.integers(0, 60, many))
    texts = [f"{1 + day % 28:02d}.{1 + day // 28:02d}.2026" for day in days.tolist()]
    brand = pl.format("b{}", pl.col("app") % 5)
    return log.with_columns(brand=brand, price=price, day=pl.Series(texts), moment=days, label=1)


SHOP = Schema.from_dict(
    {
        "user": "user",
        "item": "app",
        "time": "day",
        "time_format": "%d.%m.%Y",
        "label": {"column": "label"},
        "fields": [
            {"kind": "categorical", "name": "user", "role": "user"},
            {"kind": "categorical", "name": "app", "role": "item"},
            {"kind": "categorical", "name": "brand", "role": "item"},
            {"kind": "numeric", "name": "price", "role": "item"},
        ],
    }
)


def price_then(log: pl.DataFrame, app: int, moment: int) -> float | None:
    """By plain loops: an item's last known price at or before a moment."""
    price = None
    for row in log.sort("moment", maintain_order=True).iter_rows(named=True):
        if row["app"] == app and row["moment"] <= moment and row["price"] is not None:
            price = row["price"]
    return price


def test_a_drawn_item_has_the_price_that_it_had_then() -> None:
    log = a_shop()
    ask = NegativeSampling(per_positive=2, parts=PARTS, item_columns=("brand", "price"))
    made = prepare(log, SHOP, split=TimeSplit(), seed=3, negatives=ask)
    parts = [part.frame for part in (made.train, made.valid, made.test)]
    in_order = pl.concat([part.filter(label=1) for part in parts])
    drawn = pl.concat([part.filter(label=0) for part in parts])
    assert drawn.height == 2 * log.height == made.counts["negatives_drawn"]
    expected = [
        price_then(in_order, app, moment)
        for app, moment in drawn.select("app", "moment").iter_rows()
    ]
    assert drawn["price"].to_list() == expected
    assert drawn["brand"].to_list() == [f"b{app % 5}" for app in drawn["app"]], (
        "a fixed value at any time"
    )
    without = sum(price is None for price in expected)
    assert made.counts["negatives_without_value"] == without > 0
    assert f"{without:,} of these without a value" in row_counts(made.counts)


def test_values_that_change_need_a_time_and_missing_ones_are_no_change() -> None:
    log = a_shop()
    ask = NegativeSampling(per_positive=2, item_columns=("brand", "price"))
    timeless = replace(SHOP, time=None, time_format=None)
    with pytest.raises(
        DataError,
        match=r"one description: item 0 has several different values in price; .* the time",
    ):
        prepare(log, timeless, split=RandomSplit(), seed=3, negatives=ask)
    gone = pl.Series(np.random.default_rng(1).random(log.height) < 0.3)
    fixed = log.with_columns(price=pl.when(~gone).then(pl.col("app") * 1.5))
    known = set(fixed.drop_nulls("price")["app"])
    made = prepare(
        fixed, timeless, split=RandomSplit(), seed=3, negatives=replace(ask, parts=PARTS)
    )
    drawn = made.train.frame.filter(label=0)
    assert drawn["price"].to_list() == [app * 1.5 if app in known else None for app in drawn["app"]]


def test_bad_settings_are_refused(subtests):
    for wrong in [
        {"per_positive": 0},
        {"parts": ()},
        {"item_columns": ("app",)},
        {"item_columns": ("user",)},
    ]:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError):
            NegativeSampling(**{"user": "user", "item": "app", **wrong})  # type: ignore[arg-type]


FIELDS = [{"kind": "categorical", "name": "film"}, {"kind": "numeric", "name": "film_mean_label"}]


def encoded_by_target(frame, fields, columns):
    schema = Schema.from_dict({"label": {"column": "liked"}, "fields": fields})
    return prepare(
        frame, schema, split=RandomSplit(), seed=1, target_encoding=TargetEncoding(columns=columns)
    )


def log(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"film": rng.integers(0, 5, rows), "liked": rng.integers(0, 2, rows)})


def parts(train=200, test=60):
    frame = log(train + test)
    frames = {"train": frame.head(train), "test": frame.tail(test)}
    return frames, {name: part["liked"].to_numpy().astype(float) for name, part in frames.items()}


@pytest.mark.parametrize("prior", [0.0, 2.5])
def test_training_rows_read_the_other_folds(prior):
    """Their prior mean too is that of the other folds' rows."""
    frames, y = parts()
    settings = TargetEncoding(columns=("film",), folds=3, prior_rows=prior)
    result = add_target_encoding(frames, y, settings, seed=4, budget=NO_LIMIT)["train"][
        "film_mean_label"
    ].to_numpy()
    fold = np.random.default_rng(4).permutation(200) % 3  # the documented draw
    film = frames["train"]["film"].to_numpy()
    for row in range(200):
        others = fold != fold[row]
        own = y["train"][others & (film == film[row])]
        assert result[row] == pytest.approx(
            (own.sum() + prior * y["train"][others].mean()) / (len(own) + prior)
        )


@pytest.mark.parametrize("prior", [0.0, 2.5])
def test_weights_of_training_rows_count_in_the_other_folds(prior):
    frames, y = parts()
    weights = {name: np.random.default_rng(1).gamma(1.0, size=len(y[name])) for name in y}
    settings = TargetEncoding(columns=("film",), folds=3, prior_rows=prior)
    result = add_target_encoding(frames, y, settings, weights=weights, seed=4, budget=NO_LIMIT)
    fold = np.random.default_rng(4).permutation(200) % 3
    film = frames["train"]["film"].to_numpy()
    w = weights["train"]
    for row in range(200):
        others = fold != fold[row]
        own = others & (film == film[row])
        mean = np.average(y["train"][others], weights=w[others])
        expected = ((w * y["train"])[own].sum() + prior * mean) / (w[own].sum() + prior)
        assert result["train"]["film_mean_label"][row] == pytest.approx(expected)


@pytest.mark.parametrize("source", ["train", "own-part"])
def test_a_row_of_weight_2_is_encoded_as_the_row_twice(source):
    frames, y = parts()
    settings = TargetEncoding(columns=("film",), prior_rows=1.5, source=source)
    weights = {name: np.random.default_rng(2).integers(1, 4, len(y[name])) * 1.0 for name in y}
    repeated = {name: np.repeat(np.arange(len(y[name])), weights[name].astype(int)) for name in y}
    weighted = add_target_encoding(frames, y, settings, weights=weights, seed=0, budget=NO_LIMIT)
    expected = add_target_encoding(
        {name: frames[name][rows] for name, rows in repeated.items()},
        {name: y[name][rows] for name, rows in repeated.items()},
        settings,
        seed=0,
        budget=NO_LIMIT,
    )
    rows = weighted["test"]["film_mean_label"][repeated["test"]]
    np.testing.assert_allclose(rows, expected["test"]["film_mean_label"], rtol=1e-12)


def test_no_scored_label_and_no_rows_own_changes_what_it_reads():
    frames, y = parts()
    settings = TargetEncoding(columns=("film",))
    before = add_target_encoding(frames, y, settings, seed=0, budget=NO_LIMIT)
    flipped = {**y, "test": 1 - y["test"]}
    assert add_target_encoding(frames, flipped, settings, seed=0, budget=NO_LIMIT)["test"].equals(
        before["test"]
    )
    for row in range(0, 200, 20):
        own = y["train"].copy()
        own[row] = 1 - own[row]
        after = add_target_encoding(frames, {**y, "train": own}, settings, seed=0, budget=NO_LIMIT)[
            "train"
        ]
        assert after["film_mean_label"][row] == before["train"]["film_mean_label"][row]


def test_a_recipe_encodes_with_the_weights_of_its_schema():
    frame = log(300).with_columns(weight=pl.Series(np.arange(300) % 3 + 1.0))
    fields = (Categorical("film"), Numeric("film_mean_label", transform="none"))
    schema = Schema(fields=fields, label=Label("liked"), weight="weight")
    encoding = TargetEncoding(columns=("film",))
    data = prepare(frame, schema, split=RandomSplit(), seed=1, target_encoding=encoding)
    means = {
        film: np.average(rows["liked"], weights=rows["weight"])
        for (film,), rows in data.train.frame.group_by("film")
    }
    encoded = data.test.frame["film_mean_label"].to_list()
    assert encoded == pytest.approx([means[film] for film in data.test.frame["film"]])


def test_the_published_leak_is_just_that():
    frames, y = parts()
    result = add_target_encoding(
        frames, y, TargetEncoding(columns=("film",), source="own-part"), seed=0, budget=NO_LIMIT
    )
    for name, part in frames.items():
        expected = dict(part.group_by("film").agg(pl.col("liked").mean()).iter_rows())
        assert result[name]["film_mean_label"].to_list() == pytest.approx(
            [expected[film] for film in part["film"]]
        )


def test_the_leak_of_published_scripts_is_by_side():
    frames, y = parts()
    frames = {
        "train": frames["train"].head(150),
        "valid": frames["train"].tail(50),
        "test": frames["test"],
    }
    y = {"train": y["train"][:150], "valid": y["train"][150:], "test": y["test"]}
    result = add_target_encoding(
        frames, y, TargetEncoding(columns=("film",), source="own-side"), seed=0, budget=NO_LIMIT
    )
    sides = {"train": ("train", "valid"), "valid": ("train", "valid"), "test": ("test",)}
    for name, side in sides.items():
        rows = pl.concat([frames[part] for part in side])
        expected = dict(rows.group_by("film").agg(pl.col("liked").mean()).iter_rows())
        assert result[name]["film_mean_label"].to_list() == pytest.approx(
            [expected[f] for f in frames[name]["film"]]
        )


def test_categories_without_rows_are_missing_and_a_prior_fills_them():
    train, test = pl.DataFrame({"film": ["a", "a", None]}), pl.DataFrame({"film": ["b", None, "a"]})
    y = {"train": np.array([1.0, 1.0, 0.0]), "test": np.zeros(3)}
    none = add_target_encoding(
        {"train": train, "test": test},
        y,
        TargetEncoding(columns=("film",)),
        seed=0,
        budget=NO_LIMIT,
    )
    assert none["test"]["film_mean_label"].to_list() == [None, None, 1.0]
    prior = TargetEncoding(columns=("film",), prior_rows=1.0)
    some = add_target_encoding({"train": train, "test": test}, y, prior, seed=0, budget=NO_LIMIT)[
        "test"
    ]["film_mean_label"].to_list()
    assert some == pytest.approx([2 / 3, None, (2 + 2 / 3) / 3])


def test_prepare_makes_them_and_encodes_them():
    prepared = encoded_by_target(log(), FIELDS, ("film",))
    train = prepared.train.frame
    means = dict(train.group_by("film").agg(pl.col("liked").mean()).iter_rows())
    for film, mean in zip(
        prepared.test.frame["film"], prepared.test.frame["film_mean_label"], strict=True
    ):
        assert mean == pytest.approx(means[film])
    assert prepared.test.table.values.shape[1] == 1


def test_what_cannot_be_is_refused(subtests):
    for encoded, frame, fields, error, sentence in [
        (("flim",), log(), FIELDS, DataError, "did you mean 'film'"),
        (("liked",), log(), FIELDS, SchemaError, "must not encode the label's column"),
        (("film",), log(), FIELDS[:1], SchemaError, "a field must read the encoded column"),
        (
            ("film",),
            log().with_columns(film_mean_label=1.0),
            FIELDS,
            DataError,
            "the table has one already",
        ),
    ]:
        with subtests.test(sentence), pytest.raises(error, match=sentence):
            encoded_by_target(frame, fields, encoded)


def test_settings_out_of_range(subtests):
    for wrong in [{"columns": ()}, {"columns": ("a", "a")}, {"folds": 1}, {"prior_rows": -1.0}]:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError, match="target_encoding"):
            TargetEncoding(**{"columns": ("film",), **wrong})
