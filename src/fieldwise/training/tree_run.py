"""A training of gradient-boosted trees, which their library fits tree by tree and validation rows end."""

import dataclasses
import math

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
from fieldwise.training.callbacks import OutOfTime, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective
from fieldwise.training.run import TrainingInputs, TrainingRun
from fieldwise.training.settings import TrainingSettings

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


class TreeRun(TrainingRun):
    """A training of a network of trees, in place: those up to the best value of `monitor` are kept.

    An epoch of its history is a tree. Callbacks are called after every tree, whose training loss is
    not known (NaN), and after some of them with an evaluation (`_is_evaluated`): of `monitor` alone;
    all metrics are computed for the trees that are kept. There are no checkpoints.
    """

    unit = "tree"

    def __init__(self, training: TrainingInputs, network: TreesNetwork) -> None:
        super().__init__(training)
        if current_group() is not None:
            raise ConfigError(
                f"{network.title} is trained by one process with threads: start it without torchrun or Ray"
            )
        self.trees_network = network
        self.objective = training.objective
        self.monitor = _monitor_of_one_label(network, self.objective, self.schedule.monitor)
        self.patience = network.settings.patience
        self.trees = network.settings.max_trees
        self.learning_rate: float | None = network.settings.learning_rate
        if training.repeats is not None:
            self.trees = self.schedule.epochs
            self.learning_rate = training.repeats.best.learning_rate
        self.best_value = math.nan
        self.best_trees = 0

    def run(self) -> History:
        """Fit the trees."""
        return watched(self.callbacks, self.start(epochs=self.trees), self._history)

    def after_tree(self, trees: int, value: float) -> bool:
        """Whether another tree follows one after which the validation rows have this value of `monitor`."""
        self.state.epoch = trees
        if self._is_better(value):
            self.best_value = value
            self.best_trees = trees
        try:
            self._call_callbacks(trees, value)
        except (KeyboardInterrupt, OutOfTime) as e:
            self.state.stopped = self.stopped_by(e)
            return False
        has_lost_patience = trees - self.best_trees >= self.patience
        if self.schedule.evaluates and has_lost_patience:
            self.state.stopped = "patience"
            return False
        return True

    def interrupted(self) -> None:
        """Keep what there is after Ctrl-C; without a tree, or validation rows to say how many, that is raised."""
        if not self.state.epoch:
            raise KeyboardInterrupt
        self.state.stopped = self.stopped_by(KeyboardInterrupt())

    def _is_better(self, value: float) -> bool:
        if not self.best_trees or not self.schedule.evaluates:
            return True
        gain = value - self.best_value
        return gain > 0 if METRICS[self.monitor].higher else gain < 0

    def _call_callbacks(self, trees: int, value: float) -> None:
        """Call the callbacks after a tree, and with an evaluation if one is due."""
        rows = len(self.training.train)
        self.on_step(TrainingStep(trees, trees, rows, torch.tensor(math.nan)))
        if not self.schedule.evaluates or not _is_evaluated(trees):
            return
        unit = self.objective.scale if self.objective.task == "regression" else 1.0
        metrics = {self.schedule.monitor: float(value * unit)}
        evaluation = self.evaluation(trees, metrics, learning_rate=self.learning_rate or 0.0)
        self.state.history.append(evaluation)
        self.on_evaluation(evaluation, is_best=self.best_trees == trees)

    def _history(self) -> History:
        network = self.trees_network
        boosting = Boosting(
            task=self.objective.task,
            monitor=self.monitor,
            trees=self.trees,
            learning_rate=self.learning_rate,
            seed=self.training.seed,
        )
        valid = None
        if self.training.valid is not None:
            valid = self._rows_to_measure(self.training.valid)
        model = network.fit(self._rows(self.training.train), valid, boosting, self)
        if self.state.stopped is None:
            self.state.stopped = "epochs"

        network.keep(model, self.best_trees)
        if self.objective.sampled is not None:
            network.shift.fill_(-self.objective.sampled.log_odds)
        network.eval()
        learning_rate = network.learning_rate_of(model)
        best = self.evaluation(
            self.best_trees, self.schedule.metrics(network), learning_rate=learning_rate
        )
        self.state.history = _with_best(self.state.history, best)
        return self.ended(best)

    def _rows(self, table: EncodedTable) -> TreeRows:
        y = np.asarray(table.targets[:, 0], np.float32)
        if self.objective.task == "regression":
            y = y / self.objective.scale
        return TreeRows(x=self.trees_network.features.of_table(table), y=y, weight=table.weight)

    def _rows_to_measure(self, table: EncodedTable) -> TreeRows:
        """The rows, which stand for the whole log if they are a sample."""
        rows = self._rows(table)
        sampled = self.objective.sampled
        if sampled is None:
            return rows
        weight = sampled.log_weights(rows.y.astype(np.float64), rows.weight)
        return dataclasses.replace(rows, weight=weight, shift=-sampled.log_odds)


def _with_best(history: list[Evaluation], best: Evaluation) -> list[Evaluation]:
    """The evaluations of a run with that of the trees that are kept, all with its learning rate."""
    evaluations = [best]
    for evaluation in history:
        if evaluation.epoch != best.epoch:
            known_rate = dataclasses.replace(evaluation, learning_rate=best.learning_rate)
            evaluations.append(known_rate)
    return sorted(evaluations, key=lambda evaluation: evaluation.epoch)


def _is_evaluated(trees: int) -> bool:
    """Whether metrics are computed after this number of trees: 1, every tenth to 100, every hundredth to 1,000, ...

    >>> [trees for trees in range(1, 301) if _is_evaluated(trees)]
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
