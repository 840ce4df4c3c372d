"""All metrics of a task at once, over a whole split, never averaged over batches; their registry. Letter: N rows."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, cast

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
from fieldwise.evaluation.bootstrap import MetricName
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.evaluation.ranking import NoMixedGroupError, auc, group_auc


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric's name and uses; `binary_metrics` and `regression_metrics` compute it.

    Args:
        name: its key in dictionaries of metrics, in recipes and records.
        shown: its name in tables and figures.
        tasks: of the labels that have it.
        higher: whether higher is better.
        watched: whether early stopping may use it (`training.monitor`).
        compared: whether `compare` has a column for it.
    """

    name: str
    shown: str
    tasks: tuple[Literal["binary", "regression"], ...]
    higher: bool
    watched: bool = True
    compared: bool = False


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(name="auc", shown="AUC", tasks=("binary",), higher=True, compared=True),
        Metric(name="logloss", shown="logloss", tasks=("binary",), higher=False, compared=True),
        Metric(name="gauc", shown="group AUC", tasks=("binary",), higher=True),
        Metric(
            name="ece", shown="ECE", tasks=("binary",), higher=False, watched=False, compared=True
        ),
        Metric(name="rmse", shown="RMSE", tasks=("regression",), higher=False, compared=True),
        Metric(name="mae", shown="MAE", tasks=("regression",), higher=False),
        Metric(name="loss", shown="loss", tasks=("binary", "regression"), higher=False),
    )
}
"""All metrics by name; the first of each task is its default."""


def compared(task: str) -> tuple[MetricName, ...]:
    """Names of the metrics that `compare` shows, the main one first."""
    return tuple(
        cast(MetricName, m.name) for m in METRICS.values() if task in m.tasks and m.compared
    )


def shown_name(name: str) -> str:
    """A metric's name for display; an unknown name is returned unchanged."""
    return METRICS[name].shown if name in METRICS else name


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
    positive, z = labelled_column(y, logit, "logits")
    w = weight_column(weight, len(z))
    if w is not None and not w.all():
        is_weighted = w > 0
        positive = positive[is_weighted]
        z = z[is_weighted]
        if group is not None:
            group = np.asarray(group)[is_weighted]
        w = w[is_weighted]
    has_both_classes = 0 < positive.sum() < len(positive)
    if not one_class:
        require_both_classes(positive, "evaluation of a binary label")

    p = sigmoid(z)
    rate = float(np.average(positive, weights=w))
    metrics: dict[str, float] = {}
    if has_both_classes:
        metrics["auc"] = auc(positive, z, weight=w)
    metrics["logloss"] = float(np.average(row_losses(positive, z), weights=w))
    if has_both_classes:
        metrics["normalized_entropy"] = metrics["logloss"] / entropy(rate)

    # of a million rows scikit-learn's four functions take five to eight times as long
    predicted = p >= 0.5
    right = _mass(positive & predicted, w)
    chosen = _mass(predicted, w)
    positives = _mass(positive, w)
    metrics |= {
        "ece": calibration_error(positive, p, weight=w),
        "accuracy": float(np.average(positive == predicted, weights=w)),
        "precision": right / chosen if chosen else 0.0,
        "recall": right / positives if positives else 0.0,
        "f1": 2 * right / (chosen + positives) if chosen + positives else 0.0,
        "positive_rate": rate,
        "mean_prediction": float(np.average(p, weights=w)),
        "rows": len(positive),
    }
    if group is not None and has_both_classes:
        metrics |= _group_metrics(positive, z, group, w)
    return metrics


def _mass(is_counted: NDArray[np.bool_], w: NDArray[np.float64] | None) -> float:
    """The number of rows, or the sum of their weights."""
    return float(is_counted.sum() if w is None else w[is_counted].sum())


def _group_metrics(
    positive: ArrayLike, z: ArrayLike, group: ArrayLike, w: ArrayLike | None
) -> dict[str, float]:
    try:
        within = asdict(group_auc(positive, z, group, weight=w))
    except NoMixedGroupError:
        return {"gauc_groups": 0}
    return {
        "gauc": within.pop("value"),
        **{f"gauc_{name}": value for name, value in within.items()},
    }


def regression_metrics(
    y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None
) -> dict[str, float]:
    """All metrics of a regression label: rmse and mae (in the targets' unit) and rows; `weight` as in `binary_metrics`.

    >>> regression_metrics([1, 2], [1, 4])["mae"]
    1.0
    """
    w = weight_column(weight, len(np.asarray(y)))
    rows = len(np.asarray(y)) if w is None else int((w > 0).sum())
    return {
        "rmse": rmse(y, prediction, weight=weight),
        "mae": mae(y, prediction, weight=weight),
        "rows": rows,
    }


def rmse(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Root mean squared error, with optional row weights.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity.

    >>> rmse([1, 2, 3, 4], [1, 2, 3, 6])
    1.0
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    w = weight_column(weight, len(target))
    return math.sqrt(float(np.average(np.square(predicted - target), weights=w)))


def mae(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean absolute error; errors as for `rmse`.

    >>> mae([1, 2, 3, 4], [1, 2, 3, 6])
    0.5
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return float(np.average(np.abs(predicted - target), weights=weight_column(weight, len(target))))
