"""Training within the time budget: all models with defaults, then a short search. Test rows are not used."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from fieldwise.automatic.budget import ENOUGH, Clock, Hopeless, Trial, Until, admitted, allotted, kept
from fieldwise.automatic.candidates import (
    TITLES,
    TREES,
    Candidate,
    constant,
    fit_on_all,
    fit_one,
    of_trees,
    recipes_for,
    resolved,
    seconds_of,
    seconds_on_all,
)
from fieldwise.automatic.climb import Climb
from fieldwise.automatic.problem import Problem
from fieldwise.automatic.trees import MOST_BAG_VALUES, fit_trees, left_out
from fieldwise.errors import FieldwiseError, MissingExtraError
from fieldwise.runs.recipe import Recipe

__all__ = ["Tried", "try_models"]

DEFAULTS_SHARE = 0.6  # share of the training time for models with default settings; the rest is for the search
FIRST_SHARE = 0.15  # maximum share of the training time for LR
TREES_SHARE = 0.25  # maximum share of the time for models with default settings for LightGBM
MOST_TRIALS, PATIENCE = 40, 16
TRIAL_TIMES = 3.0  # maximum duration of a trial, relative to the training to beat
BETTER = 1.0  # standard errors by which a candidate must improve on validation rows to count as better
ENDED = {
    "patience": "no improvement since",
    "epochs": "all epochs done",
    "time": "out of time",
    "interrupted": "interrupted",
    "converged": "solved exactly",
}


class Tried:
    """The candidates trained so far.

    Args:
        problem: the learning problem.
        clock: clock of the whole run.
        reserve: seconds to keep at the end.
        note: receives a sentence about each step.

    After `try_models`:
        candidates: the constant first, then the others in the order of training.
        skipped: for each model that was not trained, by its title, the reason.
        trials: number of trials of the search.
        on_all: the chosen candidate, trained again on training and validation rows; None if there was no time.
        interrupted: whether Ctrl-C ended the training.
    """

    def __init__(self, problem: Problem, clock: Clock, reserve: float, note: Callable[[str], None]) -> None:
        self.problem, self.clock, self.reserve, self.note = problem, clock, reserve, note
        self.candidates: list[Candidate] = [constant(problem)]
        self.skipped: dict[str, str] = {}
        self.trials = 0
        self.on_all: Candidate | None = None
        self.interrupted = False

    @property
    def left(self) -> float:
        """Seconds left for training."""
        return self.clock.left - self.reserve

    @property
    def networks(self) -> list[Candidate]:
        """Candidates that can become a bundle, best on validation rows first."""
        return sorted((one for one in self.candidates if one.fitted is not None), key=lambda one: one.value)

    @property
    def chosen(self) -> Candidate:
        """The simplest network, in the order of `TITLES`, than which the best one is not significantly better.

        The order is fixed, so that the choice does not depend on how long each training took.
        """
        best = self.networks[0]
        equals = [one for one in self.networks if one is best or not _gains(self.problem, best, one)]
        simple = list(TITLES.values())
        return min(equals, key=lambda one: (simple.index(one.title.partition(",")[0]), one.value))

    def add(self, one: Candidate, allowed: float | None = None) -> None:
        """Add a candidate and report its validation metric and duration, with the seconds that it was allowed."""
        self.candidates.append(one)
        self.interrupted |= one.stopped == "interrupted"
        what = "trees" if one.trees is not None else "epochs"
        mapped = ", calibrated" if one.calibration is not None else ""
        ended = ENDED.get(one.stopped, one.stopped)
        most = "" if allowed is None else f" of at most {allowed:.1f} s"
        self.note(
            f"{one.title}: validation {self.problem.metric} {one.value:.4f}{mapped}, {one.epochs} {what} ({ended}), "
            f"{one.seconds:.1f} s{most}"
        )

    def skip(self, title: str, why: str) -> None:
        """Report why a model is not trained."""
        self.skipped[title] = why
        self.note(f"{title} is left out: {why}")


def try_models(problem: Problem, stem: str, clock: Clock, *, reserve: float, note: Callable[[str], None]) -> Tried:
    """The candidates that could be trained within the time; Ctrl-C ends the training with those trained so far.

    Args:
        problem: the learning problem.
        stem: prefix of the recipes' names.
        clock: clock of the whole run.
        reserve: seconds to keep at the end.
        note: receives a sentence about each step.

    Errors:
        KeyboardInterrupt: Ctrl-C before the first model.
        FieldwiseError: LR, the first model, could not be trained.
    """
    tried = Tried(problem, clock, reserve, note)
    try:
        _defaults(tried, recipes_for(problem, stem))
        if not tried.interrupted:
            _search(tried)
        if not tried.interrupted:
            _train_again(tried)
    except KeyboardInterrupt:
        if not tried.networks:
            raise
        tried.interrupted = True
    return tried


def _defaults(tried: Tried, recipes: dict[str, Recipe]) -> None:
    """Train LR, LightGBM and then the other models with default settings, the cheapest first."""
    seconds = max(tried.left * FIRST_SHARE, 1.0)
    tried.note(
        f"{max(tried.left, 0):.0f} s for training: LR may take {seconds:.0f} s, and {1 - DEFAULTS_SHARE:.0%} of the "
        "rest is kept for the search after the models; time that a model does not use goes to the next one"
    )
    first = fit_one(TITLES["lr"], recipes.pop("lr"), tried.problem, Until(seconds))
    tried.add(first, seconds)
    if tried.interrupted:
        return
    end = tried.left * (1 - DEFAULTS_SHARE)  # seconds to keep for the search
    _trees(tried, max((tried.left - end) * TREES_SHARE, 1.0))
    costs = _costs(tried, recipes)
    while costs and not tried.interrupted:
        names = admitted(costs, tried.left - end)
        if not names:
            if end == 0:
                break
            end = 0.0  # an untried model has priority over the search
            continue
        seconds = allotted([costs[name] for name in names], tried.left - end)
        del costs[names[0]]
        _one(tried, names[0], recipes[names[0]], seconds)
        end = _kept(tried, end) if costs else end
    for name, cost in costs.items():
        why = f"an epoch takes about {cost:.2g} s, too long for the {max(tried.left, 0):.0f} s that are left"
        tried.skip(TITLES[name], "the run was interrupted before" if tried.interrupted else why)


def _kept(tried: Tried, end: float) -> float:
    """The seconds of `end` that stay kept for the search and the last training, with a sentence if they are fewer."""
    best = tried.networks[:2]
    search = max(seconds_on_all(one) for one in best) + min(one.seconds for one in best) / 2
    seconds = kept(end, search=search, again=seconds_on_all(best[0]))
    if end - seconds >= 1:
        tried.note(f"the {end:.0f} s kept for the search hold no trial: {end - seconds:.0f} s go to the next models")
    return seconds


def _one(tried: Tried, name: str, recipe: Recipe, seconds: float) -> None:
    try:
        tried.add(fit_one(TITLES[name], recipe, tried.problem, Until(seconds)), seconds)
    except FieldwiseError as e:
        tried.skip(TITLES[name], str(e))


def _costs(tried: Tried, recipes: dict[str, Recipe]) -> dict[str, float]:
    """Estimated seconds of an epoch of each model that can be trained, by name."""
    costs: dict[str, float] = {}
    for name, recipe in recipes.items():
        if tried.left <= max(costs.values(), default=0.0):
            tried.skip(TITLES[name], f"{max(tried.left, 0):.0f} s are left, too few to try it")
            continue
        try:
            costs[name] = seconds_of(recipe, tried.problem)
        except FieldwiseError as e:
            tried.skip(TITLES[name], str(e))
    return costs


def _trees(tried: Tried, seconds: float) -> None:
    problem = tried.problem
    gone = left_out(problem.prepared.train)
    label, seed = problem.schema.label, problem.settings["seed"]
    try:
        trees = fit_trees(
            problem.prepared.train, problem.prepared.valid, problem.schema, label=label, seed=seed, seconds=seconds
        )
    except MissingExtraError as e:
        tried.skip(TREES, str(e))
        return
    tried.add(of_trees(trees, problem), seconds)
    if gone:
        tried.note(
            f"{TREES} does not read {', '.join(gone)}: a history, or a bag with more than {MOST_BAG_VALUES} values"
        )


def _search(tried: Tried) -> None:
    """Search around the settings of the two best models, in turns, until the time is over."""
    best = {one.title: one for one in tried.networks[:2]}
    climbs = {title: Climb(resolved(one), seed=tried.problem.settings["seed"]) for title, one in best.items()}
    found: dict[str, dict[str, Any]] = {title: {} for title in climbs}
    without = 0
    while climbs and tried.trials < MOST_TRIALS and without < PATIENCE:
        title = next(iter(climbs))
        climb, other = climbs.pop(title), best[title]
        left = tried.left - max(seconds_on_all(one) for one in best.values())
        if left < other.seconds / 2:
            continue
        values = climb.propose()
        if values is None:
            continue
        trial = _trial(tried, climb, values, other, left)
        tried.trials += 1
        without += 1
        better = trial is not None and _gains(tried.problem, trial, other)
        climb.tell(values, better=better)
        if trial is not None and better:
            best[title], without = trial, 0
            found[title] |= values
            words = ", ".join(f"{path} = {value}" for path, value in values.items())
            tried.note(f"search, {title}: validation {tried.problem.metric} {trial.value:.4f} with {words}")
        climbs[title] = climb  # appended: the other model is next
        if trial is not None and trial.stopped == "interrupted":
            tried.interrupted = True
            break
    for title, values in found.items():
        if values:
            tried.candidates.append(dataclasses.replace(best[title], title=f"{title}, searched", changes=values))
    words = f"{tried.trials} trials of {' and '.join(best)}" if tried.trials else "no time was left for it"
    tried.note(f"search: {words}")


def _trial(tried: Tried, climb: Climb, values: dict[str, Any], other: Candidate, left: float) -> Candidate | None:
    """A candidate with changed settings; None if it falls behind, or the settings contradict each other."""
    assert other.fitted is not None, "only networks are searched"
    seconds = min(left, other.seconds * TRIAL_TIMES + 1)
    watch = Trial(seconds, other.fitted.result.history, tried.problem.metric)
    try:
        return fit_one(other.title, climb.recipe(values), tried.problem, watch)
    except (Hopeless, FieldwiseError):
        return None


def _train_again(tried: Tried) -> None:
    """Train the chosen candidate on training and validation rows, unless the time is too short."""
    one = tried.chosen
    needed, left = seconds_on_all(one), tried.left
    if left < ENOUGH * needed:
        tried.note(
            f"{one.title} is not trained again on training and validation rows: that takes about {needed:.0f} s, and "
            f"{max(left, 0):.0f} s are left"
        )
        return
    try:
        tried.on_all, ended = fit_on_all(one, tried.problem, Until(left))
    except FieldwiseError as e:
        tried.note(f"{one.title} is not trained again on training and validation rows: {e}")
        return
    tried.interrupted |= ended == "interrupted"
    if tried.on_all is None:
        tried.note(f"{one.title} was not trained to the end on training and validation rows: {ENDED.get(ended, ended)}")
        return
    refit = tried.on_all.fitted.refit if tried.on_all.fitted is not None else None
    assert refit is not None, "it was trained again"
    tried.note(
        f"{one.title} is chosen and trained again on all {refit.rows:,} training and validation rows: "
        f"{refit.epochs:.4g} epochs, {refit.seconds:.1f} s"
    )


def _gains(problem: Problem, new: Candidate, old: Candidate) -> bool:
    """Whether `new` is better on validation rows by more than the standard error of the paired difference."""
    y = np.asarray(problem.prepared.valid.main, dtype=np.float64)
    if problem.metric == "logloss":
        signs = np.where(y > 0.5, -1.0, 1.0)
        gain = np.logaddexp(0.0, signs * old.valid) - np.logaddexp(0.0, signs * new.valid)
    else:
        gain = np.square(old.valid - y) - np.square(new.valid - y)
    error = float(gain.std(ddof=1)) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return float(gain.mean()) > BETTER * error and new.value < old.value
