"""Training again on training and validation rows together (`training.refit`)."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from counted_steps import Ends

from fieldwise import (
    FM,
    Bundle,
    DataError,
    Encoder,
    Recipe,
    Recommender,
    TrainingSettings,
    load_recipe,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.bundle.bundle import sample_rows
from fieldwise.bundle.trained_rows import rows_trained
from fieldwise.data.prepare.prepared import encoded_together
from fieldwise.data.table import batch_starts
from fieldwise.models.build import build_network
from fieldwise.runs.pipeline import evaluate_on_test, fit_again, fit_recipe
from fieldwise.runs.rows_of_run import rows_of_run
from fieldwise.training.callbacks import OutOfTime
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective

FRAME = simulate(400, users=40, items=30, seed=5)


def recipe() -> Recipe:
    """An FM that stops early, with several evaluations per epoch and drops of the learning rate."""
    result = load_recipe("simulated/fm", ["data.rows=1500", "data.users=40", "data.items=30"])
    training = TrainingSettings(
        learning_rate=0.03, batch_size=64, epochs=12, evaluations_per_epoch=4, patience=6, plateau_factor=0.5,
        monitor="logloss", refit=True,
    )  # fmt: skip
    return dataclasses.replace(result, training=training)


@pytest.fixture(scope="module")
def prepared():
    return prepare_recipe(recipe(), Path())


@pytest.fixture(scope="module")
def first(prepared):
    """The first training alone."""
    return fit_recipe(recipe(), prepared.encoder, prepared.train, prepared.valid)


@pytest.fixture(scope="module")
def run(prepared):
    return train_recipe(recipe(), prepared)


def by_hand(first, prepared) -> torch.nn.Module:
    """The second training written out: plain Adam over both parts, with the first training's learning rates."""
    schema = first.recipe.schema
    frame = pl.concat([prepared.train.frame, prepared.valid.frame])
    encoder = Encoder.fit(frame, schema)
    table = encoder.transform(frame, y=np.concatenate([prepared.train.y, prepared.valid.y]))
    network = build_network(first.recipe.model, encoder.layout, first.recipe.seed, labels=1)
    optimizer = torch.optim.Adam(network.parameters())
    order = torch.Generator().manual_seed(first.recipe.seed)
    rates = [one.learning_rate for one in first.history.evaluations]
    steps, done, wanted = (
        len(batch_starts(len(table), 64)),
        0,
        first.history.evaluations.index(first.history.best) + 1,
    )
    torch.manual_seed(first.recipe.seed)
    for _ in itertools.count():
        permutation = torch.randperm(len(table), generator=order)
        for step, (batch, y) in enumerate(table.batches(64, order=permutation), start=1):
            optimizer.param_groups[0]["lr"] = rates[done]
            optimizer.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(network(batch), y).backward()
            optimizer.step()
            done += step in [round(steps * k / 4) for k in (1, 2, 3, 4)]
            if done == wanted:
                return network
    raise AssertionError


def test_the_second_training_repeats_epochs_and_learning_rates_on_both_parts(prepared, first):
    until_best = first.history.evaluations[
        : first.history.evaluations.index(first.history.best) + 1
    ]
    assert len({one.learning_rate for one in until_best}) > 1, (
        "the case has a drop before its best evaluation"
    )
    again = fit_again(first, prepared.train, prepared.valid)
    assert again.refit is not None
    assert again.refit.rows == len(prepared.train.table) + len(prepared.valid.table)
    assert again.refit.best.epoch == pytest.approx(first.history.best.epoch, abs=0.05)
    assert again.history == first.history
    for name, weights in by_hand(first, prepared).state_dict().items():
        torch.testing.assert_close(
            again.bundle.network.state_dict()[name], weights, rtol=1e-4, atol=1e-5
        )


def test_raw_validation_rows_are_not_read_before_evaluation(prepared):
    def read():
        raise AssertionError("read")

    unread = dataclasses.replace(prepared, valid=dataclasses.replace(prepared.valid, rows=read))
    first = fit_recipe(recipe(), unread.encoder, unread.train, unread.valid)
    assert first.bundle.samples.is_empty()
    done = evaluate_on_test(first, prepared, spent=0.0)
    assert done.bundle.samples.equals(sample_rows(recipe().schema, prepared.valid.frame))


def test_values_of_validation_rows_are_known_afterwards(prepared):
    new = prepared.valid.frame.with_columns(user_id=pl.lit("a new user"))
    valid = dataclasses.replace(prepared.valid, rows=new)
    encoder, table = encoded_together(prepared.train, valid, recipe().schema)
    ids = table.ids[:, 0]
    assert (ids[-new.height :] == ids[-1]).all()
    assert not (ids[: -new.height] == ids[-1]).any()
    unknown = encoder.transform(new.head(1).with_columns(user_id=pl.lit("another"))).ids[0, 0]
    assert ids[-1] != unknown


def test_rows_without_weights_get_the_mean_of_the_others_and_columns_have_one_type(prepared):
    weights = np.linspace(1, 3, len(prepared.train.table), dtype=np.float32)
    train = dataclasses.replace(
        prepared.train, table=dataclasses.replace(prepared.train.table, weight=weights)
    )
    _, table = encoded_together(train, prepared.valid, recipe().schema)
    np.testing.assert_allclose(
        table.weight, [*weights, *[2.0] * len(prepared.valid.table)], rtol=1e-6
    )
    lists = prepared.valid.frame.with_columns(
        pl.col(recipe().schema.columns[0]).cast(pl.Utf8).str.split("")
    )
    other = dataclasses.replace(prepared.valid, rows=lists)
    with pytest.raises(DataError, match="same types of values in both tables"):
        encoded_together(prepared.train, other, recipe().schema)


def test_a_run_keeps_the_first_metrics_of_validation_rows_and_measures_its_bundle(
    prepared, first, run, tmp_path
):
    assert run.valid == first.history.best.metrics
    assert run.test != evaluate_on_test(first, prepared, spent=0.0).test
    y, z = prepared.test.main.astype(np.float64), run.bundle.score(prepared.test.frame)
    assert run.test["logloss"] == pytest.approx(
        np.mean(np.logaddexp(0, np.where(y > 0.5, -z, z))), rel=1e-6
    )
    assert run.record()["refit"]["rows"] == len(prepared.train.table) + len(prepared.valid.table)
    run.bundle.save(tmp_path / "b")
    np.testing.assert_array_equal(Bundle.load(tmp_path / "b").score(prepared.test.frame), z)
    assert "refit" not in evaluate_on_test(first, prepared, spent=0.0).record()


def test_validation_rows_count_as_trained_on(prepared, run):
    with pytest.raises(
        DataError,
        match=r"trained on the recipe's validation rows too \(training.refit\): give --data",
    ):
        rows_of_run(run.bundle, recipe(), prepared, "valid", "give --data FILE")
    assert rows_of_run(run.bundle, recipe(), prepared, "test", "")[1]
    seen = rows_trained(run.bundle, prepared.valid.frame)
    assert seen is not None
    assert seen.share == 1


def test_a_warm_start_from_it_has_not_held_out_the_validation_rows(prepared, run, tmp_path):
    run.bundle.save(tmp_path / "b")
    start = dataclasses.replace(recipe(), warm_start=str(tmp_path / "b"))
    next_run = train_recipe(start, prepared)
    assert next_run.warm_start is not None
    assert next_run.warm_start.same_test_rows
    assert not next_run.warm_start.same_valid_rows


@pytest.mark.parametrize(
    ("how", "stopped"), [(KeyboardInterrupt, "interrupted"), (OutOfTime, "time")]
)
def test_an_interrupted_second_training_keeps_the_first_network(prepared, first, how, stopped):
    kept = fit_again(first, prepared.train, prepared.valid, [Ends(step=3, how=how)])
    assert kept.bundle is first.bundle
    assert kept.refit is None
    assert kept.history.stopped == stopped
    interrupted = dataclasses.replace(
        first, history=dataclasses.replace(first.history, stopped="interrupted")
    )
    assert fit_again(interrupted, prepared.train, prepared.valid) == interrupted


def test_an_average_of_weights_is_kept_by_the_second_training_too(prepared):
    """Over the first training's rows, so that both networks are equal."""
    settings = TrainingSettings(
        average=0.9, batch_size=64, epochs=3, learning_rate=0.05, monitor="logloss"
    )
    networks = [
        build_network(FM(embedding_dim=4), prepared.encoder.layout, 0, labels=1) for _ in range(2)
    ]
    train, more = prepared.train.table, {"settings": settings, "objective": Objective(), "seed": 0}
    first = Training(networks[0], train, prepared.valid.table, **more).run()
    again = Training(networks[1], train, None, repeats=first, **more).run()
    assert again.best.epoch == first.best.epoch
    for one, other in zip(*(n.state_dict().values() for n in networks), strict=True):
        assert torch.equal(one, other)


def test_a_recommender_trains_again_and_says_so():
    X, y = FRAME.drop("liked"), FRAME["liked"]
    plain, both = (
        Recommender(
            model=FM(), training=TrainingSettings(epochs=2, batch_size=64, refit=refit), seed=1
        ).fit(X, y)
        for refit in (False, True)
    )
    assert both.bundle_.about.refit["rows"] == len(FRAME)
    assert plain.bundle_.about.refit is None
    assert both.history_.best.metrics == plain.history_.best.metrics
    assert not np.array_equal(both.decision_function(X), plain.decision_function(X))
    assert both.bundle_.encoder.layout.num_rows >= plain.bundle_.encoder.layout.num_rows
