"""Progress of a training run as reports for machines."""

import math
from functools import partial

from torch import Tensor

from fieldwise.data.reports import Reports
from fieldwise.training.callbacks import Callback, TrainingStart, TrainingStep
from fieldwise.training.result import Evaluation, FitResult

__all__ = ["Reported"]


class Reported(Callback):
    """Tells reports the rows of each epoch and the metrics of each evaluation.

    Args:
        reports: where they are shown.
        title: name of the run in them.
    """

    def __init__(self, reports: Reports, title: str) -> None:
        self._reports, self._title, self._epoch = reports, title, 0
        self._start = TrainingStart(epochs=0, steps=1, rows=0, monitor="")

    def on_start(self, start: TrainingStart) -> None:
        """Called before the first step."""
        self._start = start
        self._begin(start.steps_done // start.steps + 1, start.rows - start.rows_done)

    def on_step(self, step: TrainingStep) -> None:
        """Called after a step; the loss is read when it is shown."""
        if step.epoch != self._epoch:
            self._begin(step.epoch, self._start.rows)
        self._reports.add(step.rows, loss=partial(_rounded, step.loss))

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._reports.note(
            run=self._title,
            epoch=evaluation.epoch,
            epochs=self._start.epochs,
            evaluation=dict(evaluation.metrics),
            monitor=self._start.monitor,
            better=better,
            train_loss=evaluation.train_loss,
            seconds=round(evaluation.seconds, 1),
        )

    def on_end(self, result: FitResult | None) -> None:
        """Called at the end of the run."""
        self._reports.begin("evaluation", run=self._title)

    def _begin(self, epoch: int, rows: int) -> None:
        self._epoch = epoch
        self._reports.begin("training", rows, run=self._title, epoch=epoch, epochs=self._start.epochs)

    def scoring(self, rows: int) -> None:
        """Called when the test rows are scored, after the run."""
        self._reports.begin("evaluation", rows, run=self._title)

    def scored(self, rows: int) -> None:
        """Called after some of these rows."""
        self._reports.add(rows)


def _rounded(loss: Tensor) -> float | None:
    """None for what JSON has no number for."""
    value = float(loss)
    return round(value, 6) if math.isfinite(value) else None
