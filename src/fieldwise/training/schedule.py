"""What a training learns from its validation rows: the best weights, learning rates, when it ends.

`EarlyStopping` asks the validation rows. `Replay` repeats what they said to an earlier training,
for example on more rows.
"""

import math
from collections.abc import Mapping

import numpy as np
from torch import nn

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.history import History
from fieldwise.training.objective import Objective, evaluate, monitored
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.state import TrainState


class EarlyStopping:
    """Keeps the evaluation with the best `monitor`; ends after `patience` evaluations without a better one.

    Attributes:
        monitor: the metric of the validation rows.
        epochs: the largest number of epochs.
        evaluations_per_epoch: wanted evaluations of each epoch.
        evaluates: whether there are validation rows; a training with some may end early.
    """

    evaluates = True

    def __init__(
        self,
        valid: EncodedTable,
        group: np.ndarray | None,
        settings: TrainingSettings,
        objective: Objective,
    ) -> None:
        self.monitor = monitored(settings, objective, grouped=group is not None)
        self.epochs = settings.epochs
        self.evaluations_per_epoch = settings.evaluations_per_epoch
        self._valid = valid
        self._group = group
        self._settings = settings
        self._objective = objective

    def metrics(self, network: nn.Module, scores: np.ndarray | None = None) -> dict[str, float]:
        """A network's metrics on the validation rows, with the loss where that is monitored; from scores if known."""
        is_loss = self.monitor == "loss"
        metrics = evaluate(
            network, self._valid, self._objective, self._group, loss=is_loss, scores=scores
        )
        if self.monitor not in metrics:
            raise ConfigError(
                f"monitor = {self.monitor!r} needs a group with both classes in the validation rows, found none"
            )
        return metrics

    def is_best(self, state: TrainState, metrics: Mapping[str, float]) -> bool:
        """Whether an evaluation with these metrics is the best so far."""
        if state.best is None:
            return True
        gain = metrics[self.monitor] - state.best[0].metrics[self.monitor]
        if METRICS[self.monitor].higher:
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
        monitor: the earlier training's.
        epochs: the largest number of epochs.
        evaluations_per_epoch: evaluations of each epoch, after which the learning rate may change.
        evaluates: as of `EarlyStopping`.
    """

    evaluates = False

    def __init__(self, earlier: History) -> None:
        self.monitor = earlier.monitor
        in_first_epoch = [e for e in earlier.evaluations if e.epoch <= 1]
        epochs = [e.epoch for e in earlier.evaluations]
        self.epochs = math.ceil(earlier.best.epoch)
        self.evaluations_per_epoch = max(1, len(in_first_epoch))
        self._rates = [e.learning_rate for e in earlier.evaluations]
        self._best = epochs.index(earlier.best.epoch)

    def metrics(self, network: nn.Module, scores: np.ndarray | None = None) -> dict[str, float]:
        """None: there are no validation rows."""
        return {}

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
