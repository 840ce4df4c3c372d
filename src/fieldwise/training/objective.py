"""Objectives: the loss and metrics of each label, and whether a network and settings fit them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.data.shuffled_rows import BatchShard
from fieldwise.data.table import EncodedTable, batch_starts
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation import binary_metrics, logloss_from_logits, regression_metrics
from fieldwise.evaluation.metrics import METRICS
from fieldwise.layout import Batch
from fieldwise.schema import Label, Task
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.settings import TrainingSettings


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
            more={other.name: cls.of(other) for other in more},
        )

    def loss(self, logit: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The weighted sum of the labels' mean losses over a batch.

        Scores and targets [B, T], or [B] of one label; row weights [B].
        """
        losses = list[Tensor]()
        labels = (self, *self.more.values())
        columns = (values.reshape(-1, len(labels)).unbind(1) for values in (logit, y))
        for one, z, target in zip(labels, *columns, strict=True):
            if one.task == "binary":
                loss = F.binary_cross_entropy_with_logits(z, target, weight=weight)
            elif weight is None:
                loss = F.mse_loss(z, target / one.scale)
            else:
                loss = (weight * F.mse_loss(z, target / one.scale, reduction="none")).mean()
            losses.append(one.weight * loss)
        return torch.stack(losses).sum()

    def weighted(self, losses: Tensor) -> Tensor:
        """The weighted sum of the labels' losses ([T], or a scalar for one label): a scalar."""
        each = zip((self, *self.more.values()), losses.reshape(-1).unbind(), strict=True)
        return torch.stack([o.weight * loss for o, loss in each]).sum()

    def whole_loss(
        self, y: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None
    ) -> float:
        """`loss` over a whole split: logloss, or the mean squared error of unclipped scores, in units of `scale`."""
        total = 0.0
        each = (self, *self.more.values())
        for one, target, z in zip(
            each, *(values.reshape(-1, len(each)).T for values in (y, score)), strict=True
        ):
            if one.task == "binary":
                loss = logloss_from_logits(target, z, weight=weight)
            else:
                loss = float(np.average((z - target / one.scale) ** 2, weights=weight))
            total += one.weight * loss
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
        result = dict[str, float]()
        each = (self, *self.more.values())
        columns = (values.reshape(-1, len(each)).T for values in (y, score))
        for name, one, target, z in zip(("", *self.more), each, *columns, strict=True):
            try:
                if one.task == "binary":
                    own = binary_metrics(target, z, group=group, weight=weight, one_class=one_class)
                else:
                    z = z * one.scale
                    z = z if one.prediction_range is None else np.clip(z, *one.prediction_range)
                    own = regression_metrics(target, z, weight=weight)
            except DataError as e:
                if not name:
                    raise
                raise DataError(f"label {name!r}: {e}") from None
            result |= (
                {f"{name}.{metric}": value for metric, value in own.items() if metric != "rows"}
                if name
                else own
            )
        return result


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
    processes = current_group() if scores is None else None
    metrics = None
    if processes is not None:
        starts = [*batch_starts(len(table), SCORING_BATCH), len(table)]
        low, high = BatchShard(processes.rank, processes.size).of(len(starts) - 1)
        edges = starts[low : high + 1]
        labels = table.targets.shape[1]
        own = torch.from_numpy(
            score_batches(network, (table.batch(slice(*some)) for some in pairwise(edges)))
        )
        lengths = processes.all_gather(torch.tensor(len(own))).tolist()
        every = processes.all_gather_v(own.reshape(-1, labels), lengths)
        scores = (every[:, 0] if labels == 1 else every).numpy()
    elif scores is None:
        batches = table.batches(SCORING_BATCH)
        scores = score_batches(network, batches if scored is None else _counted(batches, scored))
    if processes is None or processes.rank == 0:
        if not np.isfinite(scores).all():
            wrong = int((~np.isfinite(scores)).reshape(len(scores), -1).any(axis=1).sum())
            raise TrainingError(
                f"the model's scores must stay finite, but those of {wrong} of {len(scores)} rows are not: training "
                "diverged, lower learning_rate or set clip_norm"
            )
        y = np.asarray(table.y, dtype=np.float64)
        metrics = objective.metrics(y, scores, group, table.weight)
        metrics |= {"loss": objective.whole_loss(y, scores, table.weight)} if loss else {}
    result: Any = metrics if processes is None else processes.all_gather_object(metrics)[0]
    return dict(result)


def _counted(
    batches: Iterable[tuple[Batch, Tensor | None]], scored: Callable[[int], None]
) -> Iterator[tuple[Batch, Tensor | None]]:
    for batch, y in batches:
        yield batch, y
        scored(batch.size)


def monitored(settings: TrainingSettings, objective: Objective, *, grouped: bool) -> str:
    """The validation metric for early stopping; a ConfigError if the task does not have it, or there are no groups."""
    known = [
        metric.name
        for metric in METRICS.values()
        if objective.task in metric.tasks and metric.watched
    ]
    monitor = settings.monitor or known[0]
    if monitor not in known:
        raise ConfigError(
            f"monitor must be one of {', '.join(known)} for a {objective.task} label, found {monitor!r}"
        )
    if monitor == "gauc" and not grouped:
        raise ConfigError("monitor = 'gauc' needs groups: set user or group in the schema")
    return monitor
