"""A training of gradient-boosted trees, which their library fits tree by tree and validation rows end."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.layout import Layout
from fieldwise.models.settings import ModelSettings
from fieldwise.models.trees import (
    MAX_BAG_VALUES,
    Boosting,
    TreeFeatures,
    TreeRows,
    TreeSettings,
    TreesNetwork,
)
from fieldwise.training.callbacks import Callback, OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective
from fieldwise.training.schedule import EarlyStopping, Replay
from fieldwise.training.settings import TrainingSettings

UNIT = "tree"
READ_SETTINGS = {"monitor", "refit", "device", "checkpoint_minutes"}
"""Settings of a training that trees read; there are no checkpoints, so that `checkpoint_minutes` has no effect."""


def check_tree_settings(model: TreeSettings, training: TrainingSettings, labels: int) -> None:
    """Check that a training of trees is of one label, on the CPU, and without LR; else a ConfigError."""
    name = type(model).__name__
    if labels > 1:
        raise ConfigError(
            f"{name} learns one label, found {labels}: remove more_labels, and train a bundle for each label"
        )
    if training.device not in ("cpu", "auto"):
        raise ConfigError(
            f"{name} is trained on the CPU, found training.device = {training.device!r}: leave it out"
        )
    if training.loss != "logloss":
        raise ConfigError(
            f"{name} is trained by logloss, found training.loss = {training.loss!r}: leave it out"
        )
    if training.solves_lr:
        raise ConfigError(
            f"{name} learns LR's effects itself and has no mean with it: leave out start_from_lr and mean_with_lr"
        )


def tree_cautions(
    model: ModelSettings, training: TrainingSettings, layout: Layout | None = None
) -> list[str]:
    """Sentences about settings of a training by steps, and about fields, that trees do not read; none for networks.

    >>> from fieldwise import LightGBM
    >>> tree_cautions(LightGBM(), TrainingSettings(epochs=3, monitor="auc"))
    ['LightGBM takes no steps over batches and does not read training.epochs: its own settings stand in [model]']
    """
    if not isinstance(model, TreeSettings):
        return []
    name = type(model).__name__
    default = TrainingSettings()
    unread = []
    for field in dataclasses.fields(training):
        is_changed = getattr(training, field.name) != getattr(default, field.name)
        if is_changed and field.name not in READ_SETTINGS:
            unread.append(f"training.{field.name}")
    sentences = []
    if unread:
        sentences.append(
            f"{name} takes no steps over batches and does not read {', '.join(unread)}: its own settings stand in "
            "[model]"
        )
    left_out = [] if layout is None else TreeFeatures(layout).left_out
    if left_out:
        sentences.append(
            f"{name} does not read {', '.join(left_out)}: a history, or a bag with more than {MAX_BAG_VALUES} values"
        )
    return sentences


class TreeRun:
    """A training of a network of trees, in place: those up to the best value of `monitor` are kept.

    An epoch of its history is a tree. Callbacks are called after every tree, whose training loss is
    not known (NaN), and after some of them with an evaluation (`_is_told`): of `monitor` alone; all
    metrics are computed for the trees that are kept. There are no checkpoints.
    """

    def __init__(
        self,
        network: TreesNetwork,
        train: EncodedTable,
        valid: EncodedTable | None,
        objective: Objective,
        schedule: EarlyStopping | Replay,
        repeats: History | None,
        callbacks: Sequence[Callback],
        seed: int,
    ) -> None:
        if current_group() is not None:
            raise ConfigError(
                f"{network.title} is trained by one process with threads: start it without torchrun or Ray"
            )
        self.network = network
        self.train = train
        self.valid = valid
        self.objective = objective
        self.schedule = schedule
        self.callbacks = callbacks
        self.seed = seed
        self.monitor = _monitor_of_one_label(network, objective, schedule.monitor)
        self.settings = network.settings
        self.trees = self.settings.max_trees
        self.learning_rate: float | None = self.settings.learning_rate
        if repeats is not None:
            self.trees = schedule.epochs
            self.learning_rate = repeats.best.learning_rate
        self.started = time.perf_counter()
        self.evaluations: list[Evaluation] = []
        self.best_value = math.nan
        self.best_trees = 0
        self.grown = 0
        self.stopped: Literal["patience", "epochs", "interrupted", "time"] = "epochs"

    def run(self, all_settings: Mapping[str, Any]) -> History:
        """Fit the trees; callbacks are told all settings."""
        start = TrainingStart(
            epochs=self.trees,
            steps=1,
            rows=len(self.train),
            monitor=self.schedule.monitor,
            refit=not self.schedule.evaluates,
            settings=all_settings,
            unit=UNIT,
        )
        return watched(self.callbacks, start, self._history)

    def after_tree(self, trees: int, value: float) -> bool:
        """Whether another tree follows one after which the validation rows have this value of `monitor`."""
        self.grown = trees
        if self._is_better(value):
            self.best_value = value
            self.best_trees = trees
        try:
            self._tell(trees, value)
        except (KeyboardInterrupt, OutOfTime) as e:
            if not self.schedule.evaluates:
                raise
            self.stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            return False
        has_lost_patience = trees - self.best_trees >= self.settings.patience
        if self.schedule.evaluates and has_lost_patience:
            self.stopped = "patience"
            return False
        return True

    def interrupted(self) -> None:
        """Keep what there is after Ctrl-C; without a tree, or validation rows to say how many, that is raised."""
        if not self.schedule.evaluates or not self.grown:
            raise KeyboardInterrupt
        self.stopped = "interrupted"

    def _is_better(self, value: float) -> bool:
        if not self.best_trees or not self.schedule.evaluates:
            return True
        gain = value - self.best_value
        return gain > 0 if METRICS[self.monitor].higher else gain < 0

    def _tell(self, trees: int, value: float) -> None:
        """Tell the callbacks of a tree, and of an evaluation if one is due."""
        step = TrainingStep(trees, trees, len(self.train), torch.tensor(math.nan))
        for callback in self.callbacks:
            callback.on_step(step)
        if not self.schedule.evaluates or not _is_told(trees):
            return
        unit = self.objective.scale if self.objective.task == "regression" else 1.0
        evaluation = self._evaluation(trees, {self.schedule.monitor: float(value * unit)})
        self.evaluations.append(evaluation)
        for callback in self.callbacks:
            callback.on_evaluation(evaluation, self.best_trees == trees)

    def _history(self) -> History:
        boosting = Boosting(
            task=self.objective.task,
            monitor=self.monitor,
            trees=self.trees,
            learning_rate=self.learning_rate,
            seed=self.seed,
        )
        valid = None if self.valid is None else self._rows_to_measure(self.valid)
        model = self.network.fit(self._rows(self.train), valid, boosting, self)
        self.learning_rate = self.network.learning_rate_of(model)
        self.network.keep(model, self.best_trees)
        if self.objective.sampled is not None:
            self.network.shift.fill_(-self.objective.sampled.log_odds)
        self.network.eval()
        best = self._evaluation(self.best_trees, self.schedule.metrics(self.network))
        others = []
        for evaluation in self.evaluations:
            if evaluation.epoch != best.epoch:
                known_rate = dataclasses.replace(evaluation, learning_rate=self.learning_rate)
                others.append(known_rate)
        return History(
            epochs=self.grown,
            best=best,
            evaluations=tuple(sorted([*others, best], key=lambda e: e.epoch)),
            seconds=time.perf_counter() - self.started,
            monitor=self.schedule.monitor,
            stopped=self.stopped,
            rows=len(self.train),
            unit=UNIT,
        )

    def _rows(self, table: EncodedTable) -> TreeRows:
        y = np.asarray(table.targets[:, 0], np.float32)
        if self.objective.task == "regression":
            y = y / self.objective.scale
        return TreeRows(x=self.network.features.of_table(table), y=y, weight=table.weight)

    def _rows_to_measure(self, table: EncodedTable) -> TreeRows:
        """The rows, which stand for the whole log if they are a sample."""
        rows = self._rows(table)
        sampled = self.objective.sampled
        if sampled is None:
            return rows
        weight = sampled.log_weights(rows.y.astype(np.float64), rows.weight)
        return dataclasses.replace(rows, weight=weight, shift=-sampled.log_odds)

    def _evaluation(self, trees: int, metrics: dict[str, float]) -> Evaluation:
        return Evaluation(
            epoch=float(trees),
            learning_rate=self.learning_rate or 0.0,
            metrics=metrics,
            seconds=time.perf_counter() - self.started,
        )


def _is_told(trees: int) -> bool:
    """Whether an evaluation is kept and told: of every tenth tree up to 100, then every hundredth, and so on.

    >>> [trees for trees in range(1, 301) if _is_told(trees)]
    [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300]
    """
    digits = len(str(trees))
    return trees == 1 or trees % max(10, 10 ** (digits - 1)) == 0


def _monitor_of_one_label(network: TreesNetwork, objective: Objective, monitor: str) -> str:
    """The metric that the library stops by; a ConfigError if it has none of this name."""
    if monitor == "loss":
        monitor = "logloss" if objective.task == "binary" else "rmse"
    if monitor not in network.metrics:
        known = ", ".join(network.metrics)
        raise ConfigError(
            f"training.monitor of {network.title} must be one of {known}, found {monitor!r}: choose one of them"
        )
    return monitor
