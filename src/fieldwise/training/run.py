"""What every training is given, and what its run does in the same way whatever trains: begin, call callbacks, end."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep
from fieldwise.training.checkpoint import Checkpoints
from fieldwise.training.history import Evaluation, History, Stopped
from fieldwise.training.objective import Objective
from fieldwise.training.schedule import EarlyStopping, Replay
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.state import TrainState


@dataclass
class TrainingInputs(ABC):
    """What a training is given (abstract; `fieldwise.training.fit.Training` says what it does)."""

    network: nn.Module  # trained in place
    # rows with targets, shuffled each epoch; the loss uses their weights, if they have any
    train: EncodedTable
    # rows for early stopping and learning rate drops; None of a training that repeats another
    valid: EncodedTable | None
    _: KW_ONLY
    settings: TrainingSettings
    objective: Objective
    seed: int  # of the row order and dropout; the global random state is not changed
    repeats: History | None = None  # the result of an earlier training with these settings
    # the group of each training row, for losses that rank
    train_group: np.ndarray | None = None
    valid_group: np.ndarray | None = None  # the group of each validation row, for group AUC
    # called at the start, after every step and evaluation, and at the end
    callbacks: Sequence[Callback] = ()
    # of the run, which resumes from the last; `lbfgs` and trees write none
    checkpoints: Checkpoints | None = None
    # further settings as plain values, for callbacks
    about: Mapping[str, Any] = field(default_factory=dict)

    @abstractmethod
    def run(self) -> History:
        """Train, from the last checkpoint if there is one."""

    def schedule(self) -> EarlyStopping | Replay:
        """What validation rows decide, or have decided in the earlier training."""
        if self.repeats is not None:
            return Replay(self.repeats)
        if self.valid is None:
            raise ConfigError(
                "a training needs validation rows or an earlier result, found neither: set valid or repeats"
            )
        return EarlyStopping(self.valid, self.valid_group, self.settings, self.objective)

    def all_settings(self) -> dict[str, Any]:
        """The settings of model and training, and the seed, as plain values."""
        return {**self.about, "training": to_plain(self.settings), "seed": self.seed}


class TrainingRun(ABC):
    """One run of a training: by steps, of LR to its minimum, or of trees (abstract).

    Attributes:
        state: what it has reached.
        unit: what an epoch is called.
    """

    unit = "epoch"

    def __init__(self, training: TrainingInputs) -> None:
        self.state = TrainState()
        self.training = training
        self.network = training.network
        self.callbacks = training.callbacks
        self.schedule = training.schedule()

    @abstractmethod
    def run(self) -> History:
        """Train the network in place; callbacks are called at the start and at the end."""

    def start(self, *, epochs: int, steps: int = 1) -> TrainingStart:
        """What callbacks are given at the start: at most `epochs` epochs, of `steps` steps each."""
        return TrainingStart(
            epochs=epochs,
            steps=steps,
            rows=len(self.training.train),
            monitor=self.schedule.monitor,
            refit=not self.schedule.evaluates,
            settings=self.training.all_settings(),
            unit=self.unit,
        )

    def on_step(self, step: TrainingStep) -> None:
        """Call the callbacks after a step."""
        for callback in self.callbacks:
            callback.on_step(step)

    def on_evaluation(self, evaluation: Evaluation, *, is_best: bool) -> None:
        """Call the callbacks after an evaluation."""
        for callback in self.callbacks:
            callback.on_evaluation(evaluation, is_best)

    def evaluation(
        self,
        epoch: float,
        metrics: dict[str, float],
        *,
        learning_rate: float = 0.0,
        train_loss: float | None = None,
    ) -> Evaluation:
        """The evaluation with these metrics, after `epoch` epochs; its time is now."""
        return Evaluation(
            epoch=float(epoch),
            learning_rate=learning_rate,
            seconds=self.seconds(),
            metrics=metrics,
            train_loss=train_loss,
        )

    def seconds(self) -> float:
        """Seconds since the run began, with those of the processes that it resumes."""
        return time.perf_counter() - self.state.started

    def stopped_by(self, end: KeyboardInterrupt | OutOfTime) -> Stopped:
        """What Ctrl-C or a callback's deadline ended; it is raised where no evaluation says which weights are best."""
        if not self.schedule.evaluates:
            raise end
        return "interrupted" if isinstance(end, KeyboardInterrupt) else "time"

    def ended(self, best: Evaluation) -> History:
        """The history of the run, which has set the network to the weights of this evaluation."""
        state = self.state
        assert state.stopped is not None, "a run ends for a reason"
        self.network.eval()
        seconds_per_epoch = None
        if state.step_seconds:
            seconds_per_epoch = float(np.median(state.step_seconds))
        return History(
            epochs=state.epoch,
            best=best,
            evaluations=tuple(state.history),
            seconds=self.seconds(),
            seconds_per_epoch=seconds_per_epoch,
            monitor=self.schedule.monitor,
            stopped=state.stopped,
            rows=len(self.training.train),
            unit=self.unit,
        )
