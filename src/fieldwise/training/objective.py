"""Objectives: the loss and metrics of each label, and whether a network and settings fit them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.data.shuffled_rows import BatchShard
from fieldwise.data.table import EncodedTable, batch_starts
from fieldwise.distributed.process_group import ProcessGroup, current_group
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation import binary_metrics, logloss_from_logits, regression_metrics
from fieldwise.evaluation.metrics import GROUP_METRICS, METRICS, metrics_of
from fieldwise.layout import Batch
from fieldwise.schema import Label, Sampled
from fieldwise.schema.label import Task
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.settings import TrainingSettings

Score = TypeVar("Score", Tensor, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The objective of one label, or of a main label and further labels (`more`).

    >>> both = Objective(more={"minutes": Objective(task="regression", weight=0.5)})
    >>> float(both.loss(torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 1.0]])))  # log 2 + 0.5 * 2^2
    2.6931471824645996
    """

    task: Task = "binary"  # cross-entropy on the logit, or of a `regression` squared error
    # of a regression, in metrics but not in the loss
    prediction_range: tuple[float, float] | None = None
    # the loss of a regression divides the targets by it; metrics are in the targets' unit
    scale: float = 1.0
    weight: float = 1.0  # of this label's loss in the sum over labels
    # of a binary label: scores are log odds in the whole log, and rows are a sample of it
    sampled: Sampled | None = None
    # Of further labels by name; scores and targets are then [N, T], the main label's first.
    more: Mapping[str, "Objective"] = field(default_factory=dict)

    @classmethod
    def of(cls, label: Label, *more: Label) -> "Objective":
        """The objective for a schema's labels, the main one first."""
        return cls(
            task=label.task,
            prediction_range=label.range,
            scale=label.scale or 1.0,
            weight=label.weight,
            sampled=label.sampled,
            more={other.name: cls.of(other) for other in more},
        )

    @property
    def labels(self) -> tuple["Objective", ...]:
        """The objectives of all labels, the main one first."""
        return (self, *self.more.values())

    def loss(self, logit: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The weighted sum of the labels' mean losses over a batch.

        Scores and targets [B, T], or [B] of one label; row weights [B].
        """
        losses = list[Tensor]()
        logits_by_label = logit.reshape(-1, len(self.labels)).unbind(1)
        targets_by_label = y.reshape(-1, len(self.labels)).unbind(1)
        for label, z, target in zip(self.labels, logits_by_label, targets_by_label, strict=True):
            if label.task == "binary":
                log_odds = label.in_sample(z)
                loss = F.binary_cross_entropy_with_logits(log_odds, target, weight=weight)
            elif weight is None:
                loss = F.mse_loss(z, target / label.scale)
            else:
                loss = (weight * F.mse_loss(z, target / label.scale, reduction="none")).mean()
            losses.append(label.weight * loss)
        return torch.stack(losses).sum()

    def _by_label(self, values: np.ndarray) -> np.ndarray:
        """Targets or scores [N, T], or [N] of one label, by label [T, N]."""
        return values.reshape(-1, len(self.labels)).T

    def relevance(self, y: Tensor) -> Tensor:
        """The relevance of rows to losses that rank: of a binary label 0 and 1, of a regression's grade y 2^y - 1."""
        return y if self.task == "binary" else torch.exp2(y) - 1

    def in_sample(self, score: Score) -> Score:
        """The log odds of rows of the sample, of those in the whole log (King and Zeng 2001)."""
        return score if self.sampled is None else score + self.sampled.log_odds

    def weighted(self, losses: Tensor) -> Tensor:
        """The weighted sum of the labels' losses ([T], or a scalar for one label): a scalar."""
        losses_by_label = losses.reshape(-1).unbind()
        weighted = [
            label.weight * loss for label, loss in zip(self.labels, losses_by_label, strict=True)
        ]
        return torch.stack(weighted).sum()

    def whole_loss(
        self, y: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None
    ) -> float:
        """`loss` over a whole split: logloss, or the mean squared error of unclipped scores, in units of `scale`."""
        total = 0.0
        targets = self._by_label(y)
        scores = self._by_label(score)
        for label, target, z in zip(self.labels, targets, scores, strict=True):
            if label.task == "binary":
                loss = logloss_from_logits(target, label.in_sample(z), weight=weight)
            else:
                loss = float(np.average((z - target / label.scale) ** 2, weights=weight))
            total += label.weight * loss
        return total

    def metrics(
        self,
        y: np.ndarray,
        score: np.ndarray,
        group: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        one_class: bool = False,
    ) -> dict[str, float]:
        """All metrics over a whole split: the main label's by name, the others' as `NAME.metric`.

        With `one_class`, a binary label with only one class gets the metrics that are defined,
        instead of an error.
        """
        targets = self._by_label(y)
        scores = self._by_label(score)
        metrics = self._metrics_of_label(targets[0], scores[0], group, weight, one_class)
        for (name, label), target, z in zip(
            self.more.items(), targets[1:], scores[1:], strict=True
        ):
            try:
                metrics_of_label = label._metrics_of_label(target, z, group, weight, one_class)
            except DataError as e:
                raise DataError(f"label {name!r}: ", *e.args) from None
            for metric, value in metrics_of_label.items():
                if metric != "rows":
                    metrics[f"{name}.{metric}"] = value
        return metrics

    def _metrics_of_label(
        self,
        y: np.ndarray,
        score: np.ndarray,
        group: np.ndarray | None,
        weight: np.ndarray | None,
        one_class: bool,
    ) -> dict[str, float]:
        """The metrics of this label alone."""
        if self.sampled is not None:
            weight = self.sampled.log_weights(y, weight)
        if self.task == "binary":
            return binary_metrics(y, score, group=group, weight=weight, one_class=one_class)
        prediction = score * self.scale
        if self.prediction_range is not None:
            prediction = np.clip(prediction, *self.prediction_range)
        return regression_metrics(y, prediction, group=group, weight=weight)


def evaluate(
    network: nn.Module,
    table: EncodedTable,
    objective: Objective,
    group: np.ndarray | None = None,
    *,
    loss: bool = False,
    scored: Callable[[int], None] | None = None,
    scores: np.ndarray | None = None,
) -> dict[str, float]:
    """Metrics of a network over all rows of a table with targets, with `group` also group AUC.

    Processes that train together (`current_group`) each score a part of the rows, and process 0
    computes the metrics of all of them. With `loss` one more is the weighted sum of the labels'
    losses. In one process `scored` is called with the number of rows of each batch that is scored;
    `scores` are those of all rows, if they are known.

    Errors:
        TrainingError: a score is not finite because training diverged.
    """
    if table.y is None:
        raise ConfigError("evaluation needs targets, but the encoded table has none")
    processes = current_group()
    if scores is None and processes is not None:
        scores = _scores_of_all_processes(network, table, processes)
        metrics = None
        if processes.rank == 0:
            metrics = _metrics(table, scores, objective, group, loss=loss)
        broadcast: dict[str, float] = processes.all_gather_object(metrics)[0]
        return dict(broadcast)
    if scores is None:
        batches = table.batches(SCORING_BATCH)
        if scored is not None:
            batches = _counted(batches, scored)
        scores = score_batches(network, batches)
    return _metrics(table, scores, objective, group, loss=loss)


def _scores_of_all_processes(
    network: nn.Module, table: EncodedTable, processes: ProcessGroup
) -> np.ndarray:
    """The scores of all rows [N], or [N, T] of several labels, of which each process computes a part."""
    starts = [*batch_starts(len(table), SCORING_BATCH), len(table)]
    low, high = BatchShard(processes.rank, processes.size).of(len(starts) - 1)
    edges = starts[low : high + 1]
    batches = (table.batch(slice(start, end)) for start, end in pairwise(edges))
    local_scores = torch.from_numpy(score_batches(network, batches))
    lengths = processes.all_gather(torch.tensor(len(local_scores))).tolist()
    labels = table.targets.shape[1]
    scores = processes.all_gather_v(local_scores.reshape(-1, labels), lengths)
    if labels == 1:
        scores = scores[:, 0]
    return scores.numpy()


def _metrics(
    table: EncodedTable,
    scores: np.ndarray,
    objective: Objective,
    group: np.ndarray | None,
    *,
    loss: bool,
) -> dict[str, float]:
    """Metrics of a table's rows by their scores, which must be finite."""
    is_finite = np.isfinite(scores)
    if not is_finite.all():
        num_wrong = int((~is_finite).reshape(len(scores), -1).any(axis=1).sum())
        raise TrainingError(
            f"the model's scores must stay finite, but those of {num_wrong} of {len(scores)} rows are not: training "
            "diverged, lower learning_rate or set clip_norm"
        )
    y = np.asarray(table.y, dtype=np.float64)
    metrics = dict(objective.metrics(y, scores, group, table.weight))
    if loss:
        metrics["loss"] = objective.whole_loss(y, scores, table.weight)
    return metrics


def _counted(
    batches: Iterable[tuple[Batch, Tensor | None]], scored: Callable[[int], None]
) -> Iterator[tuple[Batch, Tensor | None]]:
    """The batches; after each the number of its rows is told."""
    for batch, y in batches:
        yield batch, y
        scored(batch.size)


def monitored(settings: TrainingSettings, objective: Objective, *, grouped: bool) -> str:
    """The validation metric for early stopping; a ConfigError if the task does not have it, or there are no groups."""
    known = [metric.name for metric in metrics_of(objective.task) if metric.watched]
    default = known[0] if settings.gives_probabilities else GROUP_METRICS[objective.task]
    monitor = settings.monitor or default
    if monitor not in known:
        raise ConfigError(
            f"monitor must be one of {', '.join(known)} for a {objective.task} label, found {monitor!r}"
        )
    if METRICS[monitor].group_values is not None and not grouped:
        raise ConfigError(f"monitor = {monitor!r} needs groups: set user or group in the schema")
    if not settings.gives_probabilities and METRICS[monitor].aspect != "ranking":
        raise ConfigError(
            f"monitor = {monitor!r} looks at the size of predictions, but training.loss = {settings.loss!r} teaches "
            f"their order alone: set monitor = {default!r}, or loss = 'combined'"
        )
    return monitor
