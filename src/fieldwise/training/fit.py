"""The training loop: steps, evaluations, early stopping, signals, and restoring the best weights."""

import contextlib
import dataclasses
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.table import BatchShard, EncodedTable, ShuffledRows, window_rows
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError, DataError, TrainingError, first_line
from fieldwise.evaluation.metrics import METRICS
from fieldwise.ops.devices import flushed_denormals, kept_rng, wait_for
from fieldwise.scoring.batches import prefetch
from fieldwise.storage.machine import keep_freed_arrays
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.checkpoint import Checkpoints, Reached, captured, copied_weights, restore
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective, check_network, evaluate, monitored
from fieldwise.training.parallel import GradientSync, latest_checkpoint
from fieldwise.training.regression import (
    ExactFit,
    LinearStart,
    Regression,
    first_order_of,
    mix_with_regression,
    set_first_order,
)
from fieldwise.training.settings import LBFGS, TrainingSettings
from fieldwise.training.step import Step, move_to_device, start_at_base_rate

LOG = logging.getLogger(__name__)
DEFERRED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
CHECKPOINT_SIGNAL = getattr(signal, "SIGUSR1", None)  # Windows has none


@dataclass
class Training:
    """A training of a network, in place; it ends with the weights of its best evaluation, on the settings' device.

    Ctrl-C ends training early: the best weights so far are restored and `stopped` is `interrupted`. A callback can do
    the same by raising `OutOfTime`; `stopped` is then `time`.

    Given an earlier result instead of validation rows, training repeats that run without evaluating: as many epochs as
    it took to its best evaluation, with the same learning rates. Metrics are then empty, and Ctrl-C and `OutOfTime`
    are raised.

    Processes that train together (`current_group`) share its batches.

    Args:
        network: trained in place.
        train: rows with targets, shuffled each epoch (`fieldwise.data.table`); the loss uses their weights, if they
            have any.
        valid: rows with targets, for early stopping and learning rate drops; or the result of the run to repeat.
        settings: optimizer, penalty and stopping.
        objective: loss and metrics.
        seed: seed of the row order and dropout; the global random state is not changed.
        valid_group: group of each validation row, for group AUC.
        callbacks: called at the start, after every step and evaluation, and at the end.
        checkpoints: where the run's state is written; it resumes from an existing one. `lbfgs` writes none, and starts
            again.
        about: further settings as plain values, for callbacks.
    """

    network: nn.Module
    train: EncodedTable
    valid: EncodedTable | History
    _: KW_ONLY
    settings: TrainingSettings
    objective: Objective
    seed: int
    valid_group: np.ndarray | None = None
    callbacks: Sequence[Callback] = ()
    checkpoints: Checkpoints | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def _prepare(self) -> None:
        """Check the settings, and make what the steps need."""
        network, settings, began = self.network, self.settings, time.perf_counter()
        window, self.processes = window_rows(self.train, settings.shuffle_rows), current_group()
        shard = BatchShard() if self.processes is None else BatchShard(self.processes.rank, self.processes.size)
        self.rows = ShuffledRows(table=self.train, size=settings.batch_size, window=window, seed=self.seed, shard=shard)
        self.monitor = monitored(settings, self.objective, grouped=self.valid_group is not None)
        check_network(network, self.objective, len(self.train), settings.batch_size)
        if settings.start_at_base_rate:
            start_at_base_rate(network, self.train, self.objective)
        self.linear: LinearStart | None = None
        self.regression = self._regression() if settings.linear_start else None
        self.device = move_to_device(settings.device, network)
        self.step = Step(network, self.train, settings, self.objective, self.seed)
        self.order = torch.Generator().manual_seed(self.seed)
        self.guard = SignalGuard(self.step.sync)
        self.began, self.reached = 0.0, Reached(started=began)

    def _regression(self) -> Regression:
        """The regression that the network starts from."""
        first_order_of(self.network, self.train.layout, self.objective)
        if not hasattr(self.network, "scale_interactions"):
            raise ConfigError(f"linear_start is for FM and AFM, found {type(self.network).__name__}: set it to false")
        return Regression(self.train, self.objective, self._heard)

    def _heard(self, loss: float | None) -> None:
        """A step of the regression, or a chunk of one, which one process alone tells: the others cannot end with it."""
        for one in self.callbacks if self.processes is None else ():
            if loss is None:
                one.on_part()
            else:
                start = self._start()
                epoch = start.steps_done // start.steps + 1
                one.on_step(TrainingStep(start.steps_done, epoch, 0, torch.tensor(loss)))

    def _set_linear(self, found: LinearStart) -> None:
        """Start from the regression, unless the run goes on from a checkpoint."""
        self.linear = found
        if self.reached.epoch == 0:
            set_first_order(first_order_of(self.network, self.train.layout, self.objective), found.solution)
            if self.step.mean is not None:
                self.step.mean.module.load_state_dict(self.network.state_dict())

    def run(self) -> History:
        """Train, from the last checkpoint if there is one.

        Errors:
            TrainingError: the loss is not finite.
            ConfigError: a setting that does not fit the model or the task, or a checkpoint of another run.
            DataError: a checkpoint that cannot be read.
        """
        if self.settings.optimizer == LBFGS:
            return ExactFit(self).run()
        self._prepare()
        keep_freed_arrays()
        with kept_rng(self.device), flushed_denormals():
            torch.manual_seed(self.seed)
            if (found := latest_checkpoint(self.checkpoints, self.processes)) is not None:
                try:
                    self.reached = restore(found, self.step, self.order)
                except (LookupError, RuntimeError, TypeError, ValueError, AttributeError) as e:
                    remedy = "remove its folder" if self.checkpoints is None else self.checkpoints.place.remedy
                    why = first_line(e)
                    raise DataError(f"the unfinished run's checkpoint is not one of this run ({why}): {remedy}") from e
            try:
                with self.guard.installed():
                    start = self._start()
                    LOG.info(
                        "training on %s rows: at most %d epochs of %d steps, from step %d",
                        f"{start.rows:,}", start.epochs, start.steps, start.steps_done,
                    )  # fmt: skip
                    result = watched(self.callbacks, start, self._history)
                    LOG.info("the best of %d epochs is %.4g (%s)", result.epochs, result.best.epoch, result.stopped)
                    return result
            except TrainingError:  # the same settings would diverge again
                if self.checkpoints is not None:
                    self.checkpoints.remove()
                raise
            finally:
                if self.checkpoints is not None:
                    self.checkpoints.settle()

    def _start(self) -> TrainingStart:
        at, steps = self.reached, self.rows.steps
        return TrainingStart(
            epochs=math.ceil(self.valid.best.epoch) if isinstance(self.valid, History) else self.settings.epochs,
            steps=steps,
            rows=len(self.train),
            monitor=self.monitor,
            steps_done=max(0, at.epoch - 1) * steps + at.step,
            rows_done=0 if at.step == steps else self.rows.done(at.step),
            refit=isinstance(self.valid, History),
            settings={**self.about, "training": to_plain(self.settings), "seed": self.seed},
        )

    def _history(self) -> History:
        at = self.reached
        try:
            if self.regression is not None:
                self._set_linear(self.regression.solve(self.valid))
            self._train()
        except (KeyboardInterrupt, OutOfTime) as e:
            if self.checkpoints is not None and self.guard.whole:
                self.checkpoints.write(partial(captured, at, self.step, copied=False), wait=True)
            if isinstance(self.valid, History):
                raise
            at.stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            if self.regression is not None and self.linear is None:
                self._set_linear(self.regression.result(self.valid))
            if at.best is None:
                self._evaluate()
        assert at.best is not None, "at least one evaluation precedes the end of a run"
        assert at.stopped is not None, "a run ends for a reason"
        best, weights = at.best
        self.network.load_state_dict(weights)
        self.network.eval()
        share = None
        if self.linear is not None:
            share, best = self._mixed(self.linear, best)
        return History(
            epochs=at.epoch,
            best=best,
            evaluations=tuple(at.history),
            seconds=time.perf_counter() - at.started,
            seconds_per_epoch=float(np.median(at.step_seconds)) if at.step_seconds else None,
            monitor=self.monitor,
            stopped=at.stopped,
            priors={} if self.linear is None else self.linear.priors,
            interactions=share,
            rows=len(self.train),
        )

    def _mixed(self, linear: LinearStart, best: Evaluation) -> tuple[float, Evaluation]:
        """The share of the network in its mean with the regression, and the evaluation of the mean.

        It is no evaluation of the history: those are of the network alone, at their steps.
        """
        if isinstance(self.valid, History):
            share = 1.0 if self.valid.interactions is None else self.valid.interactions
            return mix_with_regression(self.network, linear, share, self.objective), best
        share = mix_with_regression(self.network, linear, self.valid, self.objective)
        metrics = evaluate(self.network, self.valid, self.objective, self.valid_group, loss=self.monitor == "loss")
        mean = dataclasses.replace(best, metrics=metrics, seconds=time.perf_counter() - self.reached.started)
        return share, mean

    def _train(self) -> None:
        """All epochs, or what is left of them."""
        at = self.reached
        ended, resumed = at.stopped is not None, at.epoch > 0
        while at.stopped is None:
            if not resumed:
                with self.guard:
                    at.epoch, at.step, at.evaluated, at.spent = at.epoch + 1, 0, True, 0.0
                    at.order = self.order.get_state()
            resumed = False
            self._one_epoch()
            if at.stopped is None and at.epoch == self.settings.epochs:
                at.stopped = "epochs"
        if not ended and self.checkpoints is not None:
            self.checkpoints.end(partial(captured, at, self.step, copied=False))

    def _one_epoch(self) -> None:
        """The steps of an epoch that are not done yet."""
        at, rows, steps = self.reached, self.rows, self.rows.steps
        wanted = self.settings.evaluations_per_epoch
        if isinstance(self.valid, History):  # a small table may have had fewer steps than evaluations
            wanted = max(1, sum(one.epoch <= 1 for one in self.valid.evaluations))
        wanted = min(wanted, steps)
        due = {round(steps * (k + 1) / wanted) for k in range(wanted)}
        self.network.train()
        if at.step in due and not at.evaluated and self._evaluate():
            return
        self.began = time.perf_counter()
        with contextlib.closing(prefetch(rows.epoch(at.epoch, at.step, self.order), self.device)) as batches:
            for batch, y, weight in batches:
                size = rows.done(at.step + 1) - rows.done(at.step)
                with self.guard:
                    if self.step.sync is not None:
                        self.step.sync.begin(at.epoch, at.step, batch.size, size)
                    at.losses.append(self.step(batch, y, weight))
                    at.step, at.evaluated = at.step + 1, False
                    at.position = at.epoch - 1 + at.step / steps
                done = TrainingStep((at.epoch - 1) * steps + at.step, at.epoch, size, at.losses[-1])
                for one in self.callbacks:
                    one.on_step(done)
                if at.step in due:
                    self._spend()
                    if self._evaluate():
                        return
                    self.began = time.perf_counter()
                if self.checkpoints is not None:
                    self._keep(self.checkpoints, evaluated=at.step in due)
        at.step_seconds.append(at.spent)

    def _keep(self, checkpoints: Checkpoints, *, evaluated: bool) -> None:
        """Write a checkpoint if one is due."""
        if checkpoints.due(evaluated=evaluated, asked=self.guard.asked):
            asked, self.guard.asked = self.guard.asked, False
            self._spend()
            checkpoints.write(partial(captured, self.reached, self.step, copied=True), told=asked)
            self.began = time.perf_counter()

    def _spend(self) -> None:
        wait_for(self.device)
        self.reached.spent += time.perf_counter() - self.began

    def _evaluate(self) -> bool:
        """Evaluate, keep the best weights, set the learning rate; returns whether the run ends.

        A run that repeats another evaluates nothing: it has the other's learning rates, and ends where its best
        evaluation was.
        """
        at, groups, network = self.reached, self.step.optimizer.param_groups, self.step.evaluated
        rate = float(groups[0]["lr"])
        train_loss = float(torch.stack(at.losses).mean()) if at.losses else None
        if train_loss is not None and not np.isfinite(train_loss):
            raise TrainingError(
                f"the training loss must stay finite, but it is {train_loss} in epoch {at.epoch}: lower "
                f"learning_rate (now {rate:g}) or set clip_norm"
            )
        former = self.valid if isinstance(self.valid, History) else None
        metrics: dict[str, float] = {}
        if isinstance(self.valid, History):
            better = len(at.history) == [one.epoch for one in self.valid.evaluations].index(self.valid.best.epoch)
        else:
            metrics = evaluate(network, self.valid, self.objective, self.valid_group, loss=self.monitor == "loss")
            if self.monitor not in metrics:
                raise ConfigError(
                    f"monitor = {self.monitor!r} needs a group with both classes in the validation rows, found none"
                )
            sign = 1 if METRICS[self.monitor].higher else -1
            better = at.best is None or sign * (metrics[self.monitor] - at.best[0].metrics[self.monitor]) > 0
        kept = copied_weights(network) if better else None
        seconds = time.perf_counter() - at.started
        evaluation = Evaluation(
            epoch=at.position, train_loss=train_loss, learning_rate=rate, seconds=seconds, metrics=metrics
        )
        with self.guard:
            at.evaluated, at.losses = True, []
            at.history.append(evaluation)
            if kept is not None:
                at.best, at.without_gain = (evaluation, kept), 0
                at.stopped = "patience" if former is not None else at.stopped
            elif former is not None:
                for group in groups:
                    group["lr"] = former.evaluations[len(at.history)].learning_rate
            else:
                at.without_gain += 1
                if at.without_gain % self.settings.plateau_patience == 0:
                    for group in groups:
                        group["lr"] *= self.settings.plateau_factor
                if at.stopped is None and at.without_gain >= self.settings.patience:
                    at.stopped = "patience"
        if former is None:
            LOG.debug("after epoch %.4g: %s %.6g", evaluation.epoch, self.monitor, metrics[self.monitor])
            for one in self.callbacks:
                one.on_evaluation(evaluation, better)
        return at.stopped is not None


class SignalGuard:
    """Delays the handlers of SIGINT, SIGTERM and SIGHUP to the end of a step, and notes SIGUSR1.

    `with guard.installed():` sets the handlers, in the main thread only, and resets them at the end. Within it,
    `with guard:` surrounds what must not be interrupted. A second SIGINT in the same step acts at once.

    Args:
        sync: of processes that train together: a signal waits until all know of it, and then interrupts all of them
            at the end of the same step.

    Attributes:
        whole: False after a step that an error, or such a second signal, broke off.
        asked: whether SIGUSR1 has arrived; reset by the reader.

    >>> guard = SignalGuard()
    >>> with guard.installed():
    ...     with guard:
    ...         pass
    >>> guard.whole
    True
    """

    def __init__(self, sync: GradientSync | None = None) -> None:
        self.whole, self.asked, self.sync = True, False, sync
        self.noted: list[int] = [] if sync is None else sync.noted
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._owner = os.getpid()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which the handlers are set."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # signals are the main thread's
            for number in DEFERRED:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = before[number] = handler
                    signal.signal(number, self._defer)
            if CHECKPOINT_SIGNAL is not None and signal.getsignal(CHECKPOINT_SIGNAL) in (
                signal.SIG_DFL,
                signal.SIG_IGN,
            ):
                before[CHECKPOINT_SIGNAL] = signal.signal(CHECKPOINT_SIGNAL, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __enter__(self) -> None:
        self.whole = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.whole = kind is None
        agreed = self.sync is not None and self.sync.agreed
        if self.sync is not None:
            self.sync.agreed = False  # it acts once
            if not agreed:
                return
        if self.noted:
            number = self.noted[0]  # further ones do not count: a system that stops sends several
            self.noted.clear()
            self._before[number](number, None)
        if agreed and kind is None:
            raise KeyboardInterrupt

    def _defer(self, number: int, frame: FrameType | None) -> None:
        impatient = number == signal.SIGINT and number in self.noted
        waits = self.sync is not None or not self.whole
        if not waits or impatient or os.getpid() != self._owner:
            self.noted.clear()
            self._before[number](number, frame)
        else:
            self.noted.append(number)

    def _note(self, _: int, __: FrameType | None) -> None:
        self.asked = True
