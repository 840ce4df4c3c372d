"""The training loop: steps, evaluations, early stopping, and restoring the best weights.

What a loop needs beside stands in files of its own: what it has reached (`state`), when it evaluates
and ends (`schedule`), one step (`step`), checkpoints (`checkpoint`), signals (`signals`), and the LR
that may be fitted first (`regression`, `stepped_lr`).
"""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.config import to_plain
from fieldwise.data.shuffled_rows import BatchShard, ShuffledRows, window_rows
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.layers import FirstOrder
from fieldwise.models.build import check_takes_mean, mean_with_lr
from fieldwise.ops.devices import CPU, flushed_denormals, kept_rng, wait_for
from fieldwise.scoring.batches import prefetch
from fieldwise.storage.machine import keep_freed_arrays
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.checkpoint import Checkpoints, resumed
from fieldwise.training.exact_fit import ExactFit
from fieldwise.training.history import Evaluation, History
from fieldwise.training.initialise import move_to_device, start_at_base_rate
from fieldwise.training.objective import Objective, evaluate, monitored
from fieldwise.training.regression import (
    LRSolution,
    Regression,
    check_solvable,
    first_order_of,
    set_first_order,
    share_in_mean,
)
from fieldwise.training.schedule import EarlyStopping, Replay, evaluation_steps
from fieldwise.training.settings import LBFGS, TrainingSettings
from fieldwise.training.signals import SignalGuard
from fieldwise.training.snapshot import snapshot
from fieldwise.training.state import TrainState, Weights
from fieldwise.training.step import Step
from fieldwise.training.stepped_lr import SteppedLR

LOG = logging.getLogger(__name__)


@dataclass
class Training:
    """A training of a network, in place; it ends with the weights of its best evaluation, on the settings' device.

    With `mean_with_lr` the attribute `network` may be another one afterwards: its mean with LR, of
    which the trained network is a part.

    Ctrl-C ends training early: the best weights so far are restored and `stopped` is `interrupted`.
    A callback can do the same by raising `OutOfTime`; `stopped` is then `time`.

    Given an earlier result instead of validation rows, training repeats that run without
    evaluating: as many epochs as it took to its best evaluation, with the same learning rates.
    Metrics are then empty, and Ctrl-C and `OutOfTime` are raised.

    Processes that train together (`current_group`) share its batches.
    """

    network: nn.Module  # trained in place
    # rows with targets, shuffled each epoch; the loss uses their weights, if they have any
    train: EncodedTable
    # rows for early stopping and learning rate drops; or the result of the run to repeat
    valid: EncodedTable | History
    _: KW_ONLY
    settings: TrainingSettings
    objective: Objective
    seed: int  # of the row order and dropout; the global random state is not changed
    valid_group: np.ndarray | None = None  # the group of each validation row, for group AUC
    # called at the start, after every step and evaluation, and at the end
    callbacks: Sequence[Callback] = ()
    # of the run, which resumes from the last; `lbfgs` writes none
    checkpoints: Checkpoints | None = None
    # further settings as plain values, for callbacks
    about: Mapping[str, Any] = field(default_factory=dict)

    def run(self) -> History:
        """Train, from the last checkpoint if there is one.

        Errors:
            TrainingError: the loss is not finite.
            ConfigError: a setting that does not fit the model or the task, or a checkpoint of
                another run.
            DataError: a checkpoint that cannot be read.
        """
        if self.settings.optimizer != LBFGS:
            return _Run(self).run()
        fit = ExactFit(
            network=self.network,
            train=self.train,
            valid=self.valid,
            settings=self.settings,
            objective=self.objective,
            seed=self.seed,
            valid_group=self.valid_group,
            callbacks=self.callbacks,
            about=self.about,
        )
        return fit.run()


class _Run:
    """One run of a training by steps: what it uses, made before the first step, and the loop."""

    def __init__(self, training: Training) -> None:
        self.state = TrainState()  # replaced by that of the last checkpoint, if there is one
        self.training = training
        self.network = training.network
        self.settings = training.settings
        self.objective = training.objective
        self.callbacks = training.callbacks
        self.checkpoints = training.checkpoints
        self.processes = current_group()

        shard = BatchShard()
        if self.processes is not None:
            shard = BatchShard(self.processes.rank, self.processes.size)
        self.rows = ShuffledRows(
            table=training.train,
            size=self.settings.batch_size,
            window=window_rows(training.train, self.settings.shuffle_rows),
            seed=training.seed,
            shard=shard,
        )
        self.order = torch.Generator().manual_seed(training.seed)

        is_grouped = training.valid_group is not None
        self.monitor = monitored(self.settings, self.objective, grouped=is_grouped)
        self.valid: EncodedTable | None
        self.schedule: EarlyStopping | Replay
        if isinstance(training.valid, History):
            self.valid = None
            self.schedule = Replay(training.valid)
        else:
            self.valid = training.valid
            self.schedule = EarlyStopping(self.settings, self.monitor)
        self.evaluation_steps = evaluation_steps(
            self.rows.steps, self.schedule.evaluations_per_epoch
        )

        if self.settings.start_at_base_rate:
            start_at_base_rate(self.network, training.train, self.objective)
        self.regression = self._regression()
        self.lr: LRSolution | None = None  # what that has found

        self.device = move_to_device(self.settings.device, self.network)
        self.step = Step(self.network, training.train, self.settings, self.objective, training.seed)
        self.signals = SignalGuard()
        if self.step.sync is not None:
            self.signals = SignalGuard(self.step.sync, self.step.sync.noted)
        self._clock_started = 0.0

    def run(self) -> History:
        """Train from the last checkpoint, or from the start; callbacks hear of it."""
        training = self.training
        keep_freed_arrays()
        with kept_rng(self.device), flushed_denormals():
            torch.manual_seed(training.seed)
            if self.checkpoints is not None or self.processes is not None:
                self.state = resumed(
                    self.checkpoints, self.processes, self.step, self.order, self.state
                )
            start = self._start()
            LOG.info(
                "training on %s rows: at most %d epochs of %d steps, from step %d",
                f"{start.rows:,}",
                start.epochs,
                start.steps,
                start.steps_done,
            )
            try:
                with self.signals.installed():
                    return watched(self.callbacks, start, self._history)
            except TrainingError:  # the same settings would diverge again
                if self.checkpoints is not None:
                    self.checkpoints.remove()
                raise
            finally:
                if self.checkpoints is not None:
                    self.checkpoints.settle()

    def _start(self) -> TrainingStart:
        """What callbacks learn before the first step."""
        training = self.training
        steps = self.rows.steps
        rows_done = 0
        if self.state.step != steps:
            rows_done = self.rows.done(self.state.step)
        return TrainingStart(
            epochs=self.schedule.epochs,
            steps=steps,
            rows=len(training.train),
            monitor=self.monitor,
            steps_done=self.state.steps_done(steps),
            rows_done=rows_done,
            refit=self.valid is None,
            settings={
                **training.about,
                "training": to_plain(self.settings),
                "seed": training.seed,
            },
        )

    def _history(self) -> History:
        """Fit LR first where settings say so, train, and restore the best weights."""
        state = self.state
        try:
            if self.regression is not None:
                self._set_lr(self.regression.solve(self.training.valid))
                self.regression = None  # frees its matrix and its solutions
            self._train()
        except (KeyboardInterrupt, OutOfTime) as e:
            if self.checkpoints is not None and self.signals.whole:
                self.checkpoints.write(partial(snapshot, state, self.step, copied=False), wait=True)
            if self.valid is None:
                raise
            state.stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            if self.regression is not None and self.lr is None:
                self._set_lr(self.regression.result(self.training.valid))
            if state.best is None:
                self._evaluate()

        assert state.best is not None, "at least one evaluation precedes the end of a run"
        assert state.stopped is not None, "a run ends for a reason"
        best, weights = state.best
        self.network.load_state_dict(weights)
        self.network.eval()
        LOG.info("the best of %d epochs is %.4g (%s)", state.epoch, best.epoch, state.stopped)

        network_share = None
        if self.lr is not None and self.settings.mean_with_lr:
            network_share = self._share_in_mean(self.lr)
            if network_share < 1:
                best = self._take_mean(self.lr, network_share, best)

        seconds_per_epoch = None
        if state.step_seconds:
            seconds_per_epoch = float(np.median(state.step_seconds))
        return History(
            epochs=state.epoch,
            best=best,
            evaluations=tuple(state.history),
            seconds=time.perf_counter() - state.started,
            seconds_per_epoch=seconds_per_epoch,
            monitor=self.monitor,
            stopped=state.stopped,
            priors={} if self.lr is None else self.lr.priors,
            network_share=network_share,
            lr=None if self.lr is None else self.lr.history,
            rows=len(self.training.train),
        )

    # The loop

    def _train(self) -> None:
        """All epochs, or what is left of them."""
        state = self.state
        if state.stopped is not None:  # the checkpoint of a run that had ended
            return
        is_within_epoch = state.epoch > 0  # resumed
        while state.stopped is None:
            if not is_within_epoch:
                with self.signals:
                    state.begin_epoch(self.order)
            is_within_epoch = False

            self.network.train()
            self._train_epoch()
            if state.stopped is None and state.epoch == self.settings.epochs:
                state.stopped = "epochs"

        if self.checkpoints is not None:
            self.checkpoints.end(partial(snapshot, state, self.step, copied=False))

    def _train_epoch(self) -> None:
        """The steps and evaluations that are left of an epoch; it ends early if an evaluation ends the run."""
        state = self.state
        if state.step in self.evaluation_steps and not state.evaluated:
            self._evaluate()
            if state.stopped is not None:
                return

        self._start_clock()
        items = self.rows.epoch(state.epoch, state.step, self.order)
        with contextlib.closing(prefetch(items, self.device)) as batches:
            for batch, y, weight in batches:
                rows = self.rows.done(state.step + 1) - self.rows.done(state.step)
                with self.signals:
                    if self.step.sync is not None:
                        self.step.sync.begin(state.epoch, state.step, batch.size, rows)
                    loss = self.step(batch, y, weight)
                    state.add_step(loss, self.rows.steps)
                number = state.steps_done(self.rows.steps)
                step_done = TrainingStep(number, state.epoch, rows, loss)
                for callback in self.callbacks:
                    callback.on_step(step_done)

                is_evaluated = state.step in self.evaluation_steps
                if is_evaluated:
                    self._stop_clock()
                    self._evaluate()
                    if state.stopped is not None:
                        return
                    self._start_clock()
                self._write_checkpoint_if_due(is_evaluated=is_evaluated)
            state.step_seconds.append(state.spent)

    def _evaluate(self) -> None:
        """Evaluate, keep the best weights, set the learning rate; `state.stopped` if the run ends by it.

        A run that repeats another evaluates nothing: it has the other's learning rates, and ends
        where its best evaluation was.
        """
        state = self.state
        learning_rate = float(self.step.optimizer.param_groups[0]["lr"])
        train_loss = self._mean_train_loss(learning_rate)
        metrics: dict[str, float] = {}
        if self.valid is not None:
            metrics = self._validation_metrics(self.step.evaluated, self.valid)
            if self.monitor not in metrics:
                raise ConfigError(
                    f"monitor = {self.monitor!r} needs a group with both classes in the validation rows, found none"
                )
        is_best = self.schedule.is_best(state, metrics)
        weights = None
        if is_best:
            weights = _copied_weights(self.step.evaluated)
        evaluation = Evaluation(
            epoch=state.position,
            train_loss=train_loss,
            learning_rate=learning_rate,
            seconds=time.perf_counter() - state.started,
            metrics=metrics,
        )

        with self.signals:
            state.add_evaluation(evaluation, weights)
            self.schedule.after_evaluation(state, self.step.optimizer, is_best=is_best)

        if self.valid is None:
            return
        LOG.debug(
            "after epoch %.4g: %s %.6g", evaluation.epoch, self.monitor, metrics[self.monitor]
        )
        for callback in self.callbacks:
            callback.on_evaluation(evaluation, is_best)

    def _mean_train_loss(self, learning_rate: float) -> float | None:
        """The mean loss of the steps since the last evaluation; None without a step."""
        if not self.state.losses:
            return None
        train_loss = float(torch.stack(self.state.losses).mean())
        if not math.isfinite(train_loss):
            raise TrainingError(
                f"the training loss must stay finite, but it is {train_loss} in epoch {self.state.epoch}: lower "
                f"learning_rate (now {learning_rate:g}) or set clip_norm"
            )
        return train_loss

    def _validation_metrics(self, network: nn.Module, valid: EncodedTable) -> dict[str, float]:
        """A network's metrics on the validation rows, with the loss where that is monitored."""
        group = self.training.valid_group
        return evaluate(network, valid, self.objective, group, loss=self.monitor == "loss")

    def _write_checkpoint_if_due(self, *, is_evaluated: bool) -> None:
        """Write a checkpoint if it is time for one, or if SIGUSR1 asked for it."""
        requested = self.signals.requested
        if self.checkpoints is None:
            return
        if not self.checkpoints.due(evaluated=is_evaluated, requested=requested):
            return
        self.signals.requested = False
        self._stop_clock()
        self.checkpoints.write(
            partial(snapshot, self.state, self.step, copied=True), announce=requested
        )
        self._start_clock()

    def _start_clock(self) -> None:
        """From here on time counts as spent in steps."""
        self._clock_started = time.perf_counter()

    def _stop_clock(self) -> None:
        """Up to here time was spent in steps, those that a device still works on among them."""
        wait_for(self.device)
        self.state.spent += time.perf_counter() - self._clock_started

    # LR before the network, and the mean of both after it

    def _regression(self) -> Regression | SteppedLR | None:
        """The fit of LR before the network's training, or None; checks that network and rows can have it."""
        settings = self.settings
        if settings.start_from_lr:
            first_order_of(self.network)
        if settings.mean_with_lr:
            check_takes_mean(self.network)
        if not settings.solves_lr:
            return None
        train = self.training.train
        if settings.l2_of_lr is not None:
            return SteppedLR(train, self.objective, settings, self.training.seed, self._train_lr)
        check_solvable(train.layout, self.objective)
        return Regression(train, self.objective, self._on_lr_progress)

    def _train_lr(
        self, network: FirstOrder, valid: EncodedTable | History, settings: TrainingSettings
    ) -> History:
        """Train LR by steps: a training of its own, whose checkpoints stand beside those of the network's."""
        checkpoints = self.checkpoints
        if checkpoints is not None:
            name = f"{checkpoints.name}-lr"
            checkpoints = dataclasses.replace(checkpoints, name=name, always=True)
        training = dataclasses.replace(
            self.training,
            network=network,
            valid=valid,
            settings=settings,
            valid_group=None,
            callbacks=[_LRSteps(self)],
            checkpoints=checkpoints,
        )
        return training.run()

    def _on_lr_progress(self, loss: float | Tensor | None) -> None:
        """Call the callbacks after a step of the regression, or a chunk of one (None); not among several processes."""
        if self.processes is not None:
            return
        steps = self.rows.steps
        done = self.state.steps_done(steps)
        for callback in self.callbacks:
            if loss is None:
                callback.on_part()
            else:
                callback.on_step(TrainingStep(done, done // steps + 1, 0, torch.as_tensor(loss)))

    def _set_lr(self, lr: LRSolution) -> None:
        """Keep LR, and start from it if that is set, unless the run goes on from a checkpoint."""
        self.lr = lr
        if not self.settings.start_from_lr or self.state.epoch > 0:
            return
        set_first_order(first_order_of(self.network), lr.solution)
        if self.step.mean is not None:
            self.step.mean.module.load_state_dict(self.network.state_dict())

    def _share_in_mean(self, lr: LRSolution) -> float:
        """The share of the trained network in its mean with LR."""
        training = self.training
        first_order = FirstOrder(training.train.layout)
        set_first_order(first_order, lr.solution)
        return share_in_mean(
            self.network, first_order.to(self.device), training.valid, self.objective
        )

    def _take_mean(self, lr: LRSolution, share: float, best: Evaluation) -> Evaluation:
        """Replace the network by its mean with LR; returns the best evaluation with the metrics of the mean."""
        mean = mean_with_lr(self.network, self.training.train.layout, share)
        set_first_order(mean.lr, lr.solution)
        self.training.network = mean.to(self.device).eval()
        if self.valid is None:
            return best
        metrics = self._validation_metrics(self.training.network, self.valid)
        seconds = time.perf_counter() - self.state.started
        return dataclasses.replace(best, metrics=metrics, seconds=seconds)


class _LRSteps(Callback):
    """Passes the steps of an LR that is trained first on to the callbacks of a run."""

    def __init__(self, run: _Run) -> None:
        self.run = run

    def on_step(self, step: TrainingStep) -> None:
        self.run._on_lr_progress(step.loss)


def _copied_weights(network: nn.Module) -> Weights:
    """A copy of a network's weights on the CPU."""
    return {name: value.detach().to(CPU, copy=True) for name, value in network.state_dict().items()}
