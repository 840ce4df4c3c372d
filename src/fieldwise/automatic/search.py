"""The search around the settings of the two best models, after all models were trained with their defaults."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from fieldwise.automatic.budget import PrunedTrial, TrialDeadline
from fieldwise.automatic.trial import Trial, fit_trial, gains, seconds_on_all
from fieldwise.automatic.trials import Trials
from fieldwise.display import counted
from fieldwise.errors import FieldwiseError
from fieldwise.runs.climb import Climb
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.setting_paths import with_values

MAX_TRIALS = 40
PATIENCE_IN_TRIALS = 16
MAX_SECONDS_FACTOR = 3.0
"""The maximum duration of a trial, relative to the training that it has to beat."""


def search_settings(tried: Trials) -> None:
    """Search around the settings of the two best models, in turns, until the time is over."""
    best = {trial.title: trial for trial in tried.networks[:2]}
    seed = tried.task.settings["seed"]
    climbs = {title: Climb(trial.network.recipe, seed=seed) for title, trial in best.items()}
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
    evaluations = to_beat.network.history.evaluations
    deadline = TrialDeadline(seconds, evaluations, tried.task.metric)
    with contextlib.suppress(PrunedTrial, FieldwiseError):
        return fit_trial(to_beat.title, with_values(recipe, values), tried.task, deadline)
    return None
