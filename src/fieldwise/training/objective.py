"""What scores mean: the loss that trains them and the metrics that judge them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.data.encoded import EncodedTable
from fieldwise.errors import ConfigError, TrainingError
from fieldwise.evaluation import binary_metrics, regression_metrics
from fieldwise.models.scoring import SCORING_BATCH, score_batches
from fieldwise.schema import Label

__all__ = ["Objective", "evaluate"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the scores mean.

    Args:
        task: `binary` trains with cross-entropy on the logit, `regression` with squared error.
        prediction_range: predictions of a regression are clipped to it in metrics.
    """

    task: Literal["binary", "regression"] = "binary"
    prediction_range: tuple[float, float] | None = None

    @classmethod
    def of(cls, label: Label) -> "Objective":
        """What a label asks for."""
        return cls(task=label.task, prediction_range=label.range)

    def loss(self, logit: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the batch, a scalar."""
        if self.task == "binary":
            return F.binary_cross_entropy_with_logits(logit, y)
        return F.mse_loss(logit, y)

    def metrics(self, y: np.ndarray, score: np.ndarray, group: np.ndarray | None = None) -> dict[str, float]:
        """All metrics of the task over whole splits."""
        if self.task == "binary":
            return binary_metrics(y, score, group=group)
        if self.prediction_range is not None:
            score = np.clip(score, *self.prediction_range)
        return regression_metrics(y, score)


def evaluate(
    network: nn.Module, table: EncodedTable, objective: Objective, group: np.ndarray | None = None
) -> dict[str, float]:
    """Metrics of a network over all rows of a table with targets.

    Errors:
        TrainingError: a score is not finite, since training diverged.
    """
    if table.y is None:
        raise ConfigError("evaluation needs targets, but the encoded table has none")
    scores = score_batches(network, table.batches(SCORING_BATCH))
    if not np.isfinite(scores).all():
        wrong = int((~np.isfinite(scores)).sum())
        raise TrainingError(
            f"the model's scores must stay finite, but those of {wrong} of {len(scores)} rows are not: training "
            "diverged, lower learning_rate or set clip_norm"
        )
    return objective.metrics(np.asarray(table.y, dtype=np.float64), scores, group)
