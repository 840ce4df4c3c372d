"""The training of LR alone to the minimum of its convex loss (`optimizer = "lbfgs"`)."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.initialise import move_to_device
from fieldwise.training.objective import Objective, evaluate, monitored
from fieldwise.training.optimizers import l2_strengths
from fieldwise.training.regression import (
    FIELD_FACTORS,
    SHARED_VARIANCES,
    Regression,
    check_solvable,
    first_order_of,
    set_first_order,
)
from fieldwise.training.settings import TrainingSettings


class ExactFit:
    """A fit of a network of first-order weights alone, in place (`optimizer = "lbfgs"`); others are a ConfigError.

    With an L2 strength its one solution is taken, else the mean over the priors of `Regression`.
    Each solution is an evaluation and an epoch of the result; the mean is the last one, and the one
    that is kept. Callbacks are called at every step of a solution.
    """

    def __init__(
        self,
        *,
        network: nn.Module,
        train: EncodedTable,
        valid: EncodedTable | History,
        settings: TrainingSettings,
        objective: Objective,
        seed: int,
        valid_group: np.ndarray | None,
        callbacks: Sequence[Callback],
        about: Mapping[str, Any],
    ) -> None:
        check_solvable(train.layout, objective)
        self.network = network
        self.train = train
        self.valid = valid
        self.settings = settings
        self.objective = objective
        self.seed = seed
        self.valid_group = valid_group
        self.callbacks = callbacks
        self.about = about

        self.first_order = first_order_of(network)
        if len(list(network.parameters())) != len(list(self.first_order.parameters())):
            raise ConfigError(
                f"optimizer = 'lbfgs' solves a regression, found {type(network).__name__}: set 'adam'"
            )
        self.started = time.perf_counter()
        self.steps = 0
        self.evaluations = list[Evaluation]()
        self.loss = math.nan
        self.monitor = monitored(settings, objective, grouped=valid_group is not None)
        l2 = None
        if settings.l2:
            l2 = l2_strengths(network, settings.l2)["first_order.embedding.weight"]
        self.regression = Regression(train, objective, self._on_progress, l2=l2)

    def run(self) -> History:
        """Solve, and set the network to the mean."""
        epochs = len(SHARED_VARIANCES) + len(FIELD_FACTORS) + 1
        if self.regression.l2 is not None:
            epochs = 2
        start = TrainingStart(
            epochs=epochs,
            steps=1,
            rows=len(self.train),
            monitor=self.monitor,
            refit=isinstance(self.valid, History),
            settings={**self.about, "seed": self.seed, "training": to_plain(self.settings)},
        )
        return watched(self.callbacks, start, self._history)

    def _history(self) -> History:
        stopped: Literal["converged", "interrupted", "time"] = "converged"
        try:
            lr = self.regression.solve(self.valid, self._on_solution)
        except (KeyboardInterrupt, OutOfTime) as e:
            if isinstance(self.valid, History):
                raise
            stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            lr = self.regression.result(self.valid)
        set_first_order(self.first_order, lr.solution)
        move_to_device(self.settings.device, self.network)
        self.network.eval()
        best = self._evaluation()
        return History(
            epochs=len(self.evaluations) + 1,
            best=best,
            evaluations=(*self.evaluations, best),
            seconds=best.seconds,
            monitor=self.monitor,
            stopped=stopped,
            priors=lr.priors,
            rows=len(self.train),
        )

    def _on_progress(self, loss: float | None) -> None:
        """A step of a solution is done, with this loss; or a chunk of its rows (None)."""
        if loss is None:
            for callback in self.callbacks:
                callback.on_part()
        else:
            self._on_step(loss, rows=0)

    def _on_step(self, loss: float, rows: int) -> None:
        self.steps = self.steps + 1
        self.loss = loss
        step = TrainingStep(self.steps, len(self.evaluations) + 1, rows, torch.tensor(self.loss))
        for callback in self.callbacks:
            callback.on_step(step)

    def _on_solution(self, scores: np.ndarray) -> None:
        """A solution is done, which gives the validation rows these scores."""
        self._on_step(self.loss, rows=len(self.train))
        evaluation = self._evaluation(scores)
        self.evaluations.append(evaluation)
        values = [e.metrics[self.monitor] for e in self.evaluations]
        best = max(values) if METRICS[self.monitor].higher else min(values)
        for callback in self.callbacks:
            callback.on_evaluation(evaluation, values[-1] == best)

    def _evaluation(self, scores: np.ndarray | None = None) -> Evaluation:
        """An evaluation of the network, or of known scores of the validation rows."""
        metrics = dict[str, float]()
        if not isinstance(self.valid, History):
            metrics = evaluate(
                self.network,
                self.valid,
                self.objective,
                self.valid_group,
                loss=self.monitor == "loss",
                scores=scores,
            )
        return Evaluation(
            epoch=len(self.evaluations) + 1.0,
            learning_rate=0.0,
            seconds=time.perf_counter() - self.started,
            metrics=metrics,
        )
