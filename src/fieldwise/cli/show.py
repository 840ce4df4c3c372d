"""Functions that print the commands' output in one style."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.data.read.tables import TableWriter
    from fieldwise.runs.recipe import Recipe

__all__ = [
    "MIB",
    "calibration_words",
    "console",
    "drawn_rows",
    "print_json",
    "print_table",
    "row_counts",
    "say",
    "say_cautions",
    "say_guarded",
    "show_metrics",
    "visible",
]

MIB = 2**20
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PARTS = ("valid", "test")
COUNTS = ("rows", "gauc_groups", "gauc_skipped_groups", "gauc_skipped_rows")


def visible(text: str) -> str:
    r"""The text with control characters as Python writes them, but for tabs and line ends.

    >>> print(visible("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def console(width: int | None = None) -> "Console":
    """A console of Rich on standard output that prints texts as `visible` has them, and brackets as they are.

    Args:
        width: of its lines; the terminal's if omitted, or 120 where there is none.
    """
    from rich.console import Console
    from rich.text import Text

    class Visible(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    width = width or (None if sys.stdout.isatty() else 120)
    return Visible(width=width, markup=False, highlight=False, soft_wrap=True)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    right: bool = False,
    width: int | None = None,
) -> None:
    """Print a table without a frame.

    Args:
        heads: names of the columns.
        rows: texts of the cells.
        title: printed above it.
        right: whether all columns but the first are aligned to the right, and never broken into lines.
        width: as of `console`.
    """
    from rich.table import Table

    table = Table(*heads, title=title, title_justify="left", box=None)
    for column in table.columns[1:] if right else ():
        column.justify, column.no_wrap = "right", True
    for row in rows:
        table.add_row(*row)
    console(width).print(table)


def drawn_rows(frame: "pl.DataFrame", rows: int, what: str) -> "pl.DataFrame":
    """A random sample of at most `rows` rows in their original order; reports on standard error if rows are omitted."""
    import numpy as np

    if frame.height <= rows:
        return frame
    say(f"{rows:,} of {frame.height:,} {what} (use --rows for more)")
    return frame[np.sort(np.random.default_rng(0).choice(frame.height, rows, replace=False))]


def say(sentence: str) -> None:
    """Print one line to standard error."""
    print(visible(sentence), file=sys.stderr, flush=True)


def say_cautions(recipe: "Recipe", prepared: "Prepared") -> None:
    """Warn of repeated rows and of features that know labels."""
    from fieldwise.data.prepare.row_fingerprints import repeat_sentences

    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    if recipe.target_encoding is not None and (caution := recipe.target_encoding.caution()):
        say(caution)


def say_guarded(writer: "TableWriter") -> None:
    """Say how many cells were written as a spreadsheet does not run them, if there are any."""
    if writer.guarded:
        say(f"{writer.guarded:,} cells that a spreadsheet would run as a formula begin with ' now (--raw: as they are)")


def print_json(plain: Mapping[str, Any], **how: Any) -> None:
    """Print one JSON object to standard output; `how` holds arguments of `json.dump`."""
    json.dump(plain, sys.stdout, indent=1, **how)
    print()


def show_metrics(columns: Mapping[str, Mapping[str, float]], remarks_on: Iterable[str] | None = None) -> None:
    """Print a table with metrics as rows and splits as columns, then remarks on some or all of the columns."""
    from fieldwise.evaluation.words import remarks

    def shown(name: str, metrics: Mapping[str, float]) -> str:  # the name may have a label's prefix: liked.auc
        if name not in metrics:
            return ""
        return f"{metrics[name]:,.0f}" if name.rpartition(".")[2] in COUNTS else f"{metrics[name]:.4f}"

    names = dict.fromkeys(name for metrics in columns.values() for name in metrics)
    print_table(["metric", *columns], ([name, *(shown(name, m) for m in columns.values())] for name in names))
    for name in columns if remarks_on is None else remarks_on:
        for sentence in remarks(columns[name], f"{name} rows" if name in PARTS else name):
            console().print(sentence)


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
