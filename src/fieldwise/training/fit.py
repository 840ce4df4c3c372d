"""The training loop: steps, evaluations, early stopping, and restoring the best weights."""

import math
import time
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.evaluation.registry import METRICS, watched
from fieldwise.layout import Batch
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.training.averaging import averaged
from fieldwise.training.forward import Forward
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.optimizers import run_optimizer
from fieldwise.training.penalty import L2Penalty
from fieldwise.training.progress import OutOfTime, Progress, Silent
from fieldwise.training.result import Evaluation, FitResult
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.start import start_at_base_rate
from fieldwise.training.unknown import ShowUnknown

__all__ = ["fit", "monitored"]


def fit(
    network: nn.Module,
    train: EncodedTable,
    valid: EncodedTable | FitResult,
    *,
    settings: TrainingSettings,
    objective: Objective,
    seed: int,
    valid_group: np.ndarray | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train a network in place; it ends with the weights of its best evaluation.

    Ctrl-C ends training early: the best weights so far are restored and `stopped` is `interrupted`. A Progress can do
    the same by raising `OutOfTime`; `stopped` is then `time`.

    Given an earlier result instead of validation rows, training repeats that run without evaluating: as many epochs as
    it took to its best evaluation, with the same learning rates. Metrics are then empty, and Ctrl-C and `OutOfTime`
    are raised.

    Args:
        network: trained in place.
        train: rows with targets, shuffled each epoch; the loss uses their weights, if they have any.
        valid: rows with targets, for early stopping and learning rate drops; or the result of the run to repeat.
        settings: optimizer, penalty and stopping.
        objective: loss and metrics.
        seed: seed of the row order and dropout; the global random state is not changed.
        valid_group: group of each validation row, for group AUC.
        progress: notified of every step and evaluation, if given.

    Errors:
        TrainingError: the loss is not finite.
        ConfigError: a setting that does not fit the model or the task.
    """
    run = _Run(network, train, valid, settings, objective, seed, valid_group, progress or Silent())
    with torch.random.fork_rng(devices=[]), flushed_denormals():
        torch.manual_seed(seed)
        return run.execute()


class _Run:
    """State of one call of `fit`."""

    def __init__(
        self,
        network: nn.Module,
        train: EncodedTable,
        valid: EncodedTable | FitResult,
        settings: TrainingSettings,
        objective: Objective,
        seed: int,
        valid_group: np.ndarray | None,
        progress: Progress,
    ) -> None:
        self.network, self.train, self.valid = network, train, valid
        self.settings, self.objective, self.progress = settings, objective, progress
        self.valid_group, self.weight = valid_group, _mean_one(train.weight)
        self.monitor = monitored(settings, objective, grouped=valid_group is not None)
        _check_batch_norm(network, len(train), settings.batch_size)
        _check_own_loss(network, objective)
        if settings.start_at_base_rate:
            start_at_base_rate(network, train, objective)
        self.show_unknown = ShowUnknown(train, settings.unknown_share, seed) if settings.unknown_share else None
        self.optimizer = run_optimizer(network, settings)  # first: it decides which tables apply their own L2
        self.penalty = L2Penalty(network, settings.l2, settings.l2_rows)
        self.forward = Forward(network, settings)
        self.parameters = list(network.parameters())
        self.mean = averaged(network, settings.average) if settings.average else None
        self.order = torch.Generator().manual_seed(seed)
        self.history: list[Evaluation] = []
        self.best: tuple[Evaluation, dict[str, Tensor]] | None = None
        self.without_gain = 0
        self.step_seconds: list[float] = []
        self.losses: list[Tensor] = []
        self.epoch, self.position = 0, 0.0
        self.started = time.perf_counter()

    def execute(self) -> FitResult:
        stopped: Literal["patience", "epochs", "interrupted", "time"] = "epochs"
        try:
            while self.epoch < self.settings.epochs:
                self.epoch += 1
                if self._one_epoch():
                    stopped = "patience"
                    break
        except (KeyboardInterrupt, OutOfTime) as e:
            if isinstance(self.valid, FitResult):
                raise
            stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            if self.best is None:
                self._look(self.position)
        finally:
            self.progress.close()
        assert self.best is not None, "at least one evaluation precedes the end of a run"
        best, weights = self.best
        self.network.load_state_dict(weights)
        self.network.eval()
        return FitResult(
            epochs=self.epoch,
            best=best,
            history=tuple(self.history),
            seconds=time.perf_counter() - self.started,
            seconds_per_epoch=float(np.median(self.step_seconds)) if self.step_seconds else None,
            monitor=self.monitor,
            stopped=stopped,
        )

    def _one_epoch(self) -> bool:
        """One pass over the training rows; returns whether patience is exhausted."""
        rows, size = len(self.train), self.settings.batch_size
        permutation = torch.randperm(rows, generator=self.order)
        steps = self.train.num_batches(size)
        looks_wanted = min(self._looks_per_epoch(), steps)
        looks = {round(steps * (k + 1) / looks_wanted) for k in range(looks_wanted)}
        self.progress.epoch(self.epoch, self._epochs(), rows)
        self.network.train()
        weights, done = None if self.weight is None else self.weight[permutation], 0
        spent, begin = 0.0, time.perf_counter()
        for step, (batch, y) in enumerate(self.train.batches(size, order=permutation), start=1):
            assert y is not None, "training rows have targets"
            self.losses.append(self._step(batch, y, None if weights is None else weights[done : done + batch.size]))
            done += batch.size
            self.position = self.epoch - 1 + step / steps
            self.progress.step(batch.size, self.losses[-1])
            if step in looks:
                spent += time.perf_counter() - begin
                if self._look(self.position):
                    return True
                begin = time.perf_counter()
        self.step_seconds.append(spent)
        return False

    def _step(self, batch: Batch, y: Tensor, weight: Tensor | None) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        if self.show_unknown is not None:
            batch = self.show_unknown(batch)
        logit, own_loss = self.forward(batch, y)
        wanted = list(y.shape if self.objective.more else y.shape[:1])
        found = list(logit.shape) if isinstance(logit, Tensor) else type(logit).__name__
        if found != wanted:  # broadcasting would hide it
            network = type(self.network).__name__
            raise ConfigError(f"{network}.forward(batch) must return one logit per row, shape {wanted}, found {found}")
        data_loss = self.objective.loss(logit, y, weight)
        total = data_loss if own_loss is None else data_loss + self.objective.weighted(own_loss)
        total.backward()  # type: ignore[no-untyped-call]
        if self.penalty:
            self.penalty.add_gradients(batch)
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update_parameters(self.network)
        return data_loss.detach()

    def _look(self, epoch: float) -> bool:
        """Evaluate, keep the best weights, drop the learning rate; returns whether patience is exhausted."""
        train_loss = float(torch.stack(self.losses).mean()) if self.losses else None
        if train_loss is not None and not np.isfinite(train_loss):
            raise TrainingError(
                f"the training loss must stay finite, but it is {train_loss} in epoch {self.epoch}: lower "
                f"learning_rate (now {self._rate():g}) or set clip_norm"
            )
        self.losses = []
        if isinstance(self.valid, FitResult):
            return self._repeated(self.valid, epoch, train_loss)
        by_loss = self.monitor == "loss"
        judged = self.network if self.mean is None else self.mean.module
        metrics = evaluate(judged, self.valid, self.objective, self.valid_group, loss=by_loss)
        if self.monitor not in metrics:
            raise ConfigError(
                f"monitor = {self.monitor!r} needs a group with both classes in the validation rows, found none"
            )
        seconds = time.perf_counter() - self.started
        look = Evaluation(
            epoch=epoch, train_loss=train_loss, learning_rate=self._rate(), seconds=seconds, metrics=metrics
        )
        self.history.append(look)
        better = self.best is None or self._gain(metrics, self.best[0].metrics) > self.settings.min_improvement
        if better:
            # One assignment: after Ctrl-C an evaluation and its weights are both there, or neither.
            self.best = look, _copied(judged)
            self.without_gain = 0
        else:
            self.without_gain += 1
            if self.without_gain % self.settings.plateau_patience == 0:
                for group in self.optimizer.param_groups:
                    group["lr"] *= self.settings.plateau_factor
        self.progress.evaluation(look, self.monitor, better)
        return self.without_gain >= self.settings.patience

    def _repeated(self, former: FitResult, epoch: float, train_loss: float | None) -> bool:
        """Set the learning rate of the run that is repeated; returns whether its best evaluation is reached."""
        best = former.history.index(former.best)
        look = Evaluation(
            epoch=epoch,
            train_loss=train_loss,
            learning_rate=self._rate(),
            seconds=time.perf_counter() - self.started,
            metrics={},
        )
        self.history.append(look)
        if len(self.history) > best:
            self.best = look, _copied(self.network if self.mean is None else self.mean.module)
            return True
        for group in self.optimizer.param_groups:
            group["lr"] = former.history[len(self.history)].learning_rate
        return False

    def _epochs(self) -> int:
        return math.ceil(self.valid.best.epoch) if isinstance(self.valid, FitResult) else self.settings.epochs

    def _looks_per_epoch(self) -> int:
        if isinstance(self.valid, FitResult):  # a small table may have had fewer steps than evaluations
            return max(1, sum(look.epoch <= 1 for look in self.valid.history))
        return self.settings.evaluations_per_epoch

    def _gain(self, new: dict[str, float], old: dict[str, float]) -> float:
        difference = new[self.monitor] - old[self.monitor]
        return difference if METRICS[self.monitor].higher else -difference

    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


def _copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _mean_one(weight: np.ndarray | None) -> Tensor | None:
    """Weights scaled to mean 1, so that the effective learning rate is unchanged; None if there are none."""
    if weight is None or (weight == weight[0]).all():
        return None
    return torch.from_numpy((weight / weight.mean(dtype=np.float64)).astype(np.float32))


def monitored(settings: TrainingSettings, objective: Objective, *, grouped: bool) -> str:
    """The validation metric for early stopping.

    Errors:
        ConfigError: a metric that the task does not have, or group AUC without groups.
    """
    known = watched(objective.task)
    monitor = settings.monitor or known[0]
    if monitor not in known:
        raise ConfigError(f"monitor must be one of {', '.join(known)} for a {objective.task} label, found {monitor!r}")
    if monitor == "gauc" and not grouped:
        raise ConfigError("monitor = 'gauc' needs groups: set user or group in the schema")
    return monitor


def _check_batch_norm(network: nn.Module, rows: int, batch_size: int) -> None:
    if min(rows, batch_size) == 1 and any(isinstance(module, nn.BatchNorm1d) for module in network.modules()):
        raise ConfigError(
            f"batch normalization needs batches of at least 2 rows, found batch_size {batch_size} for {rows} training "
            "rows: raise batch_size, or set the model's batch_norm = false"
        )


def _check_own_loss(network: nn.Module, objective: Objective) -> None:
    """Refuse an auxiliary loss for binary labels if a label is a regression."""
    found = (getattr(module, "binary_settings", ()) for module in network.modules())
    names: tuple[str, ...] = next((settings for settings in found if settings), ())
    if names and "regression" in (o.task for o in (objective, *objective.more.values())):
        ask = " and ".join(f"model.{name} = 0" for name in names)
        raise ConfigError(f"the model has an auxiliary loss for binary labels, but a label is a regression: set {ask}")
