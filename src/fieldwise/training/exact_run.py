"""A training of LR to the minimum of its loss (`lbfgs`), by an exact regression."""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.callbacks import OutOfTime, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.initialise import move_to_device
from fieldwise.training.optimizers import l2_strengths
from fieldwise.training.regression import (
    LRSolution,
    Regression,
    check_solvable,
    first_order_of,
)
from fieldwise.training.run import TrainingInputs, TrainingRun
from fieldwise.training.with_lr import LAST_LR


class ExactRun(TrainingRun):
    """A training of LR alone to the minimum of its convex loss (`lbfgs`); other networks are a ConfigError.

    With an L2 strength its one solution is taken, else the mean over the priors of `Regression`.
    Each solution is an evaluation and an epoch of the result; the mean is the last one, and the one
    that is kept. Callbacks are called at every step of a solution.
    """

    def __init__(self, training: TrainingInputs) -> None:
        super().__init__(training)
        check_solvable(training.train.layout, training.objective)
        self.first_order = first_order_of(self.network)
        if len(list(self.network.parameters())) != len(list(self.first_order.parameters())):
            raise ConfigError(
                f"optimizer = 'lbfgs' solves a regression, found {type(self.network).__name__}: set 'adam'"
            )
        self.steps = 0
        self.loss = math.nan
        l2 = None
        if training.settings.l2:
            l2 = l2_strengths(self.network, training.settings.l2)["first_order.embedding.weight"]
        self.regression = Regression(
            training.train, training.objective, self._on_progress, self._on_solution, l2=l2
        )

    def run(self) -> History:
        """Solve, and set the network to the mean."""
        start = self.start(epochs=sum(map(len, self.regression.families)) + 1)
        return watched(self.callbacks, start, self._history)

    def _history(self) -> History:
        try:
            lr = self._solved()
            self.state.stopped = "converged"
        except (KeyboardInterrupt, OutOfTime) as e:
            self.state.stopped = self.stopped_by(e)
            lr = self.regression.result()
        lr.set(self.first_order)
        move_to_device(self.training.settings.device, self.network)
        self.network.eval()
        mean = self._add_evaluation()
        return dataclasses.replace(self.ended(mean), priors=lr.priors)

    def _solved(self) -> LRSolution:
        training = self.training
        if training.repeats is not None:
            return self.regression.repeat(training.repeats)
        assert training.valid is not None, "a run that repeats none has validation rows"
        lr = self.regression.solve(training.valid)
        if self.regression.l2 is None:
            LAST_LR.keep(training.train, training.valid, training.objective, lr)
        return lr

    def _on_progress(self, loss: float | Tensor | None) -> None:
        """A step of a solution is done, with this loss; or a chunk of its rows (None)."""
        if loss is not None:
            self.loss = float(loss)
            self._step_done(rows=0)
            return
        for callback in self.callbacks:
            callback.on_part()

    def _step_done(self, rows: int) -> None:
        self.steps += 1
        self.on_step(TrainingStep(self.steps, self.state.epoch + 1, rows, torch.tensor(self.loss)))

    def _on_solution(self, scores: np.ndarray) -> None:
        """A solution is done, which gives the validation rows these scores."""
        self._step_done(rows=len(self.training.train))
        evaluation = self._add_evaluation(scores)
        monitor = self.schedule.monitor
        values = [e.metrics[monitor] for e in self.state.history]
        best = max(values) if METRICS[monitor].higher else min(values)
        self.on_evaluation(evaluation, is_best=values[-1] == best)

    def _add_evaluation(self, scores: np.ndarray | None = None) -> Evaluation:
        """Evaluate the network, or known scores of the validation rows, at the end of an epoch."""
        self.state.epoch += 1
        metrics = self.schedule.metrics(self.network, scores)
        evaluation = self.evaluation(self.state.epoch, metrics)
        self.state.history.append(evaluation)
        return evaluation
