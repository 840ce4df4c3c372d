"""The time budget, with the tests' own clock: the cost of an epoch, which models fit, which trials are stopped."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fieldwise.automatic import budget, trial
from fieldwise.automatic.budget import (
    Clock,
    Deadline,
    Probe,
    PrunedTrial,
    TrialDeadline,
    admitted,
    allotted,
)
from fieldwise.automatic.trial import Trial
from fieldwise.training.callbacks import OutOfTime, TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation

STEP = TrainingStep(1, 1, 100, torch.tensor(0.5))


@pytest.fixture
def now(monkeypatch):
    """A clock that the test moves: `now[0]` are its seconds."""
    seconds = [100.0]
    monkeypatch.setattr(budget.time, "perf_counter", lambda: seconds[0])
    return seconds


def evaluated(epoch, value):
    return Evaluation(epoch=epoch, learning_rate=0.1, seconds=1.0, metrics={"logloss": value})


def test_the_seconds_of_a_trial_include_its_scoring(now, monkeypatch):
    def fit(*_):
        now[0] += 5.0
        return SimpleNamespace(
            history=SimpleNamespace(epochs=1.0, stopped="patience"), parameters=3
        )

    def judged(title, raw, task, **facts):
        now[0] += 2.0
        return Trial(title=title, raw=raw, valid=np.zeros(1), value=0.5, **facts)

    monkeypatch.setattr(trial, "fit_recipe", fit)
    monkeypatch.setattr(trial, "evaluated_trial", judged)
    task = SimpleNamespace(prepared=SimpleNamespace(encoder=None, train=None, valid=None))
    assert trial.fit_trial("FM", None, task, None).seconds == 7.0


def test_a_clock_counts_from_its_beginning():
    seconds = [5.0]
    clock = Clock(60, lambda: seconds[0])
    seconds[0] = 25.0
    assert (clock.spent, clock.left) == (20.0, 40.0)
    # what was loaded before it was made counts too
    earlier = Clock(60, lambda: seconds[0], began=1.0)
    assert (earlier.spent, earlier.left) == (24.0, 36.0)


def test_a_deadline_ends_a_training_at_its_time_and_not_before(now):
    until = Deadline(10)
    now[0] = 109.9
    until.on_step(STEP)
    now[0] = 110.0
    with pytest.raises(OutOfTime):
        until.on_step(STEP)


def test_a_probe_reckons_an_epoch_from_its_steps_and_one_evaluation(now):
    probe = Probe()
    probe.on_start(TrainingStart(epochs=30, steps=10, rows=1000, monitor="logloss"))
    for seconds in (5.0, 2.0, 2.0, 2.0, 2.0):  # the first prepares much
        now[0] += seconds
        probe.on_step(STEP)
    now[0] += 2.0
    with pytest.raises(OutOfTime):
        probe.on_step(STEP)
    now[0] += 3.0
    probe.on_evaluation(evaluated(0.6, 0.5), better=True)
    assert probe.seconds_per_epoch == pytest.approx(10 * 2.0 + 3.0)


def test_a_probe_of_a_table_of_few_batches_ends_at_its_first_evaluation(now):
    probe = Probe()
    probe.on_start(TrainingStart(epochs=30, steps=2, rows=150, monitor="logloss"))
    for _ in range(2):
        now[0] += 1.0
        probe.on_step(STEP)
    now[0] += 0.5
    with pytest.raises(OutOfTime):
        probe.on_evaluation(evaluated(1, 0.5), better=True)
    assert probe.seconds_per_epoch == pytest.approx(1.5 * 1.0 + 0.5)


def test_the_most_costly_models_are_dropped_until_the_rest_have_three_epochs():
    costs = {"inttower": 20.0, "fm": 1.0, "afm": 4.0}
    names = {75.0: ["fm", "afm", "inttower"], 74.9: ["fm", "afm"], 14.9: ["fm"], 2.9: []}
    assert {seconds: admitted(costs, seconds) for seconds in names} == names
    assert admitted({}, 10.0) == []


def test_a_model_gets_its_share_or_a_hundred_epochs_if_the_others_keep_three():
    assert allotted([5.0], 60.0) == 60.0
    assert allotted([1.0, 1.0], 100.0) == 50.0  # its share is more than it needs
    # a hundred epochs, and 90 for three of the other's and more
    assert allotted([0.1, 10.0], 100.0) == 10.0
    assert allotted([1.0, 10.0], 40.0) == 10.0  # the other keeps three epochs, 30
    # a quarter, though a hundred epochs take 100 and the other needs 12
    assert allotted([1.0, 4.0], 60.0) == 15.0
    assert allotted([3.0, 1.0], 40.0) == 30.0  # more by its share


def test_a_trial_that_falls_behind_is_broken_off_from_half_of_the_others_best_on():
    other = [
        evaluated(1, 0.70),
        evaluated(2, 0.60),
        evaluated(3, 0.50),
        evaluated(4, 0.45),
        evaluated(5, 0.47),
    ]
    trial = TrialDeadline(1000, other, "logloss")
    trial.on_evaluation(evaluated(1, 0.90), better=True)  # before half of the best epoch, 4
    trial.on_evaluation(evaluated(2, 0.606), better=True)  # within a hundredth of .60
    trial.on_evaluation(evaluated(3, 0.504), better=True)
    with pytest.raises(PrunedTrial):
        trial.on_evaluation(evaluated(4, 0.50), better=True)
    ahead = TrialDeadline(1000, other, "logloss")
    for epoch in range(1, 7):
        ahead.on_evaluation(evaluated(epoch, 0.45), better=True)
