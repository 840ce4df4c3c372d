"""LR trained by steps, on tables that are too large to solve it: it takes the place of `Regression` in a run.

Letters: R rows of the shared embedding table.
"""

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStep
from fieldwise.training.history import History
from fieldwise.training.regression import LRSolution
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import start_at_base_rate

if TYPE_CHECKING:
    from fieldwise.training.fit import Training

LR_RATE = 0.003  # Adam's: LR's by default on tables of many values


def settings_of_lr(settings: TrainingSettings) -> TrainingSettings:
    """The settings of LR's training: the run's batches, evaluations and limits, with LR's own L2 and rate.

    >>> found = settings_of_lr(TrainingSettings(batch_size=64, optimizer="sgd", mean_with_lr=True, l2_of_lr=0.1))
    >>> found.batch_size, found.optimizer, found.l2, found.mean_with_lr
    (64, 'adam', {'embedding.weight': 0.1}, False)
    """
    assert settings.l2_of_lr is not None, "LR is trained by steps where its strength is given"
    return dataclasses.replace(
        settings,
        optimizer="adam",
        learning_rate=LR_RATE,
        l2={"embedding.weight": settings.l2_of_lr},
        l2_rows="all",
        precision="float32",
        compile=False,
        clip_norm=None,
        start_at_base_rate=True,
        unknown_share=0.0,
        start_from_lr=False,
        mean_with_lr=False,
        l2_of_lr=None,
        monitor="loss",
    )


_last: list[tuple[Any, Any, Any, LRSolution]] = []  # of the rows that were used last


class SteppedLR:
    """LR on a run's rows, trained by steps before the run's network: with its seed, device, processes and callbacks.

    Callbacks hear of its steps as of those of `Regression`. It has checkpoints of its own, beside
    the network's, so that a killed run resumes where it was.
    """

    def __init__(self, run: "Training") -> None:
        self.of = run
        self._found: LRSolution | None = None

    def solve(self, valid: EncodedTable | History) -> LRSolution:
        """Train LR; given an earlier result instead of validation rows, its training is repeated.

        The result for the rows, settings and seed that were used last is taken: searches make many.

        Errors:
            KeyboardInterrupt, OutOfTime: training was ended; `result` has what it reached.
        """
        run = self.of
        settings = settings_of_lr(run.settings)
        how = run.objective, settings, run.seed
        for train, judged, known, solved in _last:
            if train() is run.train and judged() is valid and known == how:
                return solved
        network = FirstOrder(run.train.layout)
        checkpoints = run.checkpoints
        if checkpoints is not None:
            checkpoints = dataclasses.replace(
                checkpoints, name=f"{checkpoints.name}-lr", always=True
            )
        training = dataclasses.replace(
            run,
            network=network,
            valid=_of_lr(valid),
            settings=settings,
            valid_group=None,
            callbacks=[_StepsOfLR(run)],
            checkpoints=checkpoints,
        )
        history = training.run()
        self._found = LRSolution({}, _solution(network), history)
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        if history.stopped == "time":
            raise OutOfTime
        _last[:] = [(weakref.ref(run.train), weakref.ref(valid), how, self._found)]
        return self._found

    def result(self, valid: EncodedTable | History) -> LRSolution:
        """What an ended training has reached: the best weights so far, or the best constant."""
        if self._found is None:
            network = FirstOrder(self.of.train.layout)
            start_at_base_rate(network, self.of.train, self.of.objective)
            self._found = LRSolution(
                {}, _solution(network), valid.lr if isinstance(valid, History) else None
            )
        return self._found


class _StepsOfLR(Callback):
    """Passes LR's steps on to the callbacks of a run."""

    def __init__(self, run: "Training") -> None:
        self.run = run

    def on_step(self, step: TrainingStep) -> None:
        self.run.on_lr_progress(step.loss)


def _of_lr(valid: EncodedTable | History) -> EncodedTable | History:
    """The validation rows; or LR's part of an earlier result."""
    if not isinstance(valid, History):
        return valid
    assert valid.lr is not None, "the earlier run had the same settings"
    return valid.lr


def _solution(network: FirstOrder) -> np.ndarray:
    """Weights and bias [R + 1]."""
    assert network.bias is not None, "LR has a bias"
    weights = network.embedding.weight.detach().cpu().numpy()[:, 0]
    result: np.ndarray = np.append(weights, np.float32(network.bias.item()))
    return result
