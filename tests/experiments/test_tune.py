"""A search finds what was planted, goes on where it stopped, and never sees a test label."""

import dataclasses
import json
import os
import socket
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import optuna
import polars as pl
import pytest
from counted_steps import Steps

from fieldwise import ConfigError, DataError, load_recipe
from fieldwise.runs import search_space as space_module
from fieldwise.runs import tune as module
from fieldwise.runs.bounds import OneOf, Range
from fieldwise.runs.recorded_runs import RunContext
from fieldwise.runs.tune import tune
from fieldwise.training.history import Evaluation

DATA = Path("none")
SEARCH = """
[search]
"training.learning_rate" = { low = 1e-5, high = 0.1, log = true }
"""


@pytest.fixture
def recipe(folder, monkeypatch):
    monkeypatch.setattr(space_module, "default_space", lambda _: {})
    text = (folder / "lr.toml").read_text()
    (folder / "tuned.toml").write_text(
        "defaults = 'fixed'\n" + text.replace("[training]", SEARCH + "[training]")
    )
    return load_recipe("tuned.toml")


def edited(old, new):
    """The recipe after a change of its file."""
    text = Path("tuned.toml").read_text()
    assert old in text
    Path("tuned.toml").write_text(text.replace(old, new))
    return load_recipe("tuned.toml")


def search(recipe, trials=8, **options):
    context = RunContext(data_dir=DATA, **options)
    return tune(recipe, trials=trials, store=Path("tune"), context=context, seed=0, final_seeds=1)


def test_it_finds_a_rate_that_trains_and_writes_a_recipe_of_it(recipe):
    result = search(recipe, trials=8)
    assert sum(result.trials.values()) == 8
    # a hundred-thousandth learns nothing in two epochs
    assert result.values["training.learning_rate"] > 1e-3
    assert result.metric == "auc"
    saved = load_recipe(result.recipe_file)
    assert saved.training == result.recipe.training
    assert tomllib.loads(result.recipe_file.read_text())["data"].keys() == {"path"}, (
        "no settings of a simulated log"
    )
    assert result.caution == ""
    # the same run once more
    assert result.runs[0].about["valid"]["auc"] == pytest.approx(result.value, abs=1e-9)


def study_of(found):
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(found.study))
    )
    return optuna.load_study(study_name=found.study.stem, storage=storage)


def trials_of(found):
    return study_of(found).trials


def rates_of(found):
    return [trial.params["training.learning_rate"] for trial in trials_of(found)]


def test_processes_that_begin_together_try_different_values(recipe, monkeypatch):
    """A second search begins during the first trial of the first one, as in another terminal."""
    fit, begun = module.fit_recipe, []

    def with_another_search(*given):
        begun.append(given)
        if len(begun) == 1:
            search(recipe, trials=3)
        return fit(*given)

    monkeypatch.setattr(module, "fit_recipe", with_another_search)
    rates = rates_of(search(recipe, trials=7))
    assert len(rates) == 7
    assert len(set(rates)) == 7
    assert rates[0] == recipe.training.learning_rate


def test_test_labels_decide_nothing(recipe, folder, monkeypatch):
    """With every label of the test rows turned round, all of the search is the same."""
    from fieldwise import prepare_recipe

    first = search(recipe, trials=6)
    rows = prepare_recipe(recipe, DATA).test.frame.get_column("row")
    log = pl.read_csv("log.csv")
    flipped = (
        pl.when(pl.col("row").is_in(rows.to_list()))
        .then(1 - pl.col("click"))
        .otherwise(pl.col("click"))
    )
    log.with_columns(flipped.alias("click")).write_csv("log.csv")
    again = search(recipe, trials=6)
    assert again.study != first.study  # other data are another study
    assert (again.value, again.values) == (first.value, first.values)
    assert again.runs[0].about["test"]["auc"] == pytest.approx(
        1 - first.runs[0].about["test"]["auc"], abs=1e-9
    )


def test_a_search_goes_on_where_it_was_and_counts_its_evaluations_on_test_rows(recipe):
    first = search(recipe, trials=2)
    assert [one.after_trials for one in first.test_evaluations] == [2]
    again = search(recipe, trials=2)
    assert (again.value, again.values, len(again.test_evaluations)) == (
        first.value,
        first.values,
        1,
    )
    more = search(recipe, trials=14)
    assert len(set(rates_of(more))) == 14  # nothing is tried twice
    evaluations = json.loads(more.study.with_suffix(".test.json").read_text())
    assert more.values != first.values  # twelve more trials find a better rate than two did
    assert [one["after_trials"] for one in evaluations] == [2, 14]


def test_trials_that_end_as_lr_alone_are_warned_about(recipe, monkeypatch):
    """Two of three have no share of the network in the mean with LR, and the best one is of them."""
    fit, calls = module.fit_recipe, []

    def mixed(*given):
        result = fit(*given)
        calls.append(result)
        best = dataclasses.replace(
            result.history.best, metrics=result.history.best.metrics | {"auc": 1.0}
        )
        alone = dataclasses.replace(result.history, network_share=0.0, best=best)
        return dataclasses.replace(result, history=result.history if len(calls) == 2 else alone)

    monkeypatch.setattr(module, "fit_recipe", mixed)
    assert search(recipe, trials=3).caution.startswith(
        "CHECK the best settings: in 2 of 3 complete trials the best mean of the model with LR is LR alone"
    )


@pytest.mark.usefixtures("recipe")
def test_hopeless_trials_are_broken_off():
    result = search(edited("epochs = 2", "epochs = 5\npatience = 9"), trials=14)
    assert result.trials["pruned"] > 0
    for trial in trials_of(result):  # evaluation k is step k of the study, from 0
        assert list(trial.intermediate_values) == list(range(len(trial.intermediate_values)))
        assert trial.state == optuna.trial.TrialState.PRUNED or len(trial.intermediate_values) == 5


def test_ctrl_c_keeps_the_ended_trials(recipe, monkeypatch):
    real, calls = module.fit_recipe, []

    def stops(*arguments):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(module, "fit_recipe", stops)
    with pytest.raises(KeyboardInterrupt):
        search(recipe, trials=4)
    monkeypatch.setattr(module, "fit_recipe", real)
    result = search(recipe, trials=4)
    # the broken one is made up for
    assert result.trials["complete"] + result.trials.get("pruned", 0) == 4


def test_settings_that_cannot_be_are_failures_and_no_end(recipe, monkeypatch):
    recipe = edited("[search]", '[search]\n"training.batch_size" = { choices = [64] }')

    def fails(*_):
        raise ConfigError("these two do not go together")

    monkeypatch.setattr(module, "fit_recipe", fails)
    notes = []
    with pytest.raises(
        ConfigError, match=r"no trial of .* was completed: the last one failed: these two do not go"
    ):
        search(recipe, trials=2, note=notes.append)
    assert "trial 1 failed: these two do not go together" in notes


def test_a_parameter_that_the_model_has_not_stops_the_search_at_once(recipe):
    recipe = edited("[search]", '[search]\n"training.l2.nosuch" = { low = 0.1, high = 1.0 }')
    with pytest.raises(ConfigError, match="l2 names parameter 'nosuch'"):
        search(recipe, trials=2)
    assert not list(Path("tune").glob("*.toml"))


def test_running_trials_of_a_killed_process_end_as_failed(recipe):
    first = search(recipe, trials=1)
    own = study_of(first)
    (done,) = own.trials
    assert done.user_attrs["process"] == [socket.gethostname(), os.getpid()]
    ended = subprocess.Popen(["true"])
    ended.wait(60)
    for process in (ended.pid, os.getpid()):
        own.ask().set_user_attr("process", [socket.gethostname(), process])
    result = search(recipe, trials=3)
    states = Counter(trial.state.name for trial in trials_of(result))
    assert (states["FAIL"], states["RUNNING"]) == (1, 1)
    assert result.trials == {"complete": 3, "fail": 1}


def test_own_values_are_those_that_the_space_holds():
    recipe = load_recipe("simulated/autoint-plus")
    space = {
        "model.mlp_dropout": Range(low=0.0, high=0.5, step=0.1),
        "model.hidden": OneOf(choices=([1], list(recipe.model.hidden))),
        "model.layers": Range(low=8, high=9),
        "training.batch_size": Range(low=1, high=4096, step=1000),
    }
    own = module._values_of_recipe(recipe, space)
    assert own["model.mlp_dropout"] == recipe.model.mlp_dropout
    assert json.loads(own["model.hidden"]) == list(recipe.model.hidden)
    assert set(own) == {"model.mlp_dropout", "model.hidden"}


def test_an_incomplete_last_line_is_removed_with_a_note(recipe):
    file = search(recipe, trials=2).study
    file.write_bytes(file.read_bytes()[:-9])
    notes = []
    assert search(recipe, trials=3, note=notes.append).trials["complete"] >= 2
    assert any("incomplete" in note for note in notes)


def test_a_damaged_study_is_one_sentence(recipe):
    file = search(recipe, trials=1).study
    content = file.read_bytes()
    for damaged in (content.replace(b":", b";", 3), b"[" * 100_000 + b"\n" + content):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            search(recipe, trials=2)


def one_trial(recipe, folder, steps, notes):
    context = RunContext(data_dir=DATA, callbacks=lambda _: [steps], note=notes.append)
    return tune(recipe, trials=1, store=Path(folder), context=context, seed=0, final_seeds=1)


def test_an_interrupted_trial_is_resumed(recipe):
    whole, rest, said = Steps(), Steps(), []
    wanted = one_trial(recipe, "whole", whole, [])
    trained = whole.done // 2  # once in the trial, once more for the final run
    stop = 2 * trained // 3
    with pytest.raises(KeyboardInterrupt):
        one_trial(recipe, "tune", Steps(stop), [])
    assert list(Path("tune").glob(".*.unfinished"))
    result = one_trial(recipe, "tune", rest, said)
    assert any(line.startswith("trial 1 resumes the unfinished run") for line in said), said
    assert rest.done == whole.done - stop
    assert (result.value, result.values) == (wanted.value, wanted.values)
    assert result.trials == {"complete": 1, "fail": 1}
    assert not list(Path("tune").glob(".*.unfinished"))


def test_trials_of_trees_are_not_pruned_by_their_first_trees():
    class Median:
        def report(self, *_):
            raise AssertionError("reported")

    evaluation = Evaluation(epoch=10.0, learning_rate=0.01, seconds=1.0, metrics={"auc": 0.5})
    recipe = load_recipe("simulated/lightgbm")
    module._Pruning(Median(), SimpleNamespace(metric="auc"), recipe).on_evaluation(evaluation, True)
