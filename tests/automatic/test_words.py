"""What `auto` says of a trial, and of its search, in the singular and in the plural."""

from types import SimpleNamespace

import numpy as np
import pytest
from automatic_runs import shorten

from fieldwise import Recipe
from fieldwise.automatic import trial
from fieldwise.automatic.run import run_auto
from fieldwise.automatic.settings import AutoSettings
from fieldwise.automatic.task import AutoTask
from fieldwise.automatic.trial import TITLES, TREES, Trial, Trials

MINUTES = 30.0


@pytest.mark.parametrize(
    ("title", "unit", "epochs", "stopped", "words"),
    [
        ("LR", "epoch", 15, "converged", "solved exactly with 15 priors"),
        ("LR", "epoch", 1, "converged", "solved exactly with 1 prior"),
        ("FM", "epoch", 1, "epochs", "1 epoch (all epochs completed)"),
        ("FM", "epoch", 3, "time", "3 epochs (time limit reached)"),
        ("LightGBM", "tree", 1, "time", "1 tree (time limit reached)"),
    ],
)
def test_a_trial_is_said_with_its_length_and_its_seconds(
    title, unit, epochs, stopped, words, monkeypatch
):
    monkeypatch.setattr(trial, "constant", lambda _: None)
    said: list[str] = []
    tried = Trials(SimpleNamespace(metric="logloss"), None, 0.0, said.append)
    one = Trial(
        title=title,
        raw=None,
        valid=np.zeros(1),
        value=0.25,
        seconds=4.0,
        epochs=epochs,
        stopped=stopped,
        trained=SimpleNamespace(history=SimpleNamespace(unit=unit)),
    )
    tried.add(one, allowed=3.9)
    expected = f"{title}: validation logloss 0.2500, {words}, 4.0 s with scoring (its training may take 3.9 s)"
    assert said == [expected]


def test_a_search_of_one_trial_and_an_exact_model_trained_again(log, monkeypatch):
    shorten(monkeypatch, most=1)
    monkeypatch.delitem(TITLES, "fm")
    monkeypatch.delitem(TREES, "lightgbm")

    def recipe_without_training_settings(task, model, name):
        return Recipe.from_dict({**task.settings, "model": model}, name)

    monkeypatch.setattr(AutoTask, "recipe", recipe_without_training_settings)
    said: list[str] = []
    run_auto(log, AutoSettings(label="liked", minutes=MINUTES), said.append)
    (search,) = [sentence for sentence in said if sentence.startswith("search: ")]
    assert search == "search: 1 trial of LR"
    (again,) = [sentence for sentence in said if "is chosen and trained again on all" in sentence]
    assert "training and validation rows: solved exactly, " in again
