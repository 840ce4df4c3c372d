"""Callbacks that write the losses and metrics of runs to TensorBoard, MLflow or Weights & Biases.

Every tracker writes the same: settings as parameters; `train/loss` of every 50th step; after each evaluation
`train/mean_loss`, `train/learning_rate`, `train/epoch` and `valid/METRIC`; at the end `best/epoch` and `best/METRIC`.
The step is the number of the training step. A library is imported when its tracker is made.
"""

import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fieldwise.config import flat
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.training.callbacks import Callback, TrainingStart, TrainingStep
from fieldwise.training.history import Evaluation, History

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "check_tracker"]

LOG = logging.getLogger(__name__)
EVERY_STEPS = 50  # between two losses of single steps
PROJECT = "fieldwise"  # of runs whose user names none


class Tracker(Callback, ABC):
    """What all trackers share: a tracked run for each training, under its name.

    Args:
        name: name of the run.
    """

    def __init__(self, name: str = "run") -> None:
        self.name, self.step, self.is_open = name, 0, False

    def on_start(self, start: TrainingStart) -> None:
        """Open the run and write its settings."""
        self.step = start.steps_done
        self._open(f"{self.name} (all rows)" if start.refit else self.name, flat(start.settings))
        self.is_open = True

    def on_step(self, step: TrainingStep) -> None:
        """Write the loss of every 50th step."""
        self.step = step.number
        if step.number and step.number % EVERY_STEPS == 0:  # 0: of the regression that a run starts from
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

    def __init__(self, name: str = "run", folder: str | Path = "tensorboard") -> None:
        super().__init__(name)
        _library("tensorboard")
        self.folder = Path(folder)

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        own = f"{re.sub('[^A-Za-z0-9._-]+', '-', name).strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(self.folder / own))
        LOG.info("TensorBoard's events: %s", self.folder / own)
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

    def __init__(self, name: str = "run") -> None:
        super().__init__(name)
        self.mlflow = _library("mlflow")

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        self.run = self.mlflow.start_run(run_name=name, nested=self.mlflow.active_run() is not None).info.run_id
        self.mlflow.log_params(settings)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.mlflow.log_metrics(values, step=step, run_id=self.run)

    def _close(self, *, failed: bool) -> None:
        self.mlflow.end_run("FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """Writes a run of Weights & Biases, as `WANDB_PROJECT`, `WANDB_MODE` and its other variables say.

    Errors:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, name: str = "run") -> None:
        super().__init__(name)
        self.wandb = _library("wandb")

    def _open(self, name: str, settings: Mapping[str, Any]) -> None:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = self.wandb.init(project=project, name=name, config=dict(settings), reinit="create_new")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def _close(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def check_tracker(name: str) -> type[Tracker]:
    """The tracker of a name.

    Errors:
        ConfigError: there is none. MissingExtraError: its library is not installed.
    """
    if name not in TRACKERS:
        raise ConfigError(f"a tracker must be one of {', '.join(TRACKERS)}, found {name!r}")
    _library(name)
    return TRACKERS[name]


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            f"tracking with {name} needs {e.name}, which is not installed: pip install 'fieldwise[{name}]'"
        ) from None
