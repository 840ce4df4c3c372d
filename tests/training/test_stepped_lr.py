"""LR trained by steps for a mean with it: against a training of LR alone, broken off, ended early, repeated."""

import dataclasses

import numpy as np
import pytest
import torch
from counted_steps import Ends
from sklearn.linear_model import LogisticRegression

from fieldwise import AFM, FM, LR, AutoIntPlus, ConfigError, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.scoring.batches import score_batches
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.memory import bytes_of_parameters, bytes_of_rows
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.with_lr import LR_RATE

STRENGTH = 0.01
COMMON = {"epochs": 4, "batch_size": 32, "patience": 9, "evaluations_per_epoch": 2}
MEAN = TrainingSettings(
    **COMMON,
    monitor="logloss",
    mean_with_lr=True,
    l2_of_lr=STRENGTH,
    learning_rate=0.3,
    unknown_share=1.0,
    embedding_update="lazy",
    l2={"embedding.weight": 0.01},
)
PLUS = AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(6,))
STEPS = 4 * 4  # of LR, and as many of the network


def trained(tables, settings=MEAN, *, model=None, repeats=None, callback=None, checkpoints=None):
    """A training on rows that no run has seen, whose network diverges, and its history."""
    model = FM(embedding_dim=4) if model is None else model
    training = Training(
        build_network(model, tables.layout, 3),
        dataclasses.replace(tables.train),
        tables.valid,
        settings=settings,
        objective=Objective(),
        seed=3,
        repeats=repeats,
        callbacks=[Callback() if callback is None else callback],
        checkpoints=checkpoints,
    )
    return training, training.run()


def alone(tables, **more):
    """LR alone, trained with the settings that it has in the mean."""
    own = {"learning_rate": LR_RATE, "embedding_update": "lazy", "start_at_base_rate": True}
    l2 = {"first_order.embedding.weight": STRENGTH}
    settings = TrainingSettings(**(COMMON | own | more), l2=l2, monitor="logloss")
    network = LR().build(tables.layout)
    Training(
        network, tables.train, tables.valid, settings=settings, objective=Objective(), seed=3
    ).run()
    return network


def scores_of(network, table):
    return score_batches(network, table.batches(1000))


@pytest.mark.parametrize(
    "model", [FM(embedding_dim=4), AFM(embedding_dim=4, attention_dim=4), PLUS]
)
def test_the_mean_is_with_lr_as_it_is_trained_alone(tables, model):
    # so that the network learns less than LR
    settings = dataclasses.replace(MEAN, l2={}, learning_rate=1e-6)
    training, result = trained(tables, settings, model=model)
    lr = alone(tables)
    mean = training.network
    assert torch.equal(mean.lr.embedding.weight, lr.first_order.embedding.weight)
    assert torch.equal(mean.lr.bias, lr.first_order.bias)
    assert 0 <= result.network_share < 1
    y = tables.valid.y
    of_network, of_lr = scores_of(mean.network, tables.valid), scores_of(lr, tables.valid)
    shares = np.linspace(0, 1, 101)
    losses = np.array(
        [
            np.mean(np.logaddexp(0, z) - y * z)
            for z in (s * of_network + (1 - s) * of_lr for s in shares)
        ]
    )
    likelihoods = np.exp(-len(y) * (losses - losses.min()))
    assert result.network_share == pytest.approx(
        shares @ likelihoods / likelihoods.sum(), abs=0.0051
    )
    assert result.best.metrics["logloss"] == pytest.approx(
        evaluate(mean, tables.valid, Objective())["logloss"]
    )
    assert result.lr.best.metrics["logloss"] == evaluate(lr, tables.valid, Objective())["logloss"]
    assert result.priors == {}


def test_its_strength_is_that_of_scikit_learn(tables):
    """Many epochs of all rows in one batch come close to the minimum; the run ends with them."""
    rows = len(tables.train)
    whole = {
        "epochs": 2_000,
        "batch_size": rows,
        "evaluations_per_epoch": 1,
        "embedding_update": "dense",
    }
    settings = dataclasses.replace(
        MEAN, **whole, patience=2_000, start_from_lr=True, mean_with_lr=False
    )
    one_hot = np.zeros((rows, tables.layout.num_rows))
    np.put_along_axis(one_hot, tables.train.ids, 1.0, axis=1)
    other = LogisticRegression(C=1 / (STRENGTH * rows), tol=1e-8, max_iter=5_000).fit(
        one_hot, tables.train.y
    )
    same = dataclasses.replace(tables.train)
    given = {"settings": settings, "objective": Objective(), "seed": 3}
    training = Training(
        FM(embedding_dim=4).build(tables.layout), same, same, **given, callbacks=[Ends(step=2_000)]
    )
    training.run()
    first = training.network.first_order
    scores = one_hot @ first.embedding.weight[:, 0].detach().numpy() + first.bias.item()
    np.testing.assert_allclose(scores, other.decision_function(one_hot), atol=0.02)


def test_a_network_may_start_from_it(tables):
    settings = dataclasses.replace(
        MEAN, mean_with_lr=False, start_from_lr=True, learning_rate=1e-12, l2={}
    )
    training, result = trained(tables, settings)
    lr = alone(tables)
    assert torch.allclose(
        training.network.first_order.embedding.weight, lr.first_order.embedding.weight, atol=1e-6
    )
    assert result.network_share is None


class Heard(Callback):
    def __init__(self):
        self.rows = []

    def on_step(self, step):
        self.rows.append(step.rows)

    def on_start(self, start):
        self.rows.append("start")

    def on_end(self, result):
        self.rows.append("end")


def test_callbacks_hear_of_its_steps_without_rows(tables):
    heard = Heard()
    trained(tables, callback=heard)
    assert heard.rows == ["start", *[0] * STEPS, *[32, 32, 32, 24] * 4, "end"]


def test_a_search_trains_it_once(tables):
    heard = Heard()
    table = dataclasses.replace(tables.train)
    for settings in (
        MEAN,
        dataclasses.replace(MEAN, learning_rate=0.1),
        dataclasses.replace(MEAN, l2_of_lr=0.02),
    ):
        network = FM(embedding_dim=4).build(tables.layout)
        given = {"settings": settings, "objective": Objective(), "seed": 3, "callbacks": [heard]}
        Training(network, table, tables.valid, **given).run()
    runs = " ".join(map(str, heard.rows)).split("start")[1:]
    assert [run.split().count("0") for run in runs] == [STEPS, 0, STEPS]


def checkpoints(folder):
    place = CheckpointFolder(folder=folder)
    return Checkpoints(
        unfinished=place, name="first", minutes=1e-9, about=lambda: {"rows": "these"}
    )


class Killed(BaseException):
    """What no code catches, as a kill would end a run."""


def assert_equal(found, expected):
    training, result = found
    network, wanted = expected[0].network.state_dict(), expected[1]
    assert {name: value.tolist() for name, value in training.network.state_dict().items()} == {
        name: value.tolist() for name, value in network.items()
    }
    assert (result.network_share, result.stopped, result.epochs) == (
        wanted.network_share,
        "epochs",
        wanted.epochs,
    )
    assert [one.metrics for one in result.lr.evaluations] == [
        one.metrics for one in wanted.lr.evaluations
    ]


@pytest.mark.parametrize(
    ("how", "kills"),
    [
        (Killed, (3, 5)),
        (Killed, (STEPS - 1, 9)),
        (KeyboardInterrupt, (11, STEPS + 1)),
        (OutOfTime, (12, 3)),
    ],
)
def test_a_run_that_is_broken_off_equals_one_that_is_not(tables, tmp_path, kills, how):
    expected = trained(tables)
    assert expected[1].network_share < 1
    for step in kills:
        try:
            _, result = trained(
                tables, callback=Ends(step=step, how=how), checkpoints=checkpoints(tmp_path)
            )
        except Killed:
            continue
        assert result.stopped == {KeyboardInterrupt: "interrupted", OutOfTime: "time"}[how]
    assert_equal(trained(tables, checkpoints=checkpoints(tmp_path)), expected)


def test_a_finished_lr_is_restored_without_a_step(tables, tmp_path):
    with pytest.raises(Killed):
        trained(
            tables, callback=Ends(step=STEPS + 3, how=Killed), checkpoints=checkpoints(tmp_path)
        )
    heard = Heard()
    trained(tables, callback=heard, checkpoints=checkpoints(tmp_path))
    assert heard.rows.count(0) == 0


def test_a_time_limit_leaves_what_it_has_reached(tables):
    settings = dataclasses.replace(MEAN, mean_with_lr=False, start_from_lr=True)
    training, result = trained(tables, settings, callback=Ends(step=9, how=OutOfTime))
    assert (result.stopped, result.lr.stopped, result.lr.epochs) == ("time", "time", 3)
    assert len(result.evaluations) == 1, "of a network that has taken no step"
    lr = alone(tables, epochs=2)
    assert torch.equal(
        training.network.first_order.embedding.weight, lr.first_order.embedding.weight
    )


def test_a_second_training_repeats_the_first_one_s(tables):
    first, result = trained(tables)
    second, repeated = trained(tables, repeats=result)
    assert repeated.network_share == result.network_share < 1
    assert torch.equal(second.network.lr.embedding.weight, first.network.lr.embedding.weight)
    assert repeated.lr.best.epoch == result.lr.best.epoch


def test_its_memory_is_counted(tables):
    network = build_network(FM(embedding_dim=4), tables.layout, 0)
    plain, checkpoint = bytes_of_parameters(network, dataclasses.replace(MEAN, mean_with_lr=False))
    rows = 4 * (tables.layout.num_rows + 1)
    assert bytes_of_parameters(network, MEAN) == (plain + 2 * rows, checkpoint)
    lr = LR().build(tables.layout)
    # without states: LR's own training takes more
    settings = dataclasses.replace(MEAN, optimizer="sgd", l2={})
    least = sum(p.nbytes for p in lr.parameters()) + 2 * rows + rows - 4  # occurrences have no bias
    of_lr = least + rows * 2  # Adam's states; and the gradient of the bias
    assert bytes_of_parameters(lr, settings)[0] == rows + of_lr + 4
    without = dataclasses.replace(MEAN, mean_with_lr=False)
    assert bytes_of_rows(tables.train, 10, MEAN) == bytes_of_rows(tables.train, 10, without)


def test_a_negative_strength_is_refused():
    with pytest.raises(ConfigError, match="l2_of_lr must not be negative, found -1"):
        TrainingSettings(l2_of_lr=-1.0)
