"""What commands print, in one style."""

import sys
from collections.abc import Mapping

from rich.table import Table

__all__ = ["format_metric", "metrics_table", "say"]

COUNTS = ("rows", "groups", "skipped_groups", "skipped_rows", "gauc_groups", "gauc_skipped_groups", "gauc_skipped_rows")


def say(sentence: str) -> None:
    """One line to the person at the terminal, on standard error."""
    print(sentence, file=sys.stderr, flush=True)


def format_metric(name: str, value: float) -> str:
    """Counts without decimals, metrics with four."""
    return f"{value:,.0f}" if name in COUNTS else f"{value:.4f}"


def metrics_table(columns: Mapping[str, Mapping[str, float]]) -> Table:
    """Metrics as rows, splits as columns."""
    table = Table("metric", *columns, box=None)
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    for name in names:
        table.add_row(name, *(format_metric(name, m[name]) if name in m else "" for m in columns.values()))
    return table
