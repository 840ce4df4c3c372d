"""Functions that print the commands' output in one style."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fieldwise.cli.terminal import visible

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.table import Table

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.read.writing import TableWriter

__all__ = [
    "calibration_words",
    "console",
    "drawn_rows",
    "format_metric",
    "metrics_table",
    "print_json",
    "row_counts",
    "say",
    "say_guarded",
    "show_metrics",
]

PARTS = ("valid", "test")
COUNTS = ("rows", "gauc_groups", "gauc_skipped_groups", "gauc_skipped_rows")


def console() -> "Console":
    """A console on standard output for tables. Text is printed literally: brackets are not markup."""
    from fieldwise.cli.terminal import visible_console

    return visible_console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False, soft_wrap=True)


def drawn_rows(frame: "pl.DataFrame", rows: int, seed: int, what: str) -> "pl.DataFrame":
    """A random sample of at most `rows` rows in their original order; reports on standard error if rows are omitted."""
    import numpy as np

    if frame.height <= rows:
        return frame
    say(f"{rows:,} of {frame.height:,} {what}, seed {seed} (use --rows for more)")
    return frame[np.sort(np.random.default_rng(seed).choice(frame.height, rows, replace=False))]


def say(sentence: str) -> None:
    """Print one line to standard error."""
    print(visible(sentence), file=sys.stderr, flush=True)


def say_guarded(writer: "TableWriter") -> None:
    """Say how many cells were written as a spreadsheet does not run them, if there are any."""
    if writer.guarded:
        say(f"{writer.guarded:,} cells that a spreadsheet would run as a formula begin with ' now (--raw: as they are)")


def print_json(plain: Mapping[str, Any], **how: Any) -> None:
    """Print one JSON object to standard output; `how` holds arguments of `json.dump`."""
    json.dump(plain, sys.stdout, indent=1, **how)
    print()


def format_metric(name: str, value: float) -> str:
    """A metric as text: counts without decimals, others with four. The name may have a label's prefix: `liked.auc`."""
    return f"{value:,.0f}" if name.rpartition(".")[2] in COUNTS else f"{value:.4f}"


def metrics_table(columns: Mapping[str, Mapping[str, float]]) -> "Table":
    """A table with metrics as rows and splits as columns."""
    from rich.table import Table

    table = Table("metric", *columns, box=None)
    names = list(dict.fromkeys(name for metrics in columns.values() for name in metrics))
    for name in names:
        table.add_row(name, *(format_metric(name, m[name]) if name in m else "" for m in columns.values()))
    return table


def show_metrics(columns: Mapping[str, Mapping[str, float]], remarks_on: Iterable[str] | None = None) -> None:
    """Print `metrics_table`, then remarks on some or all of its columns."""
    from fieldwise.evaluation.remarks import remarks

    out = console()
    out.print(metrics_table(columns))
    for name in columns if remarks_on is None else remarks_on:
        for sentence in remarks(columns[name], f"{name} rows" if name in PARTS else name):
            out.print(sentence)


def calibration_words(bundle: "Bundle") -> str:
    """The kind of a bundle's calibration, with the label's name if it has several labels."""
    several = len(bundle.schema.labels) > 1
    return ", ".join(f"{name}: {one.kind}" if several else one.kind for name, one in bundle.calibration.items())


def row_counts(counts: Mapping[str, int]) -> str:
    """The counts of `prepare` as a sentence.

    >>> row_counts({"train_rows": 8000, "valid_rows": 900, "test_rows": 1000, "dropped_by_label": 1200})
    "8,000 train, 900 valid, 1,000 test rows; 1,200 rows dropped by the label's rule"
    """
    names = {"dropped_by_label": "rows dropped by the label's rule", "negatives_drawn": "of them sampled negatives"}
    parts = ", ".join(f"{counts[f'{part}_rows']:,} {part}" for part in ("train", "valid", "test"))
    return "; ".join([f"{parts} rows", *(f"{counts[key]:,} {text}" for key, text in names.items() if counts.get(key))])
