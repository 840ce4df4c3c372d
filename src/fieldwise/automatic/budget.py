"""The time budget: what an epoch costs, which models fit, and when a training has to end."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation

__all__ = ["ENOUGH", "Clock", "Deadline", "Probe", "PrunedTrial", "TrialDeadline", "admitted", "allotted", "kept"]

LEAST_EPOCHS = 3.0  # a model with time for fewer epochs is not trained
MANY_EPOCHS = 100.0  # epochs that a model may take if the other models keep time for `LEAST_EPOCHS`
MOST_SHARE = 0.25  # maximum share of the remaining time for a model that others follow, unless its cost share is larger
ENOUGH = 0.7  # minimum share of the estimated time for a second training, because the estimate is generous
PROBE_STEPS = 6
BEHIND = 0.01  # a trial is stopped when it is worse by this share of the other training's metric


class Clock:
    """Measures the seconds spent and left of a budget, which begins with the call or at `began` by `now`."""

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.perf_counter, began: float | None = None
    ) -> None:
        self.seconds, self._now = seconds, now
        self._began = now() if began is None else began

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self.seconds - self.spent


class Deadline(Callback):
    """Ends a training after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def on_step(self, step: TrainingStep) -> None:
        """Called after a step."""
        if time.perf_counter() >= self._end:
            raise OutOfTime


class PrunedTrial(Exception):  # noqa: N818  # not an error: it ends a trial
    """Raised to stop a trial that is too far behind."""


class TrialDeadline(Deadline):
    """Ends a trial after a number of seconds, or when it falls behind another training.

    The comparison starts at half of the other training's best epoch. From then on, the trial is stopped if its best
    value so far is more than 1 % worse than the other training's best value up to the same epoch.
    """

    def __init__(self, seconds: float, other: Sequence[Evaluation], metric: str) -> None:
        super().__init__(seconds)
        self._metric, self._sign = metric, -1.0 if METRICS[metric].higher else 1.0
        self._other = [(one.epoch, self._sign * one.metrics[metric]) for one in other]
        self._from = min(self._other, key=lambda pair: pair[1])[0] / 2
        self._best = np.inf

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._best = min(self._best, self._sign * evaluation.metrics[self._metric])
        then = [value for epoch, value in self._other if epoch <= evaluation.epoch]
        if then and evaluation.epoch >= self._from and self._best > min(then) + BEHIND * abs(min(then)):
            raise PrunedTrial


class Probe(Callback):
    """Ends a training after a few steps, and estimates the duration of an epoch."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._rows, self._of = 0, 1
        self._ended = False

    def on_start(self, start: TrainingStart) -> None:
        """Called before the first step."""
        self._of = start.rows
        self._times.append(time.perf_counter())

    def on_step(self, step: TrainingStep) -> None:
        """Called after a step."""
        self._times.append(time.perf_counter())
        self._rows = max(self._rows, step.rows)
        if len(self._times) > PROBE_STEPS:
            self._ended = True
            raise OutOfTime

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._times.append(time.perf_counter())
        if not self._ended:  # the first evaluation ends it too; one more follows after the end
            self._ended = True
            raise OutOfTime

    @property
    def seconds_per_epoch(self) -> float:
        """Estimated seconds of an epoch with one evaluation; the first step, which is slower, does not count."""
        spans = np.diff(self._times)
        steps, evaluation = spans[:-1], float(spans[-1])
        usual = float(np.median(steps[1:] if len(steps) > 1 else steps)) if len(steps) else 0.0
        return usual * max(1.0, self._of / max(self._rows, 1)) + evaluation


def admitted(costs: Mapping[str, float], seconds: float) -> list[str]:
    """Names of the models that fit into the time, the cheapest first.

    The most expensive models are removed until all others have time for three epochs.

    >>> admitted({"lr": 1.0, "afm": 4.0, "autoint": 30.0}, 20)
    ['lr', 'afm']
    """
    names = sorted(costs, key=lambda name: costs[name])
    while names and sum(costs[name] for name in names) * LEAST_EPOCHS > seconds:
        names.pop()
    return names


def allotted(costs: Sequence[float], seconds: float) -> float:
    """Seconds that the first of several models may take: its share by cost, or more if there is time to spare.

    With time to spare it may take up to a hundred epochs, and up to a quarter of the time while other models follow.
    Time that it does not use, because early stopping ends its training, goes to the other models.

    Args:
        costs: seconds per epoch of each model, this model's first.
        seconds: time for all of them.

    >>> allotted([1.0, 9.0], 100.0), allotted([1.0, 9.0], 50.0), allotted([5.0], 60.0)
    (25.0, 12.5, 60.0)
    """
    share = seconds * costs[0] / sum(costs)
    spare = seconds - LEAST_EPOCHS * sum(costs[1:])
    return max(share, min(MANY_EPOCHS * costs[0], spare, MOST_SHARE * seconds))


def kept(seconds: float, *, search: float, again: float) -> float:
    """The seconds that stay kept, before the next model, for what follows the models.

    Args:
        seconds: kept so far.
        search: needed for one trial of the search, and the last training after it; with less, no trial begins.
        again: needed for the last training of the best model; with less than `ENOUGH` of it, it does not begin.

    >>> kept(40.0, search=39.0, again=25.0), kept(40.0, search=41.0, again=25.0), kept(40.0, search=90.0, again=80.0)
    (40.0, 25.0, 0.0)
    """
    if seconds >= search:
        return seconds
    return min(seconds, again) if seconds >= ENOUGH * again else 0.0
