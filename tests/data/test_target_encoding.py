"""Target encoding against means by hand; neither a scored row's label nor a row's own enters."""

import numpy as np
import polars as pl
import pytest

from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.settings import PreparationSettings, TargetEncoding
from fieldwise.data.prepare.split_settings import RandomSplit
from fieldwise.data.prepare.target_encoding import add_target_encoding
from fieldwise.errors import ConfigError, DataError, SchemaError
from fieldwise.schema import Schema

FIELDS = [{"kind": "categorical", "name": "film"}, {"kind": "numeric", "name": "film_mean_label"}]


def schema(fields=FIELDS):
    return Schema.from_dict({"label": {"column": "liked"}, "fields": fields})


def log(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame({"film": rng.integers(0, 5, rows), "liked": rng.integers(0, 2, rows)})


def parts(train=200, test=60):
    frame = log(train + test)
    frames = {"train": frame.head(train), "test": frame.tail(test)}
    return frames, {name: part["liked"].to_numpy().astype(float) for name, part in frames.items()}


def test_scored_rows_read_the_training_rows_means():
    frames, y = parts()
    found = add_target_encoding(frames, y, TargetEncoding(columns=("film",)), seed=0)["test"]["film_mean_label"]
    expected = dict(frames["train"].group_by("film").agg(pl.col("liked").mean()).iter_rows())
    assert found.to_list() == pytest.approx([expected[film] for film in frames["test"]["film"]])


def test_training_rows_read_the_other_folds():
    frames, y = parts()
    settings = TargetEncoding(columns=("film",), folds=3)
    found = add_target_encoding(frames, y, settings, seed=4)["train"]["film_mean_label"].to_numpy()
    fold = np.random.default_rng(4).permutation(200) % 3  # the documented draw
    film = frames["train"]["film"].to_numpy()
    for row in range(200):
        others = (film == film[row]) & (fold != fold[row])
        assert found[row] == pytest.approx(y["train"][others].mean())


def test_no_scored_label_and_no_rows_own_changes_what_it_reads():
    frames, y = parts()
    settings = TargetEncoding(columns=("film",))
    before = add_target_encoding(frames, y, settings, seed=0)
    flipped = {**y, "test": 1 - y["test"]}
    assert add_target_encoding(frames, flipped, settings, seed=0)["test"].equals(before["test"])
    for row in range(0, 200, 20):
        own = y["train"].copy()
        own[row] = 1 - own[row]
        after = add_target_encoding(frames, {**y, "train": own}, settings, seed=0)["train"]
        assert after["film_mean_label"][row] == before["train"]["film_mean_label"][row]


def test_the_published_leak_is_just_that():
    frames, y = parts()
    found = add_target_encoding(frames, y, TargetEncoding(columns=("film",), source="own-part"), seed=0)
    for name, part in frames.items():
        expected = dict(part.group_by("film").agg(pl.col("liked").mean()).iter_rows())
        assert found[name]["film_mean_label"].to_list() == pytest.approx([expected[film] for film in part["film"]])


def test_categories_without_rows_are_missing_and_a_prior_fills_them():
    train, test = pl.DataFrame({"film": ["a", "a", None]}), pl.DataFrame({"film": ["b", None, "a"]})
    y = {"train": np.array([1.0, 1.0, 0.0]), "test": np.zeros(3)}
    none = add_target_encoding({"train": train, "test": test}, y, TargetEncoding(columns=("film",)), seed=0)
    assert none["test"]["film_mean_label"].to_list() == [None, None, 1.0]
    prior = TargetEncoding(columns=("film",), prior_rows=1.0)
    some = add_target_encoding({"train": train, "test": test}, y, prior, seed=0)["test"]["film_mean_label"].to_list()
    assert some == pytest.approx([2 / 3, None, (2 + 2 / 3) / 3])


def test_prepare_makes_them_and_encodes_them():
    prepared = prepare(
        log(),
        schema(),
        split=RandomSplit(),
        seed=1,
        add=PreparationSettings(target_encoding=TargetEncoding(columns=("film",))),
    )
    train = prepared.train.frame
    means = dict(train.group_by("film").agg(pl.col("liked").mean()).iter_rows())
    for film, mean in zip(prepared.test.frame["film"], prepared.test.frame["film_mean_label"], strict=True):
        assert mean == pytest.approx(means[film])
    assert prepared.test.table.values.shape[1] == 1


def test_what_cannot_be_is_refused(subtests):
    for settings, frame, fields, error, sentence in [
        (("flim",), log(), FIELDS, DataError, "did you mean 'film'"),
        (("liked",), log(), FIELDS, SchemaError, "must not encode the label's column"),
        (("film",), log(), FIELDS[:1], SchemaError, "a field must read the encoded column"),
        (("film",), log().with_columns(film_mean_label=1.0), FIELDS, DataError, "the table has one already"),
    ]:
        with (
            subtests.test(settings=settings, frame=frame, fields=fields, error=error, sentence=sentence),
            pytest.raises(error, match=sentence),
        ):
            prepare(
                frame,
                schema(fields),
                split=RandomSplit(),
                seed=1,
                add=PreparationSettings(target_encoding=TargetEncoding(columns=settings)),
            )


def test_settings_out_of_range(subtests):
    for wrong in [{"columns": ()}, {"columns": ("a", "a")}, {"folds": 1}, {"prior_rows": -1.0}]:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError, match="target_encoding"):
            TargetEncoding(**{"columns": ("film",), **wrong})
