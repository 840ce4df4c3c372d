"""Metrics as objects, their registry, and all of a task at once, over a whole split. Letters: N rows, G groups."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.binary import (
    entropy,
    labelled_column,
    paired_columns,
    require_both_classes,
    row_losses,
    sigmoid,
    weight_column,
)
from fieldwise.evaluation.calibration import Calibration, calibration_error
from fieldwise.evaluation.ranking import (
    GroupAUC,
    NoMixedGroupError,
    auc,
    group_auc,
    is_grade,
    mixed_group_values,
    ndcg_values,
)
from fieldwise.evaluation.resampling import (
    Resampling,
    resampled_auc,
    resampled_average_precision,
    resampled_ece,
)
from fieldwise.schema.label import Task


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredRows:
    """The checked rows of which a metric is computed.

    Args:
        y: labels, of a binary label 0 and 1, [N].
        score: logits, or for a regression predictions in the labels' unit, [N]; for
            `Metric.row_values` also those of several models, [K, N].
        group: the group of each row, [N].
        weight: row weights, [N]; above 0 for a binary label.
    """

    y: NDArray[np.float64]
    score: NDArray[np.float64]
    group: NDArray[np.generic] | None = None
    weight: NDArray[np.float64] | None = None

    @cached_property
    def positive(self) -> NDArray[np.bool_]:
        """Which rows are positive, [N]."""
        positive: NDArray[np.bool_] = self.y == 1
        return positive

    @cached_property
    def probability(self) -> NDArray[np.float64]:
        """The probability of a positive, [N]."""
        return sigmoid(self.score)

    @cached_property
    def predicted(self) -> NDArray[np.bool_]:
        """Which rows are predicted to be positive, at probability .5, [N]."""
        return self.probability >= 0.5

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Negative log-likelihood in nats, [N]."""
        return row_losses(self.positive, self.score)

    @cached_property
    def within_groups(self) -> GroupAUC | None:
        """Group AUC; None if each group has one class only."""
        assert self.group is not None
        try:
            return group_auc(self.positive, self.score, self.group, weight=self.weight)
        except NoMixedGroupError:
            return None

    def mean(self, values: NDArray[np.bool_] | NDArray[np.float64]) -> float:
        """The mean of values of the rows, [N], with their weights."""
        return float(np.average(values, weights=self.weight))

    def mass(self, is_counted: NDArray[np.bool_]) -> float:
        """The number of rows, or the sum of their weights."""
        return float(is_counted.sum() if self.weight is None else self.weight[is_counted].sum())


Aspect = Literal["probability", "ranking", "constant", "decision", "error"]
"""What a metric looks at: probabilities, order, gain over a constant prediction, decisions at .5, size of errors."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric: how it is called and computed, and who uses it.

    Args:
        name: its key in dictionaries of metrics, in recipes and records.
        title: its name in tables and figures.
        long_title: its name where there is room; as `title` if omitted.
        tasks: of the labels that have it; binary ones if omitted.
        aspect: metrics of one aspect share a chart, and stand together in the report.
        higher: whether higher is better.
        row_values: a value of each row, [N] or [K, N], of which the metric is the mean.
        root: whether it is the square root of that mean.
        measure: its value for some rows, where it is no such mean; None where it is undefined for
            them. Without either function it is computed elsewhere, of all labels together.
        resampling: its value by how often each row is drawn, where that is quicker than `measure`
            of the drawn rows.
        group_values: the values [G] of groups and their weights [G], of labels, scores, groups
            and row weights, where the metric is their mean: it needs groups, and the bootstrap draws them whole.
        both_classes: whether it needs rows of both classes.
        least: its lower bound, which also bounds its interval.
        most: its upper bound, likewise.
        evaluated: whether `binary_metrics` and `regression_metrics` return it; the report has all.
        watched: whether early stopping may use it (`training.monitor`).
        compared: whether `compare` has a column for it.
        interval: whether the report shows its interval of the bootstrap.
    """

    name: str
    title: str
    long_title: str = ""
    tasks: tuple[Task, ...] = ("binary",)
    aspect: Aspect
    higher: bool
    row_values: Callable[[ScoredRows], NDArray[np.float64]] | None = None
    root: bool = False
    measure: Callable[[ScoredRows], float | None] | None = None
    resampling: Resampling | None = None
    group_values: (
        Callable[
            [ArrayLike, ArrayLike, ArrayLike, ArrayLike | None],
            tuple[NDArray[np.float64], NDArray[Any]],
        ]
        | None
    ) = None
    both_classes: bool = False
    least: float = 0.0
    most: float = math.inf
    evaluated: bool = True
    watched: bool = False
    compared: bool = False
    interval: bool = True

    def of(self, rows: ScoredRows) -> float | None:
        """Its value for rows; None where it is undefined for them, or needs groups that they do not have."""
        if self.group_values is not None and rows.group is None:
            return None
        if self.both_classes and not 0 < rows.positive.sum() < len(rows.y):
            return None
        if self.measure is not None:
            return self.measure(rows)
        if self.row_values is None:
            return None
        return float(self.of_mean(rows.mean(self.row_values(rows))))

    def of_mean(self, mean: Any) -> Any:
        """Its value by the mean of `row_values`."""
        return np.sqrt(mean) if self.root else mean

    @property
    def is_of_rows(self) -> bool:
        """Whether it is computed of a label's rows, and not of all labels together."""
        return self.measure is not None or self.row_values is not None

    def value(self, rows: ScoredRows) -> float:
        """Its value for rows for which it is defined."""
        value = self.of(rows)
        assert value is not None, self.name
        return value


def _group_auc(rows: ScoredRows) -> float | None:
    return None if rows.within_groups is None else rows.within_groups.value


def _ndcg(rows: ScoredRows) -> float | None:
    """The mean NDCG@10 of groups, of labels that are grades."""
    if rows.group is None or not is_grade(rows.y).all():
        return None
    values, mass = ndcg_values(rows.y, rows.score, rows.group, rows.weight)
    return float(np.average(values, weights=mass)) if len(values) else None


def _average_precision(rows: ScoredRows) -> float:
    from sklearn.metrics import average_precision_score  # here: scikit-learn loads slowly

    return float(average_precision_score(rows.y, rows.score, sample_weight=rows.weight))


def _brier(rows: ScoredRows) -> float:
    from sklearn.metrics import brier_score_loss  # here: scikit-learn loads slowly

    return float(brier_score_loss(rows.y, rows.probability, sample_weight=rows.weight))


# of a million rows scikit-learn's functions of decisions take five to eight times as long
def _accuracy(rows: ScoredRows) -> float:
    return rows.mean(rows.positive == rows.predicted)


def _precision(rows: ScoredRows) -> float:
    chosen = rows.mass(rows.predicted)
    return rows.mass(rows.positive & rows.predicted) / chosen if chosen else 0.0


def _recall(rows: ScoredRows) -> float:
    positives = rows.mass(rows.positive)
    return rows.mass(rows.positive & rows.predicted) / positives if positives else 0.0


def _f1(rows: ScoredRows) -> float:
    chosen_and_positives = rows.mass(rows.predicted) + rows.mass(rows.positive)
    if not chosen_and_positives:
        return 0.0
    return 2 * rows.mass(rows.positive & rows.predicted) / chosen_and_positives


def _r2(rows: ScoredRows) -> float | None:
    variance = rows.mean((rows.y - rows.mean(rows.y)) ** 2)
    if variance == 0:
        return None
    return 1 - rows.mean((rows.y - rows.score) ** 2) / variance


def _of_decisions(name: str, title: str, measure: Callable[[ScoredRows], float]) -> Metric:
    """A metric of the decisions at a probability of .5."""
    return Metric(
        name=name,
        title=title,
        aspect="decision",
        higher=True,
        measure=measure,
        interval=False,
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="auc",
            most=1.0,
            title="AUC",
            aspect="ranking",
            higher=True,
            measure=lambda rows: auc(rows.positive, rows.score, weight=rows.weight),
            resampling=resampled_auc,
            both_classes=True,
            watched=True,
            compared=True,
        ),
        Metric(
            name="logloss",
            title="logloss",
            aspect="probability",
            higher=False,
            row_values=lambda rows: rows.losses,
            watched=True,
            compared=True,
        ),
        Metric(
            name="brier",
            title="Brier score",
            aspect="probability",
            higher=False,
            row_values=lambda rows: np.square(rows.probability - rows.positive),
            measure=_brier,
            evaluated=False,
        ),
        Metric(
            name="normalized_entropy",
            title="normalized entropy",
            aspect="constant",
            higher=False,
            measure=lambda rows: rows.mean(rows.losses) / entropy(rows.mean(rows.positive)),
            both_classes=True,
            interval=False,
        ),
        Metric(
            name="ece",
            most=1.0,
            title="ECE",
            long_title="expected calibration error",
            aspect="probability",
            higher=False,
            measure=lambda rows: calibration_error(
                rows.positive, rows.probability, weight=rows.weight
            ),
            resampling=resampled_ece,
            compared=True,
        ),
        _of_decisions("accuracy", "accuracy at .5", _accuracy),
        _of_decisions("precision", "precision at .5", _precision),
        _of_decisions("recall", "recall at .5", _recall),
        _of_decisions("f1", "F1 at .5", _f1),
        Metric(
            name="gauc",
            most=1.0,
            title="group AUC",
            aspect="ranking",
            higher=True,
            measure=_group_auc,
            group_values=mixed_group_values,
            both_classes=True,
            watched=True,
        ),
        Metric(
            name="average_precision",
            most=1.0,
            title="average precision",
            aspect="ranking",
            higher=True,
            measure=_average_precision,
            resampling=resampled_average_precision,
            both_classes=True,
            evaluated=False,
        ),
        Metric(
            name="rmse",
            title="RMSE",
            tasks=("regression",),
            aspect="error",
            higher=False,
            row_values=lambda rows: np.square(rows.score - rows.y),
            root=True,
            watched=True,
            compared=True,
        ),
        Metric(
            name="mae",
            title="MAE",
            tasks=("regression",),
            aspect="error",
            higher=False,
            row_values=lambda rows: np.abs(rows.score - rows.y),
            watched=True,
        ),
        Metric(
            name="ndcg",
            most=1.0,
            title="NDCG@10",
            tasks=("regression",),
            aspect="ranking",
            higher=True,
            measure=_ndcg,
            group_values=ndcg_values,
            watched=True,
        ),
        Metric(
            name="r2",
            title="R²",
            tasks=("regression",),
            aspect="error",
            higher=True,
            measure=_r2,
            least=-math.inf,
            evaluated=False,
            interval=False,
        ),
        Metric(
            name="loss",
            title="loss",
            tasks=("binary", "regression"),
            aspect="probability",
            higher=False,
            watched=True,
        ),
    )
}
"""All metrics by name, those of a task with the most important ones first: the first one is its default."""


def metrics_of(task: str) -> list[Metric]:
    """The metrics of a label's task."""
    return [metric for metric in METRICS.values() if task in metric.tasks]


def compared(task: str) -> tuple[str, ...]:
    """Names of the metrics that `compare` shows, the main one first."""
    return tuple(metric.name for metric in metrics_of(task) if metric.compared)


def main_metrics() -> list[str]:
    """Names of the metrics for lines with room for few: those that early stopping may use and `compare` shows."""
    return [metric.name for metric in METRICS.values() if metric.watched and metric.compared]


LOSSES = {"binary": "logloss", "regression": "rmse"}
"""By task, the metric by which models and baselines are chosen; lower is better."""


GROUP_METRICS = {"binary": "gauc", "regression": "ndcg"}
"""By task, the metric of the order within groups."""


def shown_name(name: str) -> str:
    """A metric's name for display; an unknown name is returned unchanged."""
    return METRICS[name].title if name in METRICS else name


def binary_metrics(
    y: ArrayLike,
    logit: ArrayLike,
    *,
    group: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    one_class: bool = False,
) -> dict[str, float]:
    """All metrics of a binary label.

    Args:
        y: labels 0 and 1, [N].
        logit: finite logits, [N].
        group: optional group of each row, [N]; groups of one class are skipped and counted.
        weight: optional row weights, at least 0, [N]; `rows` then counts those with a positive
            weight.
        one_class: for rows of only one class, return the metrics that are defined instead of
            raising an error.

    Returns:
        auc, logloss (nats), normalized_entropy, ece (expected calibration error over 15 bins of
        equally many rows, `fieldwise.evaluation.calibration.calibration_error`), and at probability
        .5 accuracy, precision, recall and f1 (each 0 if it would divide by zero), positive_rate,
        mean_prediction (equal to positive_rate if calibrated), rows; with groups also gauc,
        gauc_groups, gauc_skipped_groups and gauc_skipped_rows, or only gauc_groups = 0 if every
        group has one class. Rows of one class, if allowed, have no auc, normalized_entropy or group
        metrics.

    Errors:
        DataError: one class only, unless `one_class`; no row; lengths that differ; NaN or infinity.

    >>> metrics = binary_metrics([0, 0, 1, 1], [-2.0, 0.5, 0.1, 3.0])
    >>> metrics["auc"], metrics["precision"], metrics["rows"]
    (0.75, 0.6666666666666666, 4)
    """
    rows = scored_rows(y, logit, "binary", group=group, weight=weight)
    if not one_class:
        require_both_classes(rows.positive, "evaluation of a binary label")

    metrics = [metric for metric in metrics_of("binary") if metric.evaluated]
    figures = values_of([metric for metric in metrics if metric.group_values is None], rows)
    figures["positive_rate"] = rows.mean(rows.positive)
    figures["mean_prediction"] = rows.mean(rows.probability)
    figures["rows"] = len(rows.y)
    if rows.weight is not None:  # else they are the rows' share of positives
        figures["positive_rows"] = int(rows.positive.sum())
    figures |= values_of([metric for metric in metrics if metric.group_values is not None], rows)
    return figures | _group_counts(rows)


def values_of(metrics: Iterable[Metric], rows: ScoredRows) -> dict[str, float]:
    """The values of metrics by name, without those that are undefined for the rows."""
    values = {}
    for metric in metrics:
        value = metric.of(rows)
        if value is not None:
            values[metric.name] = value
    return values


def _group_counts(rows: ScoredRows) -> dict[str, float]:
    """How many groups are part of group AUC; nothing without groups, or for rows of one class."""
    if rows.group is None or not 0 < rows.positive.sum() < len(rows.y):
        return {}
    if rows.within_groups is None:
        return {"gauc_groups": 0}
    return {
        "gauc_groups": rows.within_groups.groups,
        "gauc_skipped_groups": rows.within_groups.skipped_groups,
        "gauc_skipped_rows": rows.within_groups.skipped_rows,
    }


def regression_metrics(
    y: ArrayLike,
    prediction: ArrayLike,
    *,
    group: ArrayLike | None = None,
    weight: ArrayLike | None = None,
) -> dict[str, float]:
    """All metrics of a regression label: rmse and mae (in the targets' unit) and rows; `weight` as in `binary_metrics`.

    With groups, of labels that are grades (whole numbers from 0 to 30), also ndcg: the mean of
    NDCG@10 over groups with a grade above 0.

    >>> regression_metrics([1, 2], [1, 4])["mae"]
    1.0
    """
    rows = scored_rows(y, prediction, "regression", group=group, weight=weight)
    figures = values_of([metric for metric in metrics_of("regression") if metric.evaluated], rows)
    figures["rows"] = len(rows.y) if rows.weight is None else int((rows.weight > 0).sum())
    return figures


def before_and_after(
    y: ArrayLike, logit: ArrayLike, calibration: Calibration, weight: ArrayLike | None = None
) -> dict[str, dict[str, float]]:
    """Metrics of a model's probabilities `before` and `after` calibration."""
    figures = {}
    for when, score in {"before": logit, "after": calibration.logit(logit)}.items():
        rows = scored_rows(y, score, "binary", weight=weight)
        figures[when] = values_of([METRICS[name] for name in ("logloss", "brier", "ece")], rows)
        figures[when]["mean_prediction"] = rows.mean(rows.probability)
        figures[when]["positive_rate"] = rows.mean(rows.positive)
    return figures


def scored_rows(
    y: ArrayLike,
    score: ArrayLike,
    task: Task,
    *,
    group: ArrayLike | None = None,
    weight: ArrayLike | None = None,
) -> ScoredRows:
    """Rows after a check of their values; for a binary label without those of weight 0.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity, a weight below 0.
    """
    if task == "regression":
        target, predicted = paired_columns(y, score, "predictions")
        return ScoredRows(
            y=target,
            score=predicted,
            group=None if group is None else np.asarray(group),
            weight=weight_column(weight, len(target)),
        )

    positive, z = labelled_column(y, score, "logits")
    w = weight_column(weight, len(z))
    groups = None if group is None else np.asarray(group)
    if w is not None and not w.all():
        is_weighted = w > 0
        positive = positive[is_weighted]
        z = z[is_weighted]
        if groups is not None:
            groups = groups[is_weighted]
        w = w[is_weighted]
    return ScoredRows(y=positive.astype(np.float64), score=z, group=groups, weight=w)


def rmse(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Root mean squared error, with optional row weights.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity.

    >>> rmse([1, 2, 3, 4], [1, 2, 3, 6])
    1.0
    """
    return METRICS["rmse"].value(scored_rows(y, prediction, "regression", weight=weight))


def mae(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean absolute error; errors as for `rmse`.

    >>> mae([1, 2, 3, 4], [1, 2, 3, 6])
    0.5
    """
    return METRICS["mae"].value(scored_rows(y, prediction, "regression", weight=weight))
