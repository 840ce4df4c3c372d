"""When a training evaluates, which evaluation it keeps, how the learning rate goes on, and when it ends.

`EarlyStopping` decides by the metrics of validation rows. `Replay` repeats an earlier training,
for example on more rows, without evaluating.
"""

import math
from collections.abc import Mapping

from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.history import History
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.state import TrainState


class EarlyStopping:
    """Keeps the evaluation with the best `monitor`; ends after `patience` evaluations without a better one.

    Attributes:
        epochs: the largest number of epochs.
        evaluations_per_epoch: wanted evaluations of each epoch.
    """

    def __init__(self, settings: TrainingSettings, monitor: str) -> None:
        self.epochs = settings.epochs
        self.evaluations_per_epoch = settings.evaluations_per_epoch
        self._settings = settings
        self._monitor = monitor

    def is_best(self, state: TrainState, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation with these metrics is the best so far."""
        if state.best is None:
            return True
        gain = metrics[self._monitor] - state.best[0].metrics[self._monitor]
        if METRICS[self._monitor].higher:
            return gain > 0
        return gain < 0

    def after_evaluation(
        self, state: TrainState, optimizer: RunOptimizer, *, is_best: bool
    ) -> None:
        """Set the learning rate of the next steps, and `state.stopped` if there are none."""
        if is_best:
            return
        state.without_gain += 1
        if state.without_gain % self._settings.plateau_patience == 0:
            for group in optimizer.param_groups:
                group["lr"] *= self._settings.plateau_factor
        if state.stopped is None and state.without_gain >= self._settings.patience:
            state.stopped = "patience"


class Replay:
    """Repeats an earlier training up to its best evaluation, with the same learning rates.

    Attributes:
        epochs: the largest number of epochs.
        evaluations_per_epoch: evaluations of each epoch, after which the learning rate may change.
    """

    def __init__(self, earlier: History) -> None:
        in_first_epoch = [e for e in earlier.evaluations if e.epoch <= 1]
        epochs = [e.epoch for e in earlier.evaluations]
        self.epochs = math.ceil(earlier.best.epoch)
        self.evaluations_per_epoch = max(1, len(in_first_epoch))
        self._rates = [e.learning_rate for e in earlier.evaluations]
        self._best = epochs.index(earlier.best.epoch)

    def is_best(self, state: TrainState, metrics: Mapping[str, float]) -> bool:
        """Whether the earlier training's evaluation here was its best; metrics are not looked at."""
        return len(state.history) == self._best

    def after_evaluation(
        self, state: TrainState, optimizer: RunOptimizer, *, is_best: bool
    ) -> None:
        """Set the learning rate of the next steps, and `state.stopped` if there are none."""
        if is_best:
            state.stopped = "patience"
            return
        rate = self._rates[len(state.history)]
        for group in optimizer.param_groups:
            group["lr"] = rate


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """The steps of an epoch after which it is evaluated, evenly spaced, the last one among them.

    >>> sorted(evaluation_steps(10, 4))
    [2, 5, 8, 10]
    """
    # a small table may have fewer steps than evaluations
    evaluations = min(evaluations, steps)
    return {round(steps * (k + 1) / evaluations) for k in range(evaluations)}
