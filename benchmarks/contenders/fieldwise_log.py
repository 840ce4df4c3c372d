"""A benchmark's log as fieldwise's encoded rows, and training settings that this version and machine support."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.absent import NotAvailableError
from benchmarks.log import Log
from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.training.precision import slow_bfloat16
from fieldwise.training.settings import TrainingSettings

__all__ = ["known_settings", "table", "valid_table"]


def table(log: Log) -> EncodedTable:
    """The training rows."""
    return _table(log, log.ids, log.y)


def valid_table(log: Log, rows: int | None = None) -> EncodedTable:
    """The first validation rows (all for None), or the first training rows if there are no validation rows."""
    if len(log.valid_y) == 0:
        return _table(log, log.ids[: rows or 1000], log.y[: rows or 1000])
    return _table(log, log.valid_ids[:rows], log.valid_y[:rows])


def _table(log: Log, ids: np.ndarray, y: np.ndarray) -> EncodedTable:
    return EncodedTable(
        Layout.of_sizes(list(log.sizes)),
        (ids + log.offsets).astype(np.int32),
        np.empty((len(y), 0), np.float32),
        np.empty(0, np.int32),
        np.zeros(1, np.int64),
        y,
    )


def known_settings(wanted: Mapping[str, Any]) -> TrainingSettings:
    """Training settings.

    Errors:
        NotAvailableError: this version does not support a setting, or this CPU would be a hundred times slower with it.
    """
    missing = set(wanted) - {f.name for f in dataclasses.fields(TrainingSettings)}
    if missing:
        raise NotAvailableError(f"this version has no training setting {', '.join(sorted(missing))}")
    here = wanted.get("device", "cpu").split(":")[0]
    slow = slow_bfloat16(here) if wanted.get("precision") == "bfloat16" else None
    if slow:
        raise NotAvailableError(slow)
    return TrainingSettings(**wanted)
