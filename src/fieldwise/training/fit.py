"""A training of a network: by steps over batches, of LR to the minimum of its loss, or of trees.

What it needs beside stands in files of its own: what it has reached (`state`), what validation rows
decide (`schedule`), one step (`step`), checkpoints (`checkpoint`), signals (`signals`), the LR that
may be fitted first (`with_lr`), a training of LR to its minimum (`exact_run`), and one of trees (`tree_run`).
"""

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from fieldwise.data.grouped_rows import GroupedRows
from fieldwise.data.shuffled_rows import BatchShard, ShuffledRows, window_rows
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import TrainingError
from fieldwise.models.trees import TreesNetwork
from fieldwise.ops.devices import CPU, flushed_denormals, kept_rng, wait_for
from fieldwise.scoring.batches import prefetch
from fieldwise.storage.machine import keep_freed_arrays
from fieldwise.training.callbacks import OutOfTime, TrainingStep, watched
from fieldwise.training.checkpoint import resumed
from fieldwise.training.exact_run import ExactRun
from fieldwise.training.history import History
from fieldwise.training.initialise import move_to_device, start_at_base_rate
from fieldwise.training.ranking_losses import checked_groups
from fieldwise.training.run import TrainingInputs, TrainingRun
from fieldwise.training.schedule import evaluation_steps
from fieldwise.training.settings import LBFGS
from fieldwise.training.signals import SignalGuard
from fieldwise.training.snapshot import snapshot
from fieldwise.training.step import Step
from fieldwise.training.tree_run import TreeRun
from fieldwise.training.with_lr import LRBesideNetwork, check_takes_lr

LOG = logging.getLogger(__name__)


class Training(TrainingInputs):
    """A training of a network, in place; it ends with the weights of its best evaluation, on the settings' device.

    With `mean_with_lr` the attribute `network` may be another one afterwards: its mean with LR, of
    which the trained network is a part.

    Ctrl-C ends training early: the best weights so far are restored and `stopped` is `interrupted`.
    A callback can do the same by raising `OutOfTime`; `stopped` is then `time`.

    Given an earlier result to repeat instead of validation rows, training evaluates nothing: it
    takes as many epochs as that run took to its best evaluation, with the same learning rates.
    Metrics are then empty, and Ctrl-C and `OutOfTime` are raised.

    Processes that train together (`current_group`) share its batches.
    """

    def run(self) -> History:
        """Train, from the last checkpoint if there is one.

        Errors:
            TrainingError: the loss is not finite.
            ConfigError: a setting that does not fit the model or the task, or a checkpoint of
                another run.
            DataError: a checkpoint that cannot be read.
        """
        if self.settings.optimizer == LBFGS:
            return ExactRun(self).run()
        if isinstance(self.network, TreesNetwork):
            return TreeRun(self, self.network).run()
        return SteppedRun(self).run()


class SteppedRun(TrainingRun):
    """One run of a training by steps: what it uses, made before the first step, and the loop."""

    def __init__(self, training: TrainingInputs) -> None:
        super().__init__(training)
        self.settings = training.settings
        self.checkpoints = training.checkpoints
        self.processes = current_group()

        shard = BatchShard()
        if self.processes is not None:
            shard = BatchShard(self.processes.rank, self.processes.size)
        self.rows, self.remark = self._training_rows(shard)
        self.order = torch.Generator().manual_seed(training.seed)
        self.evaluation_steps = evaluation_steps(
            self.rows.steps, self.schedule.evaluations_per_epoch
        )

        if self.settings.start_at_base_rate:
            start_at_base_rate(self.network, training.train, training.objective)
        check_takes_lr(self.network, self.settings)
        self.lr: LRBesideNetwork | None = None
        if self.settings.solves_lr:
            self.lr = LRBesideNetwork(training, self._on_lr_progress)

        self.device = move_to_device(self.settings.device, self.network)
        self.step = Step(
            self.network, training.train, self.settings, training.objective, training.seed
        )
        self.signals = SignalGuard()
        if self.step.sync is not None:
            self.signals = SignalGuard(self.step.sync, self.step.sync.noted)
        self._clock_started = 0.0

    def run(self) -> History:
        """Train from the last checkpoint, or from the start; callbacks hear of it."""
        keep_freed_arrays()
        with kept_rng(self.device), flushed_denormals():
            torch.manual_seed(self.training.seed)
            if self.checkpoints is not None or self.processes is not None:
                self.state = resumed(
                    self.checkpoints, self.processes, self.step, self.order, self.state
                )
            steps = self.rows.steps
            start = dataclasses.replace(
                self.start(epochs=self.schedule.epochs, steps=steps),
                steps_done=self.state.steps_done(steps),
                rows_done=self._rows_done(),
                remark=self.remark,
            )
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

    def _history(self) -> History:
        """Fit LR first where settings say so, train, and restore the best weights."""
        state = self.state
        try:
            if self.lr is not None:
                self.lr.fit()
                self._start_from_lr(self.lr)
            self._train()
        except (KeyboardInterrupt, OutOfTime) as e:
            if self.checkpoints is not None and self.signals.whole:
                self.checkpoints.write(partial(snapshot, state, self.step, copied=False), wait=True)
            state.stopped = self.stopped_by(e)
            if self.lr is not None and self.lr.solution is None:
                self.lr.take_unfinished()
                self._start_from_lr(self.lr)
            if state.best is None:
                self._evaluate()

        assert state.best is not None, "at least one evaluation precedes the end of a run"
        best, weights = state.best
        self.network.load_state_dict(weights)
        history = self.ended(best)
        LOG.info("the best of %d epochs is %.4g (%s)", state.epoch, best.epoch, history.stopped)
        if self.lr is None:
            return history
        assert self.lr.solution is not None, "it was fitted first"
        lr = self.lr.solution
        history = dataclasses.replace(history, priors=lr.priors, lr=lr.history)
        if self.settings.mean_with_lr:
            history = self._replace_by_mean(self.lr, history)
        return history

    def _training_rows(self, shard: BatchShard) -> tuple[ShuffledRows | GroupedRows, str | None]:
        """The training batches, and what is to be said about their groups where the loss ranks."""
        training = self.training
        settings = self.settings
        window = window_rows(training.train, settings.shuffle_rows)
        if not settings.ranks:
            rows = ShuffledRows(
                table=training.train,
                size=settings.batch_size,
                window=window,
                seed=training.seed,
                shard=shard,
            )
            return rows, None
        group, remark = checked_groups(
            training.train, training.train_group, settings, training.objective, window=window
        )
        grouped = GroupedRows(
            table=training.train,
            group=group,
            size=settings.batch_size,
            seed=training.seed,
            shard=shard,
        )
        return grouped, remark

    def _rows_done(self) -> int:
        """The rows of a resumed run's unfinished epoch that were read before."""
        state = self.state
        if state.step in (0, self.rows.steps):
            return 0
        return self.rows.done(state.step, state.epoch)

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
            if state.step in self.evaluation_steps and not state.evaluated:  # resumed
                self._evaluate()
            if state.stopped is None:
                self._train_epoch()

            if state.step == self.rows.steps:
                state.step_seconds.append(state.spent)
            if state.stopped is None and state.epoch == self.settings.epochs:
                state.stopped = "epochs"

        if self.checkpoints is not None:
            self.checkpoints.end(partial(snapshot, state, self.step, copied=False))

    def _train_epoch(self) -> None:
        """The steps and evaluations that are left of an epoch; it ends early if an evaluation ends the run."""
        state = self.state
        self._clock_started = time.perf_counter()
        items = self.rows.epoch(state.epoch, state.step, self.order)
        with contextlib.closing(prefetch(items, self.device)) as batches:
            for batch, y, weight, group in batches:
                rows_before = self.rows.done(state.step, state.epoch)
                rows = self.rows.done(state.step + 1, state.epoch) - rows_before
                with self.signals:
                    if self.step.sync is not None:
                        self.step.sync.begin(state.epoch, state.step, batch.size, rows)
                    loss = self.step(batch, y, weight, group)
                    state.add_step(loss, self.rows.steps)
                number = state.steps_done(self.rows.steps)
                self.on_step(TrainingStep(number, state.epoch, rows, loss))

                is_evaluated = state.step in self.evaluation_steps
                if is_evaluated:
                    with self._paused_clock():
                        self._evaluate()
                    if state.stopped is not None:
                        return
                self._write_checkpoint_if_due(is_evaluated=is_evaluated)

    def _evaluate(self) -> None:
        """Evaluate, keep the best weights, set the learning rate; `state.stopped` if the run ends by it."""
        state = self.state
        learning_rate = float(self.step.optimizer.param_groups[0]["lr"])
        train_loss = None
        if state.losses:
            train_loss = float(torch.stack(state.losses).mean())
            if not math.isfinite(train_loss):
                raise TrainingError(
                    f"the training loss must stay finite, but it is {train_loss} in epoch {state.epoch}: lower "
                    f"learning_rate (now {learning_rate:g}) or set clip_norm"
                )
        metrics = self.schedule.metrics(self.step.evaluated)
        is_best = self.schedule.is_best(state, metrics)
        weights = None
        if is_best:
            weights = {
                name: value.detach().to(CPU, copy=True)
                for name, value in self.step.evaluated.state_dict().items()
            }
        evaluation = self.evaluation(
            state.position, metrics, learning_rate=learning_rate, train_loss=train_loss
        )

        with self.signals:
            state.add_evaluation(evaluation, weights)
            self.schedule.after_evaluation(state, self.step.optimizer, is_best=is_best)

        if self.schedule.evaluates:
            monitor = self.schedule.monitor
            LOG.debug("after epoch %.4g: %s %.6g", evaluation.epoch, monitor, metrics[monitor])
            self.on_evaluation(evaluation, is_best=is_best)

    def _write_checkpoint_if_due(self, *, is_evaluated: bool) -> None:
        """Write a checkpoint if it is time for one, or if SIGUSR1 asked for it."""
        requested = self.signals.requested
        if self.checkpoints is None:
            return
        if not self.checkpoints.due(evaluated=is_evaluated, requested=requested):
            return
        self.signals.requested = False
        with self._paused_clock():
            capture = partial(snapshot, self.state, self.step, copied=True)
            self.checkpoints.write(capture, announce=requested)

    @contextlib.contextmanager
    def _paused_clock(self) -> Iterator[None]:
        """A context whose time does not count as spent in steps; those that a device still works on do."""
        wait_for(self.device)
        self.state.spent += time.perf_counter() - self._clock_started
        yield
        self._clock_started = time.perf_counter()

    # LR before the network, and the mean of both after it

    def _on_lr_progress(self, loss: float | Tensor | None) -> None:
        """Call the callbacks after a step of LR, or a chunk of one (None); not among several processes."""
        if self.processes is not None:
            return
        steps = self.rows.steps
        done = self.state.steps_done(steps)
        if loss is not None:
            step = TrainingStep(done, done // steps + 1, 0, torch.as_tensor(loss), of_lr=True)
            self.on_step(step)
            return
        for callback in self.callbacks:
            callback.on_part()

    def _start_from_lr(self, lr: LRBesideNetwork) -> None:
        """Start the network from LR if that is set, unless the run goes on from a checkpoint."""
        if not self.settings.start_from_lr or self.state.epoch > 0:
            return
        lr.start(self.network)
        if self.step.averaged is not None:
            self.step.averaged.module.load_state_dict(self.network.state_dict())

    def _replace_by_mean(self, lr: LRBesideNetwork, history: History) -> History:
        """Replace the training's network by its mean with LR if that is better; the history has the mean's metrics."""
        mean, share = lr.mean(self.network, self.device)
        best = history.best
        if share < 1:
            self.training.network = mean
            metrics = self.schedule.metrics(mean)
            best = dataclasses.replace(best, metrics=metrics, seconds=self.seconds())
        return dataclasses.replace(history, best=best, network_share=share, seconds=self.seconds())
