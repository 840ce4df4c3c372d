"""Progress of a training run as reports for machines."""

import math
from functools import partial

from torch import Tensor

from fieldwise.data.reports import Reports
from fieldwise.training.result import Evaluation

__all__ = ["Reported"]


class Reported:
    """Tells reports the rows of each epoch and the metrics of each evaluation.

    Args:
        reports: where they are shown.
        title: name of the run in them.
    """

    def __init__(self, reports: Reports, title: str) -> None:
        self._reports, self._title, self._of = reports, title, 0

    def epoch(self, number: int, of: int, rows: int) -> None:
        """Called when an epoch begins."""
        self._of = of
        self._reports.begin("training", rows, run=self._title, epoch=number, epochs=of)

    def step(self, rows: int, loss: Tensor) -> None:
        """Called after a step; the loss is read when it is shown."""
        self._reports.add(rows, loss=partial(_rounded, loss))

    def evaluation(self, evaluation: Evaluation, monitor: str, better: bool) -> None:
        """Called after an evaluation on the validation rows."""
        self._reports.note(
            run=self._title,
            epoch=evaluation.epoch,
            epochs=self._of,
            evaluation=dict(evaluation.metrics),
            monitor=monitor,
            better=better,
            train_loss=evaluation.train_loss,
            seconds=round(evaluation.seconds, 1),
        )

    def close(self) -> None:
        """Called at the end of the run."""
        self._reports.begin("evaluation", run=self._title)

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
