"""All metrics of a task at once, over a whole split, never averaged over batches. Letter: N rows."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.evaluation.binary import (
    decision_metrics,
    labelled_column,
    logloss_from_logits,
    mean_of,
    normalized_entropy_from_logits,
    paired_columns,
    require_both_classes,
    sigmoid,
    weight_column,
)
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.evaluation.ranking import NoMixedGroupError, auc, group_auc

__all__ = ["binary_metrics", "mae", "regression_metrics", "rmse"]


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
        weight: optional row weights, at least 0, [N]; `rows` then counts those with a positive weight.
        one_class: for rows of only one class, return the metrics that are defined instead of raising an error.

    Returns:
        auc, logloss (nats), normalized_entropy, ece (expected calibration error over 15 bins of equally many rows,
        `fieldwise.evaluation.calibration.calibration_error`), and at probability .5 accuracy, precision, recall and f1
        (each 0 if it would divide by zero), positive_rate, mean_prediction (equal to positive_rate if
        calibrated), rows; with groups also gauc, gauc_groups, gauc_skipped_groups and gauc_skipped_rows, or only
        gauc_groups = 0 if every group has one class. Rows of one class, if allowed, have no auc, normalized_entropy or
        group metrics.

    Errors:
        DataError: one class only, unless `one_class`; no row; lengths that differ; NaN or infinity.

    >>> metrics = binary_metrics([0, 0, 1, 1], [-2.0, 0.5, 0.1, 3.0])
    >>> metrics["auc"], metrics["precision"], metrics["rows"]
    (0.75, 0.6666666666666666, 4)
    """
    positive, z = labelled_column(y, logit, "logits")
    w = None if weight is None else weight_column(weight, len(z))
    if w is not None and not w.all():
        positive, z, group = positive[w > 0], z[w > 0], None if group is None else np.asarray(group)[w > 0]
        w = w[w > 0]
    both = 0 < positive.sum() < len(positive)
    if not one_class:
        require_both_classes(positive, "evaluation of a binary label")
    p = sigmoid(z)
    metrics: dict[str, float] = {"auc": auc(positive, z, weight=w)} if both else {}
    metrics["logloss"] = logloss_from_logits(positive, z, weight=w)
    if both:
        metrics["normalized_entropy"] = normalized_entropy_from_logits(positive, z, weight=w)
    metrics |= {
        "ece": calibration_error(positive, p, weight=w),
        **decision_metrics(positive, p, w),
        "positive_rate": mean_of(positive, w),
        "mean_prediction": mean_of(p, w),
        "rows": len(positive),
    }
    return metrics if group is None or not both else metrics | _group_metrics(positive, z, group, w)


def _group_metrics(
    positive: NDArray[np.bool_], z: NDArray[np.float64], group: ArrayLike, weight: NDArray[np.float64] | None
) -> dict[str, float]:
    """Group AUC with its groups, or only `gauc_groups` = 0 if every group has one class."""
    try:
        within = group_auc(positive, z, group, weight=weight)
    except NoMixedGroupError:
        return {"gauc_groups": 0}
    return {
        "gauc": within.value,
        "gauc_groups": within.groups,
        "gauc_skipped_groups": within.skipped_groups,
        "gauc_skipped_rows": within.skipped_rows,
    }


def regression_metrics(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> dict[str, float]:
    """All metrics of a regression label: rmse and mae (in the targets' unit) and rows; `weight` as in `binary_metrics`.

    >>> regression_metrics([1, 2], [1, 4])["mae"]
    1.0
    """
    rows = len(np.asarray(y)) if weight is None else int((weight_column(weight, len(np.asarray(y))) > 0).sum())
    return {"rmse": rmse(y, prediction, weight=weight), "mae": mae(y, prediction, weight=weight), "rows": rows}


def rmse(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Root mean squared error, with optional row weights.

    Errors:
        DataError: no row, lengths that differ, NaN or infinity.

    >>> rmse([1, 2, 3, 4], [1, 2, 3, 6])
    1.0
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return math.sqrt(mean_of(np.square(predicted - target), weight))


def mae(y: ArrayLike, prediction: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """Mean absolute error; errors as for `rmse`.

    >>> mae([1, 2, 3, 4], [1, 2, 3, 6])
    0.5
    """
    target, predicted = paired_columns(y, prediction, "predictions")
    return mean_of(np.abs(predicted - target), weight)
