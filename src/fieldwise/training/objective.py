"""What scores mean: the loss that trains them and the metrics that judge them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError, TrainingError
from fieldwise.evaluation import binary_metrics, logloss_from_logits, regression_metrics
from fieldwise.schema.label import Label, Task
from fieldwise.scoring.batches import SCORING_BATCH, score_batches

__all__ = ["Objective", "evaluate"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the scores mean: of the one label, or of the main label with `more` beside it.

    Args:
        task: `binary` trains with cross-entropy on the logit, `regression` with squared error.
        prediction_range: predictions of a regression are clipped to it in metrics, never in the loss.
        weight: of this label's loss in the sum over the labels.
        more: the objectives of further labels by name. Scores and targets are then [N, T], the main label's first.

    >>> both = Objective(more={"minutes": Objective(task="regression", weight=0.5)})
    >>> float(both.loss(torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 1.0]])))  # log 2 + 0.5 * 2^2
    2.6931471824645996
    """

    task: Task = "binary"
    prediction_range: tuple[float, float] | None = None
    weight: float = 1.0
    more: Mapping[str, "Objective"] = field(default_factory=dict)

    @classmethod
    def of(cls, label: Label, *more: Label) -> "Objective":
        """What a schema's labels ask for, the main one first."""
        return cls(
            task=label.task,
            prediction_range=label.range,
            weight=label.weight,
            more={other.name: cls.of(other) for other in more},
        )

    def loss(self, logit: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The mean loss over the batch, summed over the labels by their weights: a scalar.

        Args:
            logit: scores [B], or [B, T] with several labels.
            y: their targets.
            weight: [B], by which each row's loss is multiplied before the mean; 1 in the mean over all training rows.
        """
        if not self.more:
            return self.weight * self._mean_loss(logit, y, weight)
        columns = zip(self.each(), logit.unbind(1), y.unbind(1), strict=True)
        return torch.stack([o.weight * o._mean_loss(z, target, weight) for o, z, target in columns]).sum()

    def weighted(self, losses: Tensor) -> Tensor:
        """The sum over the labels of one loss each ([T], or a scalar of the one label), by their weights: a scalar."""
        if not self.more:
            return self.weight * losses
        return torch.stack([o.weight * loss for o, loss in zip(self.each(), losses.unbind(), strict=True)]).sum()

    def whole_loss(self, y: np.ndarray, score: np.ndarray, weight: np.ndarray | None = None) -> float:
        """What `loss` is over a whole split: logloss, or the mean squared error of scores that are not clipped."""
        columns = zip(self.each(), _columns(y), _columns(score), strict=True)
        return sum(
            o.weight
            * (
                logloss_from_logits(target, z, weight=weight)
                if o.task == "binary"
                else float(np.average((z - target) ** 2, weights=weight))
            )
            for o, target, z in columns
        )

    def metrics(
        self,
        y: np.ndarray,
        score: np.ndarray,
        group: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        *,
        one_class: bool = False,
    ) -> dict[str, float]:
        """All metrics of the tasks over whole splits: the main label's by their names, others' as `NAME.metric`.

        With `one_class`, binary labels of one class have the metrics that then have a value, instead of an error.
        """
        found = self._own_metrics(_columns(y)[0], _columns(score)[0], group, weight, one_class)
        for (name, other), target, z in zip(self.more.items(), _columns(y)[1:], _columns(score)[1:], strict=True):
            try:
                own = other._own_metrics(target, z, group, weight, one_class)
            except DataError as e:
                raise DataError(f"label {name!r}: {e}") from None
            found |= {f"{name}.{metric}": value for metric, value in own.items() if metric != "rows"}
        return found

    def each(self) -> tuple["Objective", ...]:
        """The main label's objective and the others', in the labels' order."""
        return (self, *self.more.values())

    def _mean_loss(self, logit: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        if self.task == "binary":
            return F.binary_cross_entropy_with_logits(logit, y, weight=weight)
        if weight is None:
            return F.mse_loss(logit, y)
        return (weight * F.mse_loss(logit, y, reduction="none")).mean()

    def _own_metrics(
        self, y: np.ndarray, score: np.ndarray, group: np.ndarray | None, weight: np.ndarray | None, one_class: bool
    ) -> dict[str, float]:
        if self.task == "binary":
            return binary_metrics(y, score, group=group, weight=weight, one_class=one_class)
        if self.prediction_range is not None:
            score = np.clip(score, *self.prediction_range)
        return regression_metrics(y, score, weight=weight)


def evaluate(
    network: nn.Module,
    table: EncodedTable,
    objective: Objective,
    group: np.ndarray | None = None,
    *,
    loss: bool = False,
) -> dict[str, float]:
    """Metrics of a network over all rows of a table with targets.

    Args:
        network: gives scores [B], or [B, T] with several labels.
        table: the rows.
        objective: what the scores mean.
        group: of each row, for group AUC.
        loss: whether `loss`, the labels' losses summed by their weights, is among the metrics.

    Errors:
        TrainingError: a score is not finite, since training diverged.
    """
    if table.y is None:
        raise ConfigError("evaluation needs targets, but the encoded table has none")
    scores = score_batches(network, table.batches(SCORING_BATCH))
    if not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).reshape(len(scores), -1).any(axis=1).sum())
        raise TrainingError(
            f"the model's scores must stay finite, but those of {wrong} of {len(scores)} rows are not: training "
            "diverged, lower learning_rate or set clip_norm"
        )
    y = np.asarray(table.y, dtype=np.float64)
    metrics = objective.metrics(y, scores, group, table.weight)
    return metrics | {"loss": objective.whole_loss(y, scores, table.weight)} if loss else metrics


def _columns(values: np.ndarray) -> list[np.ndarray]:
    """The values of each label [N], the main one's first."""
    return [values] if values.ndim == 1 else list(values.T)
