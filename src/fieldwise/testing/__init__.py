"""Tools for testing your own model: checks that every model must pass, and small logs, layouts and batches."""

from fieldwise.testing.contract import CHECKS, check_model
from fieldwise.testing.data import random_batch, rows_of, small_layout, small_log, small_schema

__all__ = ["CHECKS", "check_model", "random_batch", "rows_of", "small_layout", "small_log", "small_schema"]
