"""A table whose ids are written otherwise than in the training rows is said, instead of scored as if all were new."""

import warnings

import numpy as np
import polars as pl
import pytest
from random_bundle import random_bundle

from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings
from fieldwise.bundle.unknown_ids import unknown_id_doubts
from fieldwise.cli import run

SCHEMA = Schema(
    fields=(Categorical("user_id", role="user"), Categorical("item_id", role="item")),
    label=Label("click"),
    user="user_id",
    item="item_id",
)


def log(rows: int = 400, first_user: int = 1) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "user_id": [f"{user:05}" for user in rng.integers(first_user, first_user + 40, rows)],
            "item_id": [f"i{item}" for item in rng.integers(0, 20, rows)],
            "click": rng.integers(0, 2, rows),
        }
    )


@pytest.fixture(scope="module")
def model() -> Recommender:
    return Recommender(SCHEMA, FM(embedding_dim=2), training=TrainingSettings(epochs=1)).fit(log())


def test_lost_leading_zeros_are_a_warning_of_every_prediction(model, tmp_path):
    log(300).write_csv(tmp_path / "log.csv")
    lost = pl.read_csv(tmp_path / "log.csv")
    assert lost["user_id"].dtype == pl.Int64
    pattern = r"CHECK: 100 % of the user ids in column 'user_id' are unknown .* \(of its validation rows 0 %\): the "
    pattern += r"training rows have '000\d\d' where this table has '\d+'"
    for call in (model.predict, model.predict_proba, model.evaluate):
        with pytest.warns(UserWarning, match=pattern) as heard:
            call(lost)
        assert [warning.filename for warning in heard if "CHECK" in str(warning.message)] == [
            __file__
        ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model.predict_proba(log(300))
        np.testing.assert_array_equal(model.predict_proba(tmp_path / "log.csv"), expected)


def test_new_ids_are_said_with_an_example_of_those_learned(model):
    newer = log(first_user=500)
    (doubt,) = unknown_id_doubts(model.bundle_, newer)
    assert "the training rows have ids such as '000" in doubt
    half = pl.concat([log(200), newer[:100]])
    assert unknown_id_doubts(model.bundle_, half) == []
    of_few_users = newer.filter(pl.col("user_id").is_in(newer["user_id"].unique()[:9].implode()))
    assert unknown_id_doubts(model.bundle_, of_few_users) == []


def test_a_model_whose_validation_rows_had_new_ids_expects_them():
    newer = log(first_user=500)
    bundle = random_bundle(FM(embedding_dim=2), SCHEMA, log(), samples=newer[:32])
    assert unknown_id_doubts(bundle, newer) == []


def test_the_commands_say_it_too(model, tmp_path, capsys):
    model.bundle_.save(tmp_path / "b")
    with_numbers = log(300).with_columns(pl.col("user_id").cast(pl.Int64))
    with_numbers.write_parquet(tmp_path / "numbers.parquet")
    log(300).write_csv(tmp_path / "texts.csv")
    for name, count in (("numbers.parquet", 1), ("texts.csv", 0)):
        data = ["--data", str(tmp_path / name)]
        for command in (["evaluate"], ["predict", "--overwrite", "--out", str(tmp_path / "p.csv")]):
            assert run([command[0], str(tmp_path / "b"), *command[1:], *data]) == 0
            err = capsys.readouterr().err
            assert (
                err.count("CHECK: 100 % of the user ids in column 'user_id' are unknown") == count
            )
