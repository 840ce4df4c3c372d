"""What a training run has reached between two steps."""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fieldwise.training.history import Evaluation, Stopped

Weights = dict[str, Tensor]


@dataclass(kw_only=True)
class TrainState:
    """What a run has reached between two steps, without weights, optimizer and generators."""

    epoch: int = 0  # epochs begun
    step: int = 0  # done in the last of them
    position: float = 0.0  # epochs done, with their fraction
    evaluated: bool = True  # whether the evaluation after that step, if there is one, is done
    order: Tensor | None = None  # state of the generator of row orders when the epoch began
    history: list[Evaluation] = field(default_factory=list)
    best: tuple[Evaluation, Weights] | None = None
    without_gain: int = 0  # evaluations since the best one
    losses: list[Tensor] = field(default_factory=list)  # of the steps since the last evaluation
    step_seconds: list[float] = field(default_factory=list)  # time in steps of each whole epoch
    spent: float = 0.0  # seconds in steps of this epoch so far
    started: float = field(default_factory=time.perf_counter)  # when the run began
    stopped: Stopped | None = None  # what ended the run; None while it goes on

    def begin_epoch(self, order: torch.Generator) -> None:
        """The next epoch begins, with the generator of row orders in this state."""
        self.epoch = self.epoch + 1
        self.step = 0
        self.evaluated = True
        self.spent = 0.0
        self.order = order.get_state()

    def add_step(self, loss: Tensor, steps_per_epoch: int) -> None:
        """A step was done, with this mean loss."""
        self.losses.append(loss)
        self.step = self.step + 1
        self.evaluated = False
        self.position = self.epoch - 1 + self.step / steps_per_epoch

    def add_evaluation(self, evaluation: Evaluation, weights: Weights | None) -> None:
        """An evaluation was done; `weights` are those that it evaluated if it is the best so far."""
        self.evaluated = True
        self.losses = []
        self.history.append(evaluation)
        if weights is not None:
            self.best = (evaluation, weights)
            self.without_gain = 0

    def steps_done(self, steps_per_epoch: int) -> int:
        """The steps of the whole run so far."""
        return max(0, self.epoch - 1) * steps_per_epoch + self.step
