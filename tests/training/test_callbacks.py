"""What callbacks are called with, and that they change nothing in a training."""

import numpy as np
import pytest

from fieldwise import (
    LR,
    Callback,
    Categorical,
    DeepFM,
    Label,
    Recommender,
    Schema,
    TrainingError,
    TrainingSettings,
    simulate,
)
from fieldwise.models.build import build_network
from fieldwise.training.callbacks import OutOfTime
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective

SCHEMA = Schema(fields=(Categorical("user_id"), Categorical("item_id")), label=Label("liked"))


class Recording(Callback):
    def __init__(self, stop=None):
        self.told, self.stop = [], stop

    def on_start(self, start):
        self.told.append(("start", start))

    def on_step(self, step):
        self.told.append(("step", step._replace(loss=step.loss.item())))
        if step.number == self.stop:
            raise OutOfTime

    def on_evaluation(self, evaluation, better):
        self.told.append(("evaluation", evaluation, better))

    def on_end(self, result):
        self.told.append(("end", result))

    def of(self, kind):
        return [one[1] for one in self.told if one[0] == kind]


def fitted(*callbacks, **training):
    settings = TrainingSettings(
        **{"epochs": 3, "batch_size": 64, "patience": 9, "mean_with_lr": False, **training}
    )
    return Recommender(SCHEMA, DeepFM(embedding_dim=4), training=settings).fit(
        simulate(1000), callbacks=callbacks
    )


def weights(model):
    return {name: value.numpy() for name, value in model.bundle_.network.state_dict().items()}


def test_counts_are_those_of_the_run_and_its_weights_the_same_to_the_bit():
    one, other = Recording(), Recording()
    model = fitted(one, other, evaluations_per_epoch=2)
    assert one.of("evaluation") == list(model.history_.evaluations)
    better = [told[2] for told in one.told if told[0] == "evaluation"]
    assert one.of("evaluation")[np.flatnonzero(better)[-1]] == model.history_.best
    (start,) = one.of("start")
    steps = one.of("step")
    assert (start.epochs, start.rows, start.steps, start.monitor) == (
        3,
        900,
        15,
        model.history_.monitor,
    )
    assert [step.number for step in steps] == list(range(1, 46))
    assert [step.epoch for step in steps] == [1] * 15 + [2] * 15 + [3] * 15
    assert sum(step.rows for step in steps) == 3 * 900
    assert start.settings["model"]["name"] == "deepfm"
    assert start.settings["training"]["batch_size"] == 64
    means = [one.train_loss for one in model.history_.evaluations]
    # two evaluations in 15 steps
    parts = np.split(np.array([step.loss for step in steps]), [8, 15, 23, 30, 38])
    np.testing.assert_allclose([part.mean() for part in parts], means, rtol=1e-6)
    assert one.told[0][0] == "start"
    assert one.told[-1] == ("end", model.history_)
    assert other.told == one.told
    alone = weights(fitted(evaluations_per_epoch=2))
    for name, value in weights(model).items():
        np.testing.assert_array_equal(value, alone[name], err_msg=name)


def test_a_callback_ends_a_run_with_the_best_weights_so_far():
    ending = Recording(stop=20)
    model = fitted(ending)
    assert model.history_.stopped == "time"
    assert len(ending.of("step")) == 20
    assert ending.of("end") == [model.history_]


def test_callbacks_know_a_second_training():
    seen = Recording()
    fitted(seen, refit=True)
    first, second = seen.of("start")
    assert (first.refit, second.refit) == (False, True)
    assert (first.rows, second.rows) == (900, 1000)


def test_all_callbacks_are_called_at_the_end_after_an_error(tables):
    class Broken(Recording):
        def on_end(self, result):
            super().on_end(result)
            raise ValueError("its own")

    broken, last = Broken(), Recording()
    settings = TrainingSettings(epochs=9, optimizer="sgd", learning_rate=1e20, batch_size=16)
    objective, network = Objective(task="regression"), build_network(LR(), tables.layout, 0)
    with pytest.raises(ValueError, match="its own") as e:
        Training(
            network, tables.train, tables.valid, settings=settings, objective=objective, seed=0,
            callbacks=[broken, last],
        ).run()  # fmt: skip
    assert isinstance(e.value.__context__, TrainingError)
    assert broken.of("end") == last.of("end") == [None]
