"""LR beside a network: fitted before the network, which may start from it, and end as a mean with it.

`start_from_lr` and `mean_with_lr` ask for it. It is solved exactly (`regression`), or, on tables
that are too large for that, trained by steps (`l2_of_lr`).

Letters: R rows of the shared embedding table.
"""

import dataclasses
import weakref
from typing import Any

import numpy as np
import torch
from torch import nn

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.models.mean_with_lr import check_takes_mean, mean_with_lr
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStep
from fieldwise.training.initialise import start_at_base_rate
from fieldwise.training.objective import Objective
from fieldwise.training.regression import (
    LRSolution,
    OnProgress,
    Regression,
    RegressionRows,
    check_solvable,
    first_order_of,
)
from fieldwise.training.run import TrainingInputs
from fieldwise.training.settings import TrainingSettings

LR_RATE = 0.003  # Adam's: LR's by default on tables of many values
SHARES_OF_NETWORK = np.linspace(0.0, 1.0, 101)
"""Those that are tried for a network in its mean with LR."""


class LRBesideNetwork:
    """The LR of a run: fitted on the run's rows, with its seed, device and processes.

    Callbacks hear of its steps. Trained by steps it has checkpoints of its own, beside the
    network's, so that a killed run resumes where it was.

    Args:
        training: what the run is given. With a result to repeat, its LR and share in the mean are.
        on_progress: called at the steps of a solution, as by `Regression`.

    Attributes:
        solution: LR; None until it is fitted.
    """

    def __init__(self, training: TrainingInputs, on_progress: OnProgress) -> None:
        self.solution: LRSolution | None = None
        self.training = training
        self.train = training.train
        self.valid = training.valid
        self.repeats = training.repeats
        self.objective = training.objective
        self.on_progress = on_progress
        self._regression: Regression | None = None
        self._settings: TrainingSettings | None = None  # of LR's own training by steps
        self._conditions: Any = self.objective
        self._unfinished: LRSolution | None = None
        if training.settings.l2_of_lr is None:
            check_solvable(self.train.layout, self.objective)
            self._regression = Regression(self.train, self.objective, on_progress)
        else:
            self._settings = settings_of_lr(training.settings)
            self._conditions = (self.objective, self._settings, training.seed)

    def fit(self) -> None:
        """Fit LR with the validation rows, or as the earlier run did; LR of the rows used last is taken again.

        Errors:
            KeyboardInterrupt, OutOfTime: it was ended; `take_unfinished` takes what it has reached.
        """
        if self.repeats is None:
            self.solution = self._last_or_new()
        elif self._regression is None:
            self.solution = self._trained_by_steps()
        else:
            self.solution = self._regression.repeat(self.repeats)
        self._regression = None  # frees its matrix and its solutions

    def take_unfinished(self) -> None:
        """Take what an ended fit has reached: the mean or the best weights so far, or the best constant."""
        if self._regression is not None:
            self.solution = self._regression.result()
        elif self._unfinished is not None:
            self.solution = self._unfinished
        else:
            network = FirstOrder(self.train.layout)
            start_at_base_rate(network, self.train, self.objective)
            self.solution = LRSolution({}, _weights_and_bias(network))

    def start(self, network: nn.Module) -> None:
        """Set a network's first-order weights and bias to LR."""
        assert self.solution is not None, "LR is fitted"
        self.solution.set(first_order_of(network))

    def mean(self, network: nn.Module, device: torch.device) -> tuple[nn.Module, float]:
        """The mean of a trained network with LR, and the network's share; the network itself if no mean is better."""
        assert self.solution is not None, "LR is fitted"
        first_order = FirstOrder(self.train.layout)
        self.solution.set(first_order)
        share = self._share(network, first_order.to(device))
        if share == 1:
            return network, share
        mean = mean_with_lr(network, self.train.layout, share)
        self.solution.set(mean.lr)
        return mean.to(device).eval(), share

    def _last_or_new(self) -> LRSolution:
        """The LR that was fitted last, if it is this one; else a new one."""
        assert self.valid is not None, "a run that repeats none has validation rows"
        solution = LAST_LR.find(self.train, self.valid, self._conditions)
        if solution is None:
            solution = self._new(self.valid)
            LAST_LR.keep(self.train, self.valid, self._conditions, solution)
        return solution

    def _new(self, valid: EncodedTable) -> LRSolution:
        if self._regression is not None:
            return self._regression.solve(valid)
        return self._trained_by_steps()

    def _trained_by_steps(self) -> LRSolution:
        assert self._settings is not None, "LR is not solved"
        network = FirstOrder(self.train.layout)
        history = self._training_by_steps(network, self._settings).run()
        solution = LRSolution({}, _weights_and_bias(network), history)
        self._unfinished = solution
        if history.stopped == "interrupted":
            raise KeyboardInterrupt
        if history.stopped == "time":
            raise OutOfTime
        return solution

    def _training_by_steps(self, network: FirstOrder, settings: TrainingSettings) -> TrainingInputs:
        """A training of LR on the run's rows, or one that repeats LR's; its checkpoints stand beside the network's."""
        checkpoints = self.training.checkpoints
        if checkpoints is not None:
            name = f"{checkpoints.name}-lr"
            checkpoints = dataclasses.replace(checkpoints, name=name, always=True)
        repeats = None if self.repeats is None else self.repeats.lr
        return dataclasses.replace(
            self.training,
            network=network,
            settings=settings,
            repeats=repeats,
            valid_group=None,
            callbacks=[_Losses(self.on_progress)],
            checkpoints=checkpoints,
        )

    def _share(self, network: nn.Module, lr: nn.Module) -> float:
        """The share of a trained network in its mean with LR."""
        if self.repeats is None:
            assert self.valid is not None, "a run that repeats none has validation rows"
            return share_in_mean(network, lr, self.valid, self.objective)
        share = self.repeats.network_share
        return 1.0 if share is None else share


class _Losses(Callback):
    """Passes the loss of each step on."""

    def __init__(self, on_loss: OnProgress) -> None:
        self.on_loss = on_loss

    def on_step(self, step: TrainingStep) -> None:
        self.on_loss(step.loss)


def check_takes_lr(network: nn.Module, settings: TrainingSettings) -> None:
    """Check that a network can start from LR and be in a mean with it, as settings say; else a ConfigError."""
    if settings.start_from_lr:
        first_order_of(network)
    if settings.mean_with_lr:
        check_takes_mean(network)


def settings_of_lr(settings: TrainingSettings) -> TrainingSettings:
    """The settings of LR's training: the run's batches, evaluations and limits, with LR's own L2 and rate.

    >>> found = settings_of_lr(TrainingSettings(batch_size=64, optimizer="sgd", mean_with_lr=True, l2_of_lr=0.1))
    >>> found.batch_size, found.optimizer, found.l2, found.mean_with_lr
    (64, 'adam', {'embedding.weight': 0.1}, False)
    """
    assert settings.l2_of_lr is not None, "LR is trained by steps where its strength is given"
    return dataclasses.replace(
        settings,
        loss="logloss",
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


def _weights_and_bias(network: FirstOrder) -> np.ndarray:
    """Weights and bias [R + 1]."""
    assert network.bias is not None, "LR has a bias"
    weights = network.embedding.weight.detach().cpu().numpy()[:, 0]
    solution: np.ndarray = np.append(weights, np.float32(network.bias.item()))
    return solution


def share_in_mean(
    network: nn.Module, lr: nn.Module, valid: EncodedTable, objective: Objective
) -> float:
    """The share of a trained network in its mean with LR, in hundredths; 1 if that is not better on validation rows.

    It is the mean of all shares in proportion to the likelihood that each gives the validation
    rows, as `Regression` weighs its priors: near one half on few rows, the best share on many.
    """
    rows = RegressionRows(valid, objective)
    scores_of_network = score_batches(network, valid.batches(SCORING_BATCH))
    scores_of_lr = score_batches(lr, valid.batches(SCORING_BATCH))

    def likelihood(share: float) -> float:
        return rows.likelihood(share * scores_of_network + (1 - share) * scores_of_lr)

    likelihoods = np.array([likelihood(share) for share in SHARES_OF_NETWORK])
    weights = np.exp(likelihoods - likelihoods.max())
    share = round(float(np.average(SHARES_OF_NETWORK, weights=weights)), 2)
    return share if likelihood(share) > likelihood(1.0) else 1.0


class LastLR:
    """The LR of the rows and conditions that were used last: searches make many trainings on the same rows."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any, Any, LRSolution] | None = None

    def find(self, train: EncodedTable, valid: EncodedTable, conditions: Any) -> LRSolution | None:
        """The LR that was kept, if it is of these rows and conditions."""
        if self._last is None:
            return None
        train_ref, valid_ref, last_conditions, solution = self._last
        same_rows = train_ref() is train and valid_ref() is valid
        return solution if same_rows and last_conditions == conditions else None

    def keep(
        self, train: EncodedTable, valid: EncodedTable, conditions: Any, solution: LRSolution
    ) -> None:
        """Keep an LR in place of the last one; rows are not kept by it."""
        self._last = (weakref.ref(train), weakref.ref(valid), conditions, solution)


LAST_LR = LastLR()
"""Of this process: tuning, `automatic` and repeated runs train apart, each through several functions."""
