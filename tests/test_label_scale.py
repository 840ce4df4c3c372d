"""A regression label's scale: what a model learns when the targets are of another size than 1."""

import numpy as np
import polars as pl
import pytest

from fieldwise import (
    AFM,
    Bundle,
    Categorical,
    Label,
    Recipe,
    Recommender,
    Schema,
    TrainingSettings,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.explain import explain

FIELDS = (Categorical("user_id"), Categorical("item_id"), Categorical("city"))
TIMES = 1024.0  # a power of two: targets of this size are the same numbers with another exponent


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Targets of a size of 1 and the same of 1,024, with a file of them."""
    frame = simulate(1000, users=30, items=20, seed=1)
    hours = frame["true_probability"].to_numpy() * 3 + np.random.default_rng(0).normal(0, 0.3, 1000)
    frame = frame.select("user_id", "item_id", "city").with_columns(
        hours=hours, price=hours * TIMES
    )
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame.write_parquet(path)
    return path


def trained(path, label, **more):
    schema = Schema(fields=FIELDS, label=label)
    plain = {
        "data": {"path": str(path)},
        "schema": schema.to_dict(),
        "split": {"kind": "random"},
        "model": {"name": "afm", "embedding_dim": 8},
        "training": {"epochs": 3},
    }
    recipe = Recipe.from_dict(plain | more, "scale")
    return train_recipe(recipe, prepare_recipe(recipe, path.parent))


def test_a_row_of_weight_2_counts_twice_in_the_scale(rows):
    frame = pl.read_parquet(rows).with_columns(pl.col("price") ** 2)
    times = np.where(frame["price"] > frame["price"].median(), 3, 1)
    schema = Schema(fields=FIELDS, label=Label("price", task="regression"))
    once = TrainingSettings(epochs=1)
    weighted = Recommender(schema, AFM(embedding_dim=2), training=once)
    weighted.fit(frame, sample_weight=times, eval_set=frame)
    repeated = Recommender(schema, AFM(embedding_dim=2), training=once)
    repeated.fit(frame[np.repeat(np.arange(1000), times)], eval_set=frame)
    unweighted = float(f"{frame['price'].std(ddof=0):.2g}")
    scales = [model.bundle_.schema.label.scale for model in (weighted, repeated)]
    assert scales[0] == scales[1] != unweighted


def test_targets_of_another_size_are_learned_to_the_bit_alike(rows):
    frame = pl.read_parquet(rows)
    plain = trained(rows, Label("hours", task="regression", scale=1))
    large = trained(rows, Label("price", task="regression", scale=TIMES))
    assert np.array_equal(large.bundle.predict(frame), plain.bundle.predict(frame) * TIMES)
    assert large.test["rmse"] == plain.test["rmse"] * TIMES
    assert large.valid["mae"] == plain.valid["mae"] * TIMES


def test_the_scale_follows_from_the_training_rows_and_is_kept(rows, tmp_path):
    run = trained(rows, Label("price", task="regression", range=(-2000, 5000)))
    spread = float(np.std(prepare_recipe(run.recipe, rows.parent).train.y.astype(np.float64)))
    assert run.recipe.schema.label.scale == float(f"{spread:.2g}")
    assert [one.setting for one in run.chosen if one.setting.startswith("schema")] == [
        "schema.label.scale"
    ]
    # and not that of a constant, which is the standard deviation
    assert run.test["rmse"] < 0.85 * spread
    run.bundle.save(tmp_path / "bundle")
    loaded, frame = Bundle.load(tmp_path / "bundle"), pl.read_parquet(rows)
    assert loaded.schema == run.bundle.schema
    predicted = loaded.predict(frame)
    assert np.array_equal(
        predicted, np.clip(loaded.score(frame) * loaded.schema.label.scale, -2000, 5000)
    )
    assert np.array_equal(explain(loaded, frame.head(5)).prediction, loaded.predict(frame.head(5)))


def test_ratings_and_fixed_defaults_have_none(rows):
    assert trained(rows, Label("hours", task="regression")).recipe.schema.label.scale is None
    assert (
        trained(rows, Label("price", task="regression"), defaults="fixed").recipe.schema.label.scale
        is None
    )


def test_each_of_several_labels_has_its_own(rows):
    frame = pl.read_parquet(rows)
    schema = Schema(
        fields=FIELDS,
        label=Label("hours", task="regression"),
        more_labels=(Label("price", task="regression", weight=0.5),),
    )
    result = Recommender(
        schema, model=AFM(embedding_dim=8), training=TrainingSettings(epochs=5)
    ).fit(frame)
    assert result.bundle_.schema.label.scale is None
    spread = frame["price"].std()
    assert result.bundle_.schema.more_labels[0].scale == pytest.approx(spread, rel=0.1)
    errors = np.sqrt(
        ((result.predict(frame) - frame.select("hours", "price").to_numpy()) ** 2).mean(axis=0)
    )
    assert (errors < 0.85 * np.array([frame["hours"].std(), spread])).all()


def test_a_warm_start_keeps_the_scale_of_what_it_starts_from(rows, tmp_path):
    first = trained(rows, Label("price", task="regression", scale=512))
    first.bundle.save(tmp_path / "first")
    second = trained(rows, Label("price", task="regression"), warm_start=str(tmp_path / "first"))
    assert second.recipe.schema.label.scale == 512
    assert second.valid["rmse"] <= first.valid["rmse"] * 1.1
