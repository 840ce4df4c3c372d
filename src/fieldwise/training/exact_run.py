"""A training of LR to the minimum of its loss (`lbfgs`), by an exact regression."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.initialise import move_to_device
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import l2_strengths
from fieldwise.training.regression import (
    LRSolution,
    Regression,
    check_solvable,
    first_order_of,
)
from fieldwise.training.schedule import EarlyStopping, Replay
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.with_lr import LAST_LR


class ExactRun:
    """A training of LR alone to the minimum of its convex loss (`lbfgs`); other networks are a ConfigError.

    With an L2 strength its one solution is taken, else the mean over the priors of `Regression`.
    Each solution is an evaluation and an epoch of the result; the mean is the last one, and the one
    that is kept. Callbacks are called at every step of a solution.
    """

    def __init__(
        self,
        network: nn.Module,
        train: EncodedTable,
        valid: EncodedTable | None,
        repeats: History | None,
        *,
        settings: TrainingSettings,
        objective: Objective,
        schedule: EarlyStopping | Replay,
        callbacks: Sequence[Callback],
    ) -> None:
        check_solvable(train.layout, objective)
        self.network = network
        self.settings = settings
        self.schedule = schedule
        self.callbacks = callbacks
        self.train = train
        self.valid = valid
        self.repeats = repeats
        self.rows = len(train)
        self.first_order = first_order_of(self.network)
        if len(list(self.network.parameters())) != len(list(self.first_order.parameters())):
            raise ConfigError(
                f"optimizer = 'lbfgs' solves a regression, found {type(self.network).__name__}: set 'adam'"
            )
        self.started = time.perf_counter()
        self.steps = 0
        self.evaluations = list[Evaluation]()
        self.loss = math.nan
        l2 = None
        if settings.l2:
            l2 = l2_strengths(network, settings.l2)["first_order.embedding.weight"]
        self.regression = Regression(train, objective, self._on_progress, self._on_solution, l2=l2)

    def run(self, all_settings: Mapping[str, Any]) -> History:
        """Solve, and set the network to the mean; callbacks are told all settings."""
        start = TrainingStart(
            epochs=sum(map(len, self.regression.families)) + 1,
            steps=1,
            rows=self.rows,
            monitor=self.schedule.monitor,
            refit=not self.schedule.evaluates,
            settings=all_settings,
        )
        return watched(self.callbacks, start, self._history)

    def _history(self) -> History:
        stopped: Literal["converged", "interrupted", "time"] = "converged"
        try:
            lr = self._solved()
        except (KeyboardInterrupt, OutOfTime) as e:
            if not self.schedule.evaluates:
                raise
            stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            lr = self.regression.result()
        lr.set(self.first_order)
        move_to_device(self.settings.device, self.network)
        self.network.eval()
        best = self._evaluation()
        return History(
            epochs=len(self.evaluations) + 1,
            best=best,
            evaluations=(*self.evaluations, best),
            seconds=best.seconds,
            monitor=self.schedule.monitor,
            stopped=stopped,
            priors=lr.priors,
            rows=self.rows,
        )

    def _solved(self) -> LRSolution:
        if self.repeats is not None:
            return self.regression.repeat(self.repeats)
        assert self.valid is not None, "a run that repeats none has validation rows"
        lr = self.regression.solve(self.valid)
        if self.regression.l2 is None:
            LAST_LR.keep(self.train, self.valid, self.regression.objective, lr)
        return lr

    def _on_progress(self, loss: float | Tensor | None) -> None:
        """A step of a solution is done, with this loss; or a chunk of its rows (None)."""
        if loss is not None:
            self.loss = float(loss)
            self._on_step(rows=0)
            return
        for callback in self.callbacks:
            callback.on_part()

    def _on_step(self, rows: int) -> None:
        self.steps += 1
        loss = torch.tensor(self.loss)
        step = TrainingStep(self.steps, len(self.evaluations) + 1, rows, loss)
        for callback in self.callbacks:
            callback.on_step(step)

    def _on_solution(self, scores: np.ndarray) -> None:
        """A solution is done, which gives the validation rows these scores."""
        self._on_step(rows=self.rows)
        evaluation = self._evaluation(scores)
        self.evaluations.append(evaluation)
        monitor = self.schedule.monitor
        values = [e.metrics[monitor] for e in self.evaluations]
        best = max(values) if METRICS[monitor].higher else min(values)
        for callback in self.callbacks:
            callback.on_evaluation(evaluation, values[-1] == best)

    def _evaluation(self, scores: np.ndarray | None = None) -> Evaluation:
        """An evaluation of the network, or of known scores of the validation rows."""
        return Evaluation(
            epoch=len(self.evaluations) + 1.0,
            learning_rate=0.0,
            metrics=self.schedule.metrics(self.network, scores),
            seconds=time.perf_counter() - self.started,
        )
