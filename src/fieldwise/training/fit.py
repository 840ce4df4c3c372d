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
from torch import Tensor, nn

from fieldwise.config import to_plain
from fieldwise.data.shuffled_rows import BatchShard, ShuffledRows, window_rows
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.layers import FirstOrder
from fieldwise.models.build import check_takes_mean, mean_with_lr
from fieldwise.ops.devices import CPU, flushed_denormals, kept_rng, wait_for
from fieldwise.scoring.batches import prefetch
from fieldwise.storage.machine import keep_freed_arrays
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.checkpoint import Checkpoints, TrainState, resumed, snapshot
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective, evaluate, monitored
from fieldwise.training.regression import (
    ExactFit,
    LRSolution,
    Regression,
    check_solvable,
    first_order_of,
    set_first_order,
    share_in_mean,
)
from fieldwise.training.settings import LBFGS, TrainingSettings
from fieldwise.training.step import GradientSync, Step, move_to_device, start_at_base_rate
from fieldwise.training.stepped_lr import SteppedLR

LOG = logging.getLogger(__name__)
DEFERRED = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
CHECKPOINT_SIGNAL = getattr(signal, "SIGUSR1", None)  # Windows has none


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
        if self.settings.optimizer == LBFGS:
            return ExactFit(self).run()
        network = self.network
        settings = self.settings
        at = TrainState()
        self.processes = current_group()
        self.regression: Regression | SteppedLR | None = None
        self.lr: LRSolution | None = None
        shard = (
            BatchShard()
            if self.processes is None
            else BatchShard(self.processes.rank, self.processes.size)
        )
        window = window_rows(self.train, settings.shuffle_rows)
        self.rows = ShuffledRows(
            table=self.train, size=settings.batch_size, window=window, seed=self.seed, shard=shard
        )
        self.monitor = monitored(settings, self.objective, grouped=self.valid_group is not None)
        if settings.start_at_base_rate:
            start_at_base_rate(network, self.train, self.objective)
        if settings.start_from_lr:
            first_order_of(network)
        if settings.mean_with_lr:
            check_takes_mean(network)
        if settings.solves_lr and settings.l2_of_lr is not None:
            self.regression = SteppedLR(self)
        elif settings.solves_lr:
            check_solvable(self.train.layout, self.objective)
            self.regression = Regression(self.train, self.objective, self.on_lr_progress)
        self.device = move_to_device(settings.device, network)
        self.step = Step(network, self.train, settings, self.objective, self.seed)
        self.order = torch.Generator().manual_seed(self.seed)
        self.guard = SignalGuard(
            self.step.sync, [] if self.step.sync is None else self.step.sync.noted
        )
        keep_freed_arrays()
        with kept_rng(self.device), flushed_denormals():
            torch.manual_seed(self.seed)
            if self.checkpoints is not None or self.processes is not None:
                at = resumed(self.checkpoints, self.processes, self.step, self.order, at)
            self.reached, steps, refit = at, self.rows.steps, isinstance(self.valid, History)
            self.start = TrainingStart(
                epochs=math.ceil(self.valid.best.epoch)
                if isinstance(self.valid, History)
                else settings.epochs,
                steps=steps,
                rows=len(self.train),
                monitor=self.monitor,
                steps_done=max(0, at.epoch - 1) * steps + at.step,
                rows_done=0 if at.step == steps else self.rows.done(at.step),
                refit=refit,
                settings={**self.about, "training": to_plain(settings), "seed": self.seed},
            )
            rows = f"{len(self.train):,}"
            epochs = self.start.epochs
            done = self.start.steps_done
            LOG.info(
                "training on %s rows: at most %d epochs of %d steps, from step %d",
                rows,
                epochs,
                steps,
                done,
            )
            try:
                with self.guard.installed():
                    return watched(self.callbacks, self.start, self._history)
            except TrainingError:  # the same settings would diverge again
                if self.checkpoints is not None:
                    self.checkpoints.remove()
                raise
            finally:
                if self.checkpoints is not None:
                    self.checkpoints.settle()

    def on_lr_progress(self, loss: float | Tensor | None) -> None:
        """Call the callbacks after a step of the regression, or a chunk of one (None); not among several processes."""
        done = self.start.steps_done
        for one in self.callbacks if self.processes is None else ():
            if loss is None:
                one.on_part()
            else:
                one.on_step(
                    TrainingStep(done, done // self.start.steps + 1, 0, torch.as_tensor(loss))
                )

    def _set_lr(self, lr: LRSolution) -> None:
        """Keep LR, and start from it if that is set, unless the run goes on from a checkpoint."""
        self.lr = lr
        if self.settings.start_from_lr and self.reached.epoch == 0:
            set_first_order(first_order_of(self.network), lr.solution)
            if self.step.mean is not None:
                self.step.mean.module.load_state_dict(self.network.state_dict())

    def _history(self) -> History:
        at = self.reached
        try:
            if self.regression is not None:
                self._set_lr(self.regression.solve(self.valid))
                self.regression = None  # frees its matrix and its solutions
            self._train()
        except (KeyboardInterrupt, OutOfTime) as e:
            if self.checkpoints is not None and self.guard.whole:
                self.checkpoints.write(partial(snapshot, at, self.step, copied=False), wait=True)
            if isinstance(self.valid, History):
                raise
            at.stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            if self.regression is not None and self.lr is None:
                self._set_lr(self.regression.result(self.valid))
            if at.best is None:
                self._evaluate()
        assert at.best is not None, "at least one evaluation precedes the end of a run"
        assert at.stopped is not None, "a run ends for a reason"
        best, weights = at.best
        self.network.load_state_dict(weights)
        self.network.eval()
        LOG.info("the best of %d epochs is %.4g (%s)", at.epoch, best.epoch, at.stopped)
        share = None
        if self.lr is not None and self.settings.mean_with_lr:
            share = self._share(self.lr)
            if share < 1:
                best = self._take_mean(self.lr, share, best)
        return History(
            epochs=at.epoch,
            best=best,
            evaluations=tuple(at.history),
            seconds=time.perf_counter() - at.started,
            seconds_per_epoch=float(np.median(at.step_seconds)) if at.step_seconds else None,
            monitor=self.monitor,
            stopped=at.stopped,
            priors={} if self.lr is None else self.lr.priors,
            network_share=share,
            lr=None if self.lr is None else self.lr.history,
            rows=len(self.train),
        )

    def _share(self, lr: LRSolution) -> float:
        """The share of the trained network in its mean with LR."""
        first_order = FirstOrder(self.train.layout)
        set_first_order(first_order, lr.solution)
        return share_in_mean(self.network, first_order.to(self.device), self.valid, self.objective)

    def _take_mean(self, lr: LRSolution, share: float, best: Evaluation) -> Evaluation:
        """Replace the network by its mean with LR; returns the best evaluation with the metrics of the mean."""
        mean = mean_with_lr(self.network, self.train.layout, share)
        set_first_order(mean.lr, lr.solution)
        self.network = mean.to(self.device).eval()
        if isinstance(self.valid, History):
            return best
        by_loss = self.monitor == "loss"
        metrics = evaluate(self.network, self.valid, self.objective, self.valid_group, loss=by_loss)
        return dataclasses.replace(
            best, metrics=metrics, seconds=time.perf_counter() - self.reached.started
        )

    def _train(self) -> None:
        """All epochs, or what is left of them."""
        at = self.reached
        rows = self.rows
        steps = self.rows.steps
        kept = self.checkpoints
        wanted = self.settings.evaluations_per_epoch
        # a small table may have had fewer steps than evaluations
        if isinstance(self.valid, History):
            wanted = max(1, sum(one.epoch <= 1 for one in self.valid.evaluations))
        wanted = min(wanted, steps)
        due = {round(steps * (k + 1) / wanted) for k in range(wanted)}
        ended = at.stopped is not None
        goes_on = at.epoch > 0
        while at.stopped is None:
            if not goes_on:
                with self.guard:
                    at.epoch = at.epoch + 1
                    at.step = 0
                    at.evaluated = True
                    at.spent = 0.0
                    at.order = self.order.get_state()
            goes_on = False
            self.network.train()
            if at.step in due and not at.evaluated and self._evaluate():
                break
            self.began = time.perf_counter()
            with contextlib.closing(
                prefetch(rows.epoch(at.epoch, at.step, self.order), self.device)
            ) as batches:
                for batch, y, weight in batches:
                    size = rows.done(at.step + 1) - rows.done(at.step)
                    with self.guard:
                        if self.step.sync is not None:
                            self.step.sync.begin(at.epoch, at.step, batch.size, size)
                        at.losses.append(self.step(batch, y, weight))
                        at.step = at.step + 1
                        at.evaluated = False
                        at.position = at.epoch - 1 + at.step / steps
                    done = TrainingStep(
                        (at.epoch - 1) * steps + at.step, at.epoch, size, at.losses[-1]
                    )
                    for one in self.callbacks:
                        one.on_step(done)
                    if at.step in due:
                        self._spend()
                        if self._evaluate():
                            break
                        self.began = time.perf_counter()
                    if kept is not None and kept.due(
                        evaluated=at.step in due, requested=self.guard.requested
                    ):
                        requested = self.guard.requested
                        self.guard.requested = False
                        self._spend()
                        kept.write(
                            partial(snapshot, at, self.step, copied=True), announce=requested
                        )
                        self.began = time.perf_counter()
                else:
                    at.step_seconds.append(at.spent)
            if at.stopped is None and at.epoch == self.settings.epochs:
                at.stopped = "epochs"
        if not ended and kept is not None:
            kept.end(partial(snapshot, at, self.step, copied=False))

    def _spend(self) -> None:
        wait_for(self.device)
        self.reached.spent += time.perf_counter() - self.began

    def _evaluate(self) -> bool:
        """Evaluate, keep the best weights, set the learning rate; returns whether the run ends.

        A run that repeats another evaluates nothing: it has the other's learning rates, and ends
        where its best evaluation was.
        """
        at = self.reached
        groups = self.step.optimizer.param_groups
        network = self.step.evaluated
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
            better = len(at.history) == [one.epoch for one in self.valid.evaluations].index(
                self.valid.best.epoch
            )
        else:
            metrics = evaluate(
                network, self.valid, self.objective, self.valid_group, loss=self.monitor == "loss"
            )
            if self.monitor not in metrics:
                raise ConfigError(
                    f"monitor = {self.monitor!r} needs a group with both classes in the validation rows, found none"
                )
            sign = 1 if METRICS[self.monitor].higher else -1
            better = (
                at.best is None
                or sign * (metrics[self.monitor] - at.best[0].metrics[self.monitor]) > 0
            )
        weights = (
            {
                name: value.detach().to(CPU, copy=True)
                for name, value in network.state_dict().items()
            }
            if better
            else None
        )
        seconds = time.perf_counter() - at.started
        evaluation = Evaluation(
            epoch=at.position,
            train_loss=train_loss,
            learning_rate=rate,
            seconds=seconds,
            metrics=metrics,
        )
        with self.guard:
            at.evaluated = True
            at.losses = []
            at.history.append(evaluation)
            if weights is not None:
                at.best = (evaluation, weights)
                at.without_gain = 0
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
            LOG.debug(
                "after epoch %.4g: %s %.6g", evaluation.epoch, self.monitor, metrics[self.monitor]
            )
            for one in self.callbacks:
                one.on_evaluation(evaluation, better)
        return at.stopped is not None


@dataclass
class SignalGuard:
    """Delays the handlers of SIGINT, SIGTERM and SIGHUP to the end of a step, and notes SIGUSR1.

    `with guard.installed():` sets the handlers, in the main thread only, and resets them at the
    end. Within it, `with guard:` surrounds what must not be interrupted. A second SIGINT in the
    same step acts at once. Of processes that train together a signal waits until all know of it,
    and then interrupts all at the end of the same step.
    """

    sync: GradientSync | None = None
    noted: list[int] = field(default_factory=list)  # the signals that wait
    whole: bool = True  # False after a step that an error, or such a second signal, broke off
    requested: bool = False  # whether SIGUSR1 has arrived; reset by the reader
    _before: dict[int, Callable[[int, FrameType | None], Any]] = field(default_factory=dict)
    _owner: int = field(default_factory=os.getpid)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which the handlers are set."""

        def note(_: int, __: FrameType | None) -> None:
            self.requested = True

        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():  # signals are the main thread's
            for number in DEFERRED:
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = before[number] = handler
                    signal.signal(number, self._defer)
            own = (signal.SIG_DFL, signal.SIG_IGN)
            if CHECKPOINT_SIGNAL is not None and signal.getsignal(CHECKPOINT_SIGNAL) in own:
                before[CHECKPOINT_SIGNAL] = signal.signal(CHECKPOINT_SIGNAL, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __enter__(self) -> None:
        self.whole = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
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
