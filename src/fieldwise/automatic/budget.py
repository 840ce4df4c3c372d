"""How trainings share the time budget: its clock, deadlines, the cost of an epoch, and the seconds of each model."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation

LEAST_EPOCHS = 3.0
"""A model with time for fewer epochs is not trained."""
EPOCHS_WITH_SPARE_TIME = 100.0
"""Those that a model may take if the other models keep time for `LEAST_EPOCHS`."""
MAX_SHARE_WITH_SPARE_TIME = 0.25
"""Of the remaining time, for a model that others follow, unless its share by cost is larger."""
PROBE_STEPS = 6
PRUNING_MARGIN = 0.01
"""A trial is stopped when it is worse by this share of the other training's metric."""


class Clock:
    """Measures the seconds spent and left of a budget, which begins with the call or at `began` by `now`."""

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.perf_counter,
        began: float | None = None,
    ) -> None:
        self.seconds = seconds
        self._now = now
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

    def on_part(self) -> None:
        """End the training if its time is over."""
        if time.perf_counter() >= self._end:
            raise OutOfTime

    def on_step(self, step: TrainingStep) -> None:
        """End the training if its time is over."""
        self.on_part()


class PrunedTrial(Exception):  # noqa: N818  # not an error: it ends a trial
    """Raised to stop a trial that is too far behind."""


class TrialDeadline(Deadline):
    """Ends a trial after a number of seconds, or when it falls behind another training.

    The comparison starts at half of the other training's best epoch. From then on, the trial is
    stopped if its best value so far is more than 1 % worse than the other training's best value up
    to the same epoch.
    """

    def __init__(self, seconds: float, other: Sequence[Evaluation], metric: str) -> None:
        super().__init__(seconds)
        self._metric = metric
        # A loss: lower is better, whatever the metric.
        self._sign = -1.0 if METRICS[metric].higher else 1.0
        self._other_losses = [
            (evaluation.epoch, self._sign * evaluation.metrics[metric]) for evaluation in other
        ]
        best_epoch, _ = min(self._other_losses, key=lambda epoch_and_loss: epoch_and_loss[1])
        self._first_compared_epoch = best_epoch / 2
        self._best_loss = np.inf

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """End the trial if its best value so far is behind."""
        self._best_loss = min(self._best_loss, self._sign * evaluation.metrics[self._metric])
        losses_until_now = [loss for epoch, loss in self._other_losses if epoch <= evaluation.epoch]
        if not losses_until_now or evaluation.epoch < self._first_compared_epoch:
            return
        other_best = min(losses_until_now)
        if self._best_loss > other_best + PRUNING_MARGIN * abs(other_best):
            raise PrunedTrial


class Probe(Callback):
    """Ends a training after a few steps, and estimates the duration of an epoch."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._rows_done = 0
        self._rows_of_epoch = 1
        self._ended = False

    def on_start(self, start: TrainingStart) -> None:
        """Note the rows of an epoch, and the time before the first step."""
        self._rows_of_epoch = start.rows
        self._times.append(time.perf_counter())

    def on_step(self, step: TrainingStep) -> None:
        """Note the time; end the training after a few steps."""
        self._times.append(time.perf_counter())
        self._rows_done = max(self._rows_done, step.rows)
        if len(self._times) > PROBE_STEPS:
            self._ended = True
            raise OutOfTime

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Note the time; end the training."""
        self._times.append(time.perf_counter())
        if not self._ended:  # the first evaluation ends it too; one more follows after the end
            self._ended = True
            raise OutOfTime

    @property
    def seconds_per_epoch(self) -> float:
        """Estimated seconds of an epoch with one evaluation; the first step, which is slower, does not count."""
        spans = np.diff(self._times)
        steps = spans[:-1]
        evaluation = float(spans[-1])
        if len(steps) > 1:
            steps = steps[1:]
        seconds_per_step = float(np.median(steps)) if len(steps) else 0.0
        steps_per_epoch = max(1.0, self._rows_of_epoch / max(self._rows_done, 1))
        return seconds_per_step * steps_per_epoch + evaluation


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

    With time to spare it may take up to a hundred epochs, and up to a quarter of the time while
    other models follow. Time that it does not use, because early stopping ends its training, goes
    to the other models. `costs` are the seconds per epoch of each model, this model's first.

    >>> allotted([1.0, 9.0], 100.0), allotted([1.0, 9.0], 50.0), allotted([5.0], 60.0)
    (25.0, 12.5, 60.0)
    """
    share = seconds * costs[0] / sum(costs)
    spare = seconds - LEAST_EPOCHS * sum(costs[1:])
    with_spare_time = min(
        EPOCHS_WITH_SPARE_TIME * costs[0], spare, MAX_SHARE_WITH_SPARE_TIME * seconds
    )
    return max(share, with_spare_time)
