"""Metrics as pure NumPy functions over whole splits."""

from fieldwise.evaluation.binary import logloss_from_logits, normalized_entropy_from_logits, sigmoid
from fieldwise.evaluation.metrics import binary_metrics, mae, regression_metrics, rmse
from fieldwise.evaluation.ranking import DeLong, GroupAUC, auc, delong, group_auc

__all__ = [
    "DeLong",
    "GroupAUC",
    "auc",
    "binary_metrics",
    "delong",
    "group_auc",
    "logloss_from_logits",
    "mae",
    "normalized_entropy_from_logits",
    "regression_metrics",
    "rmse",
    "sigmoid",
]
