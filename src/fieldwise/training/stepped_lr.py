"""LR trained by steps, on tables that are too large to solve it: it takes the place of `Regression` in a run.

Letters: R rows of the shared embedding table.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.training.callbacks import OutOfTime
from fieldwise.training.history import History
from fieldwise.training.initialise import start_at_base_rate
from fieldwise.training.objective import Objective
from fieldwise.training.regression import LastSolution, LRSolution
from fieldwise.training.settings import TrainingSettings

LR_RATE = 0.003  # Adam's: LR's by default on tables of many values

TrainLR = Callable[[FirstOrder, TrainingSettings], History]
"""Trains LR in place, on the rows of a run; or repeats the LR of the run that this one repeats."""

_last = LastSolution()


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

    def solve(self, valid: EncodedTable) -> LRSolution:
        """Train LR; the result for the rows, settings and seed that were used last is taken.

        Errors:
            KeyboardInterrupt, OutOfTime: training was ended; `result` has what it reached.
        """
        conditions = (self.objective, self.settings, self.seed)
        solution = _last.find(self.train, valid, conditions)
        if solution is None:
            solution = self._trained()
            _last.keep(self.train, valid, conditions, solution)
        return solution

    def repeat(self, earlier: History) -> LRSolution:
        """Train LR as an earlier training did."""
        assert earlier.lr is not None, "the earlier run had the same settings"
        return self._trained()

    def result(self) -> LRSolution:
        """What an ended training has reached: the best weights so far, or the best constant."""
        if self._solution is None:
            network = FirstOrder(self.train.layout)
            start_at_base_rate(network, self.train, self.objective)
            self._solution = LRSolution({}, _weights_and_bias(network))
        return self._solution

    def _trained(self) -> LRSolution:
        network = FirstOrder(self.train.layout)
        history = self.train_lr(network, self.settings)
        self._solution = LRSolution({}, _weights_and_bias(network), history)
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        if history.stopped == "time":
            raise OutOfTime
        return self._solution


def _weights_and_bias(network: FirstOrder) -> np.ndarray:
    """Weights and bias [R + 1]."""
    assert network.bias is not None, "LR has a bias"
    weights = network.embedding.weight.detach().cpu().numpy()[:, 0]
    solution: np.ndarray = np.append(weights, np.float32(network.bias.item()))
    return solution
