import numpy as np
import pytest

from fieldwise import LR, AutoIntPlus, Callback, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate

BINARY = Objective()


class Recording(Callback):
    """All weights and buffers after every step."""

    def __init__(self, network):
        self.network = network
        self.states = [self.state()]

    def state(self):
        return {
            name: value.double().numpy().copy() for name, value in self.network.state_dict().items()
        }

    def on_step(self, step):
        self.states.append(self.state())


def train(tables, network, average, **settings):
    progress = Recording(network)
    given = {"batch_size": 24, "epochs": 2, "learning_rate": 0.05, "patience": 9, **settings}
    result = Training(
        network, tables.train, tables.valid, settings=TrainingSettings(average=average, **given),
        objective=BINARY, seed=0, callbacks=(progress,),
    ).run()  # fmt: skip
    return result, progress.states


def mean_after(states, name, decay, steps):
    mean = states[0][name]
    for t in range(1, steps + 1):
        d = min(decay, (1 + t) / (10 + t))
        mean = d * mean + (1 - d) * states[t][name]
    return mean


# the warm-up gives way to 0.3 in the third step, to 0.99 never
@pytest.mark.parametrize("decay", [0.3, 0.99])
def test_the_kept_weights_are_the_exponential_mean_of_the_steps(tables, decay):
    network = build_network(
        AutoIntPlus(embedding_dim=4, hidden=(6,), batch_norm=True), tables.layout, 0
    )
    result, states = train(tables, network, decay)
    steps = round(result.best.epoch * (len(states) - 1) / 2)  # 120 rows: 5 steps an epoch
    assert steps in (5, 10)
    for name, value in network.state_dict().items():
        if name.endswith("num_batches_tracked"):
            assert value.item() == steps
        else:
            np.testing.assert_allclose(
                value, mean_after(states, name, decay, steps), rtol=1e-5, atol=1e-7, err_msg=name
            )
    # BatchNorm's statistics are averaged too
    assert any("running_var" in name for name in states[0])


def test_metrics_are_those_of_the_mean_that_is_kept(tables):
    network = build_network(LR(), tables.layout, 0)
    result, _ = train(tables, network, 0.9)
    assert result.best.metrics == evaluate(network, tables.valid, BINARY)


def test_averaging_leaves_the_steps_as_they_are(tables):
    # the learning rate kept: evaluations, which differ, would decide when it drops
    def steps(average):
        network = build_network(LR(), tables.layout, 0)
        return train(tables, network, average, epochs=6, plateau_factor=1.0)[1]

    for plain, averaged in zip(steps(None), steps(0.9), strict=True):
        for name, value in plain.items():
            np.testing.assert_array_equal(averaged[name], value)


@pytest.mark.parametrize("update", ["dense", "lazy"])
def test_tables_whose_rows_wait_are_averaged_like_others(tables, update):
    network = build_network(LR(), tables.layout, 0)
    result, states = train(tables, network, 0.5, optimizer="sgd", embedding_update=update)
    steps = round(result.best.epoch * 5)
    for name, value in network.state_dict().items():
        np.testing.assert_allclose(
            value, mean_after(states, name, 0.5, steps), rtol=1e-5, atol=1e-7, err_msg=name
        )
