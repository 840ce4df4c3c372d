"""Metrics as pure NumPy functions over whole splits."""

from fieldwise.evaluation.binary import (
    accuracy,
    f1,
    logloss,
    logloss_from_logits,
    normalized_entropy,
    normalized_entropy_from_logits,
    precision,
    recall,
    sigmoid,
)
from fieldwise.evaluation.metrics import binary_metrics, regression_metrics
from fieldwise.evaluation.ranking import GroupAUC, auc, group_auc
from fieldwise.evaluation.regression import mae, rmse

__all__ = [
    "GroupAUC",
    "accuracy",
    "auc",
    "binary_metrics",
    "f1",
    "group_auc",
    "logloss",
    "logloss_from_logits",
    "mae",
    "normalized_entropy",
    "normalized_entropy_from_logits",
    "precision",
    "recall",
    "regression_metrics",
    "rmse",
    "sigmoid",
]
