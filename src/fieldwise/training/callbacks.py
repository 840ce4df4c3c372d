"""Callbacks of a training run: the one way to watch it, and to end it early.

Trackers write losses and metrics to TensorBoard, MLflow or Weights & Biases, all of them the same:
settings as parameters; `train/loss` of every 50th step; after each evaluation `train/mean_loss`,
`train/learning_rate`, `train/epoch` and `valid/METRIC`; at the end `best/epoch` and `best/METRIC`.
The step is the number of the training step. A library is imported when its tracker is made.
"""

import contextlib
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fieldwise.config import flat
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.training.history import Evaluation, History

LOG = logging.getLogger(__name__)
STEPS_BETWEEN_LOSSES = 50
WANDB_PROJECT = "fieldwise"
"""The project of Weights & Biases where its user names none."""


class OutOfTime(Exception):  # noqa: N818  # not an error: like KeyboardInterrupt, it ends a run
    """Raised by a callback to end training with the best weights so far, when its time is over."""


@dataclass(frozen=True, kw_only=True)
class TrainingStart:
    """What is known when a run begins.

    Args:
        epochs: the largest number of epochs.
        steps: number of steps of an epoch.
        rows: number of training rows, which every epoch reads once.
        monitor: the metric for early stopping.
        steps_done: number of steps of a resumed run that were done before.
        rows_done: rows of its unfinished epoch that were read before.
        remark: a sentence about the rows, if there is something to say.
        refit: whether this is the second training, on training and validation rows together,
            without evaluations.
        settings: settings of the model and the training, and the seed, as plain values.
        unit: what an epoch is called: of trees, each is one.
    """

    epochs: int
    steps: int
    rows: int
    monitor: str
    steps_done: int = 0
    rows_done: int = 0
    remark: str | None = None
    refit: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "epoch"


class TrainingStep(NamedTuple):
    """A step that was done.

    Args:
        number: its number in the run, from 1.
        epoch: the epoch, from 1.
        rows: number of its rows; 0 in a step of an exact LR (`lbfgs`), or of one before the network.
        loss: its mean loss, a scalar on the training's device; reading it waits for a GPU.
        of_lr: whether it is a step of the LR that a run may fit before its network
            (`start_from_lr`, `mean_with_lr`); number and epoch are then those of the network's last
            step.
    """

    number: int
    epoch: int
    rows: int
    loss: Tensor
    of_lr: bool = False


class Callback:
    """A callback of a training run; override the methods that you need.

    Give it to `Recommender.fit(..., callbacks=[...])` or `fieldwise.training.fit.Training`. Raise
    `OutOfTime` (or KeyboardInterrupt) in a method to end the run with the best weights so far. A
    run of several processes calls the callbacks of its main process only. With `training.refit` a
    second run follows.

    >>> from fieldwise import LR, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> class Losses(Callback):
    ...     def __init__(self) -> None:
    ...         self.losses: list[float] = []
    ...     def on_step(self, step: TrainingStep) -> None:
    ...         self.losses.append(step.loss.item())
    >>> losses, schema = Losses(), Schema(fields=(Categorical("user_id"),), label=Label("liked"))
    >>> settings = TrainingSettings(epochs=2, batch_size=100, patience=9)
    >>> model = Recommender(schema, LR(), training=settings).fit(simulate(1000), callbacks=[losses])
    >>> len(losses.losses)
    18
    """

    def on_start(self, start: TrainingStart) -> None:
        """Called before the first step."""

    def on_step(self, step: TrainingStep) -> None:
        """Called after every step, also of an exact LR (`lbfgs`) and of the LR before the network."""

    def on_part(self) -> None:
        """Called within a regression's step, after each 65,536 rows: where a deadline can end it."""

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Called after every evaluation on the validation rows; `better` if its weights are the best so far."""

    def on_end(self, result: History | None) -> None:
        """Called at the end of the run, with its result; None after an error."""


def watched(
    callbacks: Sequence[Callback], start: TrainingStart, work: Callable[[], History]
) -> History:
    """The result of some work; callbacks are called at its start and end, also after an error, which is then raised."""
    result: History | None = None

    def end(callback: Callback) -> None:
        callback.on_end(result)

    with contextlib.ExitStack() as ends:
        for callback in reversed(callbacks):
            ends.callback(end, callback)
        for callback in callbacks:
            callback.on_start(start)
        result = work()
    return result


class Tracker(Callback, ABC):
    """What all trackers share: a tracked run for each training, under its name."""

    needs: str  # the library

    def __init__(self, name: str = "run") -> None:
        self.name = name
        self.step = 0
        self.is_open = False
        self.library = _library(self.needs)

    def on_start(self, start: TrainingStart) -> None:
        """Open the run and write its settings."""
        self.step = start.steps_done
        name = f"{self.name} (all rows)" if start.refit else self.name
        self._open(name, flat(start.settings))
        self.is_open = True

    def on_step(self, step: TrainingStep) -> None:
        """Write the loss of every 50th step."""
        self.step = step.number
        if not step.of_lr and step.number % STEPS_BETWEEN_LOSSES == 0:
            self._log({"train/loss": step.loss.item()}, self.step)

    def on_evaluation(self, evaluation: Evaluation, better: bool) -> None:
        """Write the metrics of the validation rows, and the mean loss since the last evaluation."""
        values = {f"valid/{name}": value for name, value in evaluation.metrics.items()}
        values |= {"train/epoch": evaluation.epoch, "train/learning_rate": evaluation.learning_rate}
        if evaluation.train_loss is not None:
            values["train/mean_loss"] = evaluation.train_loss
        self._log(values, self.step)

    def on_end(self, result: History | None) -> None:
        """Write the best evaluation, and close the run: as failed without a result."""
        if not self.is_open:
            return
        if result is not None:
            best = {f"best/{name}": value for name, value in result.best.metrics.items()}
            self._log({**best, "best/epoch": result.best.epoch}, self.step)
        self.is_open = False
        self._close(failed=result is None)

    @abstractmethod
    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        """Begin a run."""

    @abstractmethod
    def _log(self, values: Mapping[str, float], step: int) -> None:
        """Write values of a step."""

    @abstractmethod
    def _close(self, *, failed: bool) -> None:
        """End the run."""


class TensorBoard(Tracker):
    """Writes event files of TensorBoard, one folder per run: `tensorboard --logdir FOLDER` shows them.

    Args:
        name: name of the run.
        folder: the folder of all runs.

    Errors:
        MissingExtraError: TensorBoard is not installed.
    """

    needs = "tensorboard"

    def __init__(self, name: str = "run", folder: str | Path = "tensorboard") -> None:
        super().__init__(name)
        self.folder = Path(folder)

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        file_name = re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-")
        folder = self.folder / f"{file_name}-{time.strftime('%Y%m%d-%H%M%S')}"
        tensorboard = import_module("torch.utils.tensorboard")
        self.writer: Any = tensorboard.SummaryWriter(str(folder))
        LOG.info("TensorBoard's events: %s", folder)
        lines = [f"| {key} | {value} |" for key, value in settings.items()]
        self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def _log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def _close(self, *, failed: bool) -> None:
        self.writer.close()


class MLflow(Tracker):
    """Writes a run of MLflow, where `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say; below a run that is active.

    Errors:
        MissingExtraError: MLflow is not installed.
    """

    needs = "mlflow"

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        is_nested = self.library.active_run() is not None
        run = self.library.start_run(run_name=name, nested=is_nested)
        self.run = run.info.run_id
        self.library.log_params(settings)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.library.log_metrics(values, step=step, run_id=self.run)

    def _close(self, *, failed: bool) -> None:
        self.library.end_run("FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """Writes a run of Weights & Biases, as `WANDB_PROJECT`, `WANDB_MODE` and its other variables say.

    Errors:
        MissingExtraError: wandb is not installed.
    """

    needs = "wandb"

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", WANDB_PROJECT)
        self.run = self.library.init(
            project=project, name=name, config=dict(settings), reinit="create_new"
        )

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def _close(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_tracker(name: str) -> type[Tracker]:
    """The tracker of a name, which must be known, and its library installed."""
    if name not in TRACKERS:
        raise ConfigError(f"a tracker must be one of {', '.join(TRACKERS)}, found {name!r}")
    _library(name)
    return TRACKERS[name]


def _library(name: str) -> Any:
    """The module of a tracker; a MissingExtraError if it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"tracking with {name} needs {e.name}, which is not installed: pip install 'fieldwise[{name}]'"
        ) from None
