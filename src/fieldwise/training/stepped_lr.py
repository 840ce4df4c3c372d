"""LR trained by steps, on tables that are too large to solve it: it takes the place of `Regression` in a run.

Letters: R rows of the shared embedding table.
"""

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.training.callbacks import OutOfTime
from fieldwise.training.history import History
from fieldwise.training.initialise import start_at_base_rate
from fieldwise.training.objective import Objective
from fieldwise.training.regression import LRSolution
from fieldwise.training.settings import TrainingSettings

LR_RATE = 0.003  # Adam's: LR's by default on tables of many values

TrainLR = Callable[[FirstOrder, EncodedTable | History, TrainingSettings], History]
"""Trains LR in place, on the training rows of a run."""


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


_last_solution: list[tuple[Any, Any, Any, LRSolution]] = []
"""Of the rows that were used last: weak references to them, how it was trained, and the solution."""


class SteppedLR:
    """LR on a run's rows, trained by steps before the run's network: with its seed, device, processes and callbacks.

    Callbacks hear of its steps as of those of `Regression`. It has checkpoints of its own, beside
    the network's, so that a killed run resumes where it was.

    Args:
        train: the run's training rows.
        objective: the run's objective.
        settings: the run's settings, from which LR's follow.
        seed: the run's seed.
        train_lr: trains LR in place.
    """

    def __init__(
        self,
        train: EncodedTable,
        objective: Objective,
        settings: TrainingSettings,
        seed: int,
        train_lr: TrainLR,
    ) -> None:
        self.train = train
        self.objective = objective
        self.settings = settings_of_lr(settings)
        self.seed = seed
        self.train_lr = train_lr
        self._solution: LRSolution | None = None

    def solve(self, valid: EncodedTable | History) -> LRSolution:
        """Train LR; given an earlier result instead of validation rows, its training is repeated.

        The result for the rows, settings and seed that were used last is taken: searches make many.

        Errors:
            KeyboardInterrupt, OutOfTime: training was ended; `result` has what it reached.
        """
        conditions = (self.objective, self.settings, self.seed)
        for train_ref, valid_ref, last_conditions, solution in _last_solution:
            same_rows = train_ref() is self.train and valid_ref() is valid
            if same_rows and last_conditions == conditions:
                return solution

        network = FirstOrder(self.train.layout)
        history = self.train_lr(network, _of_lr(valid), self.settings)
        self._solution = LRSolution({}, _weights_and_bias(network), history)
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        if history.stopped == "time":
            raise OutOfTime
        _last_solution[:] = [
            (weakref.ref(self.train), weakref.ref(valid), conditions, self._solution)
        ]
        return self._solution

    def result(self, valid: EncodedTable | History) -> LRSolution:
        """What an ended training has reached: the best weights so far, or the best constant."""
        if self._solution is None:
            network = FirstOrder(self.train.layout)
            start_at_base_rate(network, self.train, self.objective)
            history = valid.lr if isinstance(valid, History) else None
            self._solution = LRSolution({}, _weights_and_bias(network), history)
        return self._solution


def _of_lr(valid: EncodedTable | History) -> EncodedTable | History:
    """The validation rows; or LR's part of an earlier result."""
    if not isinstance(valid, History):
        return valid
    assert valid.lr is not None, "the earlier run had the same settings"
    return valid.lr


def _weights_and_bias(network: FirstOrder) -> np.ndarray:
    """Weights and bias [R + 1]."""
    assert network.bias is not None, "LR has a bias"
    weights = network.embedding.weight.detach().cpu().numpy()[:, 0]
    solution: np.ndarray = np.append(weights, np.float32(network.bias.item()))
    return solution
