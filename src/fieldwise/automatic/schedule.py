"""Training within the time budget: all models with defaults, then a search around the best."""

import contextlib
import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from fieldwise.automatic.budget import (
    Clock,
    Deadline,
    Probe,
    PrunedTrial,
    TrialDeadline,
    admitted,
    allotted,
)
from fieldwise.automatic.settings import Note
from fieldwise.automatic.task import AutoTask
from fieldwise.automatic.trial import (
    ALL_ROWS,
    TITLES,
    TREES,
    Trial,
    Trials,
    fit_trial,
    gains,
    network_scores,
    seconds_on_all,
)
from fieldwise.display import counted
from fieldwise.errors import FieldwiseError
from fieldwise.models.trees import TreeSettings
from fieldwise.runs.climb import Climb
from fieldwise.runs.pipeline import fit_again, fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.setting_paths import with_values
from fieldwise.training.history import STOPPED
from fieldwise.training.tree_run import tree_cautions

TOWERS = ("dssm", "inttower")
DEFAULTS_SHARE = 0.6
"""Of the training time, for models with default settings; the rest is for the search."""
LR_SHARE = 0.15
"""The maximum of the training time for LR."""
TREES_SHARE = 0.25
"""The maximum of the time of models with default settings for each model of trees."""
LEAST_REFIT_SHARE = 0.7
"""Of the estimated time for a second training, because the estimate is generous: with less it does not begin."""
MAX_TRIALS = 40
PATIENCE_IN_TRIALS = 16
MAX_SECONDS_FACTOR = 3.0
"""The maximum duration of a trial, relative to the training that it has to beat."""


def try_models(task: AutoTask, stem: str, clock: Clock, *, reserve: float, note: Note) -> Trials:
    """The trials that could be trained until `reserve` seconds before the end; Ctrl-C ends it with those so far."""
    tried = Trials(task, clock, reserve, note)
    try:
        train_defaults(tried, recipes_for(task, stem))
        if not tried.interrupted:
            search_settings(tried)
        if not tried.interrupted:
            tried.on_all = train_again(tried)
    except KeyboardInterrupt:
        if not tried.models:
            raise
        tried.interrupted = True
    return tried


def recipes_for(task: AutoTask, stem: str) -> dict[str, Recipe]:
    """Recipes with default settings, by model name, of all models that can be trained on the schema's fields."""
    names = [name for name in TITLES if task.schema.has_both_sides or name not in TOWERS]
    if len(task.schema.fields) < 2:
        names = ["lr"]  # the others need pairs of fields

    recipes = {name: task.recipe({"name": name}, f"{stem}/{name}").on("cpu") for name in TREES}
    for name in names:
        model: dict[str, Any] = {"name": name}
        if name == "inttower" and task.schema.label.task == "regression":
            model["cir_weight"] = 0.0  # its contrastive loss needs a binary label
        recipes[name] = task.recipe(model, f"{stem}/{name}")
    return recipes


def train_defaults(tried: Trials, recipes: dict[str, Recipe]) -> None:
    """Train LR, trees and then the other models with default settings, the cheapest first."""
    seconds = max(tried.left * LR_SHARE, 1.0)
    tried.note(
        f"{max(tried.left, 0):.0f} s for training: LR may take {seconds:.0f} s, and {1 - DEFAULTS_SHARE:.0%} of the "
        "rest is kept for the search after the models; time that a model does not use goes to the next one"
    )
    recipe = recipes.pop("lr")
    tried.add(fit_trial(TITLES["lr"], recipe, tried.task, Deadline(seconds)), seconds)
    if tried.interrupted:
        return

    seconds_for_search = tried.left * (1 - DEFAULTS_SHARE)
    seconds = max((tried.left - seconds_for_search) * TREES_SHARE, 1.0)
    for name in TREES:
        if name in recipes and not tried.interrupted:
            train_trees(tried, TREES[name], recipes.pop(name), seconds)
    costs = _epoch_costs(tried, recipes)
    _train_cheapest_first(tried, recipes, costs, seconds_for_search)
    for name, cost in costs.items():
        if tried.interrupted:
            tried.skip(TITLES[name], "the run was interrupted before")
        else:
            why = (
                f"an epoch takes about {cost:.2g} s, too long for the {max(tried.left, 0):.0f} s that "
                "are left"
            )
            tried.skip(TITLES[name], why, for_time=True)


def _epoch_costs(tried: Trials, recipes: dict[str, Recipe]) -> dict[str, float]:
    """The estimated seconds of an epoch of each model that can be trained; skips the others."""
    costs: dict[str, float] = {}
    for name, recipe in recipes.items():
        if tried.left <= max(costs.values(), default=0.0):
            why = f"{max(tried.left, 0):.0f} s are left, too few to try it"
            tried.skip(TITLES[name], why, for_time=True)
            continue
        try:
            costs[name] = seconds_of(recipe, tried.task)
        except FieldwiseError as e:
            tried.skip(TITLES[name], str(e))
    return costs


def _train_cheapest_first(
    tried: Trials, recipes: dict[str, Recipe], costs: dict[str, float], seconds_for_search: float
) -> None:
    """Train the models that fit into the time; they are removed from `costs`."""
    while costs and not tried.interrupted:
        names = admitted(costs, tried.left - seconds_for_search)
        if not names and seconds_for_search:
            seconds_for_search = 0.0  # an untried model has priority over the search
            names = admitted(costs, tried.left)
        if not names:
            break

        name = names[0]
        seconds = allotted([costs[other] for other in names], tried.left - seconds_for_search)
        del costs[name]
        try:
            trial = fit_trial(TITLES[name], recipes[name], tried.task, Deadline(seconds))
        except FieldwiseError as e:
            tried.skip(TITLES[name], str(e))
        else:
            tried.add(trial, seconds)
        if costs:
            seconds_for_search = _still_kept(tried, seconds_for_search)


def _still_kept(tried: Trials, seconds_for_search: float) -> float:
    """The seconds that stay kept, before the next model, for the search and the last training.

    With too few for one trial of the search, and the last training after it, no trial begins; with
    less than `LEAST_REFIT_SHARE` of the last training of the best model, it does not begin.
    """
    best = tried.models[:2]
    least_trial_seconds = min(trial.seconds for trial in best) / 2
    if seconds_for_search >= max(map(seconds_on_all, best)) + least_trial_seconds:
        return seconds_for_search

    refit_seconds = seconds_on_all(best[0])
    still_kept = 0.0
    if seconds_for_search >= LEAST_REFIT_SHARE * refit_seconds:
        still_kept = min(seconds_for_search, refit_seconds)
    freed = seconds_for_search - still_kept
    if freed >= 1:
        tried.note(
            f"the {seconds_for_search:.0f} s kept for the search hold no trial: {freed:.0f} s go to the next models"
        )
    return still_kept


def train_trees(tried: Trials, title: str, recipe: Recipe, seconds: float) -> None:
    """Train a model of trees, if its library is installed and there are fields that it reads."""
    assert isinstance(recipe.model, TreeSettings)
    try:
        recipe.model.library()  # its import does not count
        trial = fit_trial(title, recipe, tried.task, Deadline(seconds))
    except FieldwiseError as e:
        tried.skip(title, str(e))
        return
    tried.add(trial, seconds)
    layout = tried.task.prepared.encoder.layout
    for sentence in tree_cautions(recipe.model, recipe.training, layout):
        tried.note(sentence)


def seconds_of(recipe: Recipe, task: AutoTask) -> float:
    """Estimated seconds of an epoch of a recipe, from a few steps."""
    probe = Probe()
    prepared = task.prepared
    fit_recipe(recipe, prepared.encoder, prepared.train, prepared.valid, (probe,))
    return probe.seconds_per_epoch


def search_settings(tried: Trials) -> None:
    """Search around the settings of the two best models, in turns, until the time is over."""
    best = {trial.title: trial for trial in tried.models[:2]}
    seed = tried.task.settings["seed"]
    climbs = {title: Climb(trial.training.recipe, seed=seed) for title, trial in best.items()}
    trials_without_gain = 0
    while climbs and tried.searched < MAX_TRIALS and trials_without_gain < PATIENCE_IN_TRIALS:
        title = next(iter(climbs))
        climb = climbs.pop(title)
        to_beat = best[title]
        # One of the best is trained again in the end.
        seconds_left = tried.left - max(seconds_on_all(trial) for trial in best.values())
        if seconds_left < to_beat.seconds / 2:
            continue
        values = climb.propose()
        if values is None:
            continue

        trial = _trial(tried, to_beat, climb.best, values, seconds_left)
        tried.searched += 1
        trials_without_gain += 1
        is_better = trial is not None and gains(tried.task, trial, to_beat)
        climb.tell(values, better=is_better)
        if trial is not None and is_better:
            best[title] = dataclasses.replace(trial, changes={**to_beat.changes, **values})
            trials_without_gain = 0
            words = ", ".join(f"{path} = {value}" for path, value in values.items())
            tried.note(
                f"search, {title}: validation {tried.task.metric} {trial.value:.4f} with {words}"
            )
        climbs[title] = climb  # appended: the other model is next
        if trial is not None and trial.stopped == "interrupted":
            tried.interrupted = True
            break

    for title, trial in best.items():
        if trial.changes:
            tried.trials.append(dataclasses.replace(trial, title=f"{title}, searched"))
    words = "no time was left for it"
    if tried.searched:
        words = f"{counted(tried.searched, 'trial')} of {' and '.join(best)}"
    tried.note(f"search: {words}")


def _trial(
    tried: Trials, to_beat: Trial, recipe: Recipe, values: Mapping[str, Any], seconds_left: float
) -> Trial | None:
    """A trial of a recipe with other values; None if it fell behind, or if its settings contradict each other."""
    seconds = min(seconds_left, to_beat.seconds * MAX_SECONDS_FACTOR + 1)
    deadline = Deadline(seconds)
    # smaller trees, or a lower rate, take more trees to the same loss: they have not fallen behind
    if to_beat.title not in TREES.values():
        evaluations = to_beat.training.history.evaluations
        deadline = TrialDeadline(seconds, evaluations, tried.task.metric)
    with contextlib.suppress(PrunedTrial, FieldwiseError):
        return fit_trial(to_beat.title, with_values(recipe, values), tried.task, deadline)
    return None


def train_again(tried: Trials) -> Trial | None:
    """The chosen model, trained on training and validation rows together for its best epochs; None without the time.

    It keeps the calibration of the first training, which was fitted on rows that the network had
    not learned from.
    """
    chosen = tried.chosen
    seconds_left = tried.left
    seconds_needed = seconds_on_all(chosen)
    not_again = f"{chosen.title} is not trained again on training and validation rows"
    if seconds_left < LEAST_REFIT_SHARE * seconds_needed:
        tried.note(
            f"{not_again}: that takes about {seconds_needed:.0f} s, and {max(seconds_left, 0):.0f} s are left"
        )
        return None

    recipe = chosen.training.recipe
    training = dataclasses.replace(recipe.training, refit=True)
    first = dataclasses.replace(
        chosen.training, recipe=dataclasses.replace(recipe, training=training)
    )
    prepared = tried.task.prepared
    try:
        again = fit_again(first, prepared.train, prepared.valid, (Deadline(seconds_left),))
    except FieldwiseError as e:
        tried.note(f"{not_again}: {e}")
        return None
    stopped = again.history.stopped
    if again.refit is None:
        if stopped == "interrupted":
            tried.interrupted = True
        tried.note(
            f"{chosen.title} was not trained to the end on training and validation rows: {STOPPED[stopped]}"
        )
        return None

    on_all = dataclasses.replace(
        chosen,
        title=f"{chosen.title}, {ALL_ROWS}",
        raw=partial(network_scores, again, prepared.encoder),
        trained=again,
        seconds=chosen.seconds + again.refit.seconds,
        parameters=again.parameters,
    )
    length = counted(again.refit.best.epoch, again.refit.unit)
    if stopped == "converged":
        length = "solved exactly"
    tried.note(
        f"{chosen.title} is chosen and trained again on all {again.refit.rows:,} training and validation rows: "
        f"{length}, {again.refit.seconds:.1f} s"
    )
    return on_all
