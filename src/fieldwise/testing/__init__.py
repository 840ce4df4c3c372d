"""Tests of a model of your own: what every model must do, and small logs, layouts and batches to try it on."""

from fieldwise.testing.contract import CHECKS, check_model
from fieldwise.testing.data import random_batch, rows_of, small_layout, small_log, small_schema

__all__ = [
    "CHECKS",
    "check_model",
    "random_batch",
    "rows_of",
    "small_layout",
    "small_log",
    "small_schema",
]
