"""What commands print, in one style: sentences, tables, JSON, and the commands that may come next."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwise.data.read.text_format import TEXT_OPTIONS, TextFormat
from fieldwise.display import counted as counted

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from fieldwise.auditing.table import AuditedTable
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.data.read.table_writer import TableWriter
    from fieldwise.runs.recipe import Recipe

IMPORTS: list[str] = []  # modules given with `--import`; suggested commands repeat the option
MIB = 2**20
WIDTH_OF_FIGURES = 1000
"""A terminal wraps long lines, which is better than truncated ones."""
WIDTH_OF_FILES = 120
"""Of standard output that is no terminal."""
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PARTS = ("valid", "test")
COUNTS = ("rows", "positive_rows", "gauc_groups", "gauc_skipped_groups", "gauc_skipped_rows")


def visible(text: str) -> str:
    r"""The text with control characters as Python writes them, but for tabs and line ends.

    >>> print(visible("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def console(width: int | None = None) -> "Console":
    """A console of Rich on standard output that prints texts as `visible` has them, and brackets as they are."""
    from rich.console import Console
    from rich.text import Text

    class Visible(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    if width is None and not sys.stdout.isatty():
        width = WIDTH_OF_FILES
    return Visible(width=width, markup=False, highlight=False, soft_wrap=True)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    right: bool = False,
) -> None:
    """Print a table without a frame; `right` aligns all columns but the first, and keeps long lines whole."""
    from rich.table import Table

    table = Table(*heads, title=title, title_justify="left", box=None)
    if right:
        for column in table.columns[1:]:
            column.justify = "right"
            column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    console(WIDTH_OF_FIGURES if right else None).print(table)


def sampled_rows(frame: "pl.DataFrame", rows: int, what: str) -> "pl.DataFrame":
    """A random sample of at most `rows` rows in their original order; reports on standard error if rows are omitted."""
    from fieldwise.data.sampling import drawn_rows

    if frame.height <= rows:
        return frame
    say(f"{rows:,} of {frame.height:,} {what} (use --rows for more)")
    return frame[drawn_rows(frame.height, rows)]


def say(sentence: str) -> None:
    """Print one line to standard error."""
    print(visible(sentence), file=sys.stderr, flush=True)


def say_dropped(rows: int) -> None:
    """Say how many rows a label's rule dropped, if any."""
    if rows:
        say(f"{counted(rows, 'row')} dropped by the label's rule")


def say_cautions(recipe: "Recipe", prepared: "Prepared") -> None:
    """Say which marks were read as missing, and warn of repeated rows, of features that know labels, and of leaks."""
    from fieldwise.data.encode.numbers import marks_sentences
    from fieldwise.data.prepare.repeated_rows import repeat_sentences

    for sentence in marks_sentences(prepared.marks):
        say(sentence)
    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    for sentence in recipe.cautions(prepared):
        say(f"WARNING: {sentence}")


def strong_sentences(table: "AuditedTable") -> list[str]:
    """A sentence on each thing that the quick detectors of `fieldwise audit` find strong."""
    from fieldwise.auditing.detectors import strong_findings

    return [
        f"{finding.sentence}; {finding.remedy} (`fieldwise audit` looks closer)"
        for finding in strong_findings(table)
    ]


def say_guarded(writer: "TableWriter") -> None:
    """Say how many cells were escaped so that a spreadsheet does not run them as formulas, if there are any."""
    if writer.guarded:
        say(
            f"{writer.guarded:,} cells that a spreadsheet would run as a formula begin with ' now (--raw: as they are)"
        )


def print_json(plain: Mapping[str, Any], **how: Any) -> None:
    """Print one JSON object to standard output; `how` holds arguments of `json.dumps`."""
    print(json.dumps(plain, indent=1, **how))


def show_metrics(
    columns: Mapping[str, Mapping[str, float]], remarks_on: Iterable[str] | None = None
) -> None:
    """Print a table with metrics as rows and splits as columns, then remarks on some or all of the columns."""
    from fieldwise.evaluation.words import remarks

    names = dict.fromkeys(name for metrics in columns.values() for name in metrics)
    rows = []
    for name in names:
        cells = [_shown_metric(name, metrics) for metrics in columns.values()]
        rows.append([name, *cells])
    print_table(["metric", *columns], rows)
    for column in columns if remarks_on is None else remarks_on:
        rows_name = f"{column} rows" if column in PARTS else column
        for sentence in remarks(columns[column], rows_name):
            console().print(sentence)


def _shown_metric(name: str, metrics: Mapping[str, float]) -> str:
    """A metric as a cell, empty if it is not there; its name may have a label's prefix: liked.auc."""
    if name not in metrics:
        return ""
    is_count = name.rpartition(".")[2] in COUNTS
    return f"{metrics[name]:,.0f}" if is_count else f"{metrics[name]:.4f}"


def row_counts(counts: Mapping[str, int]) -> str:
    """The counts of `prepare` as a sentence.

    >>> row_counts({"train_rows": 8000, "valid_rows": 900, "test_rows": 1000, "dropped_by_label": 1200})
    "8,000 train, 900 valid, 1,000 test rows; 1,200 rows dropped by the label's rule"
    """
    names = {
        "dropped_by_label": "rows dropped by the label's rule",
        "dropped_by_split": "rows dropped by the split",
        "negatives_drawn": "of them sampled negatives",
        "negatives_without_value": "of these without a value that changes, as their item has none before their time",
    }
    parts = ", ".join(f"{counts[f'{part}_rows']:,} {part}" for part in ("train", "valid", "test"))
    phrases = [f"{parts} rows"]
    for key, text in names.items():
        if counts.get(key):
            phrases.append(f"{counts[key]:,} {text}")
    return "; ".join(phrases)


def command_name() -> list[str]:
    """The words that start fieldwise: its name if the shell finds this installation, else this Python with `-m`."""
    schemes = [sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")]
    script_folders = [Path(sysconfig.get_path("scripts", scheme)).resolve() for scheme in schemes]
    script = shutil.which("fieldwise")
    if script is not None and Path(script).resolve().parent in script_folders:
        return ["fieldwise"]
    python = Path(sys.executable)
    shown = sys.executable
    if shutil.which(python.name) == str(python):
        shown = python.name
    elif python.is_relative_to(Path.cwd()):
        shown = str(python.relative_to(Path.cwd()))
    return [shown, "-m", "fieldwise"]


def command(*parts: object) -> str:
    """A fieldwise command as one line, quoted for the shell."""
    words = command_name()
    for module in IMPORTS:
        words += ["--import", module]
    words += [str(part) for part in parts]
    return shell_words(words)


def shell_words(words: Sequence[str]) -> str:
    """Words as one line, quoted for the shell."""
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def suggest(what: str, *parts: object, needs: str | None = None) -> None:
    """Print one line to standard error: a useful next step and the command for it, if the package it needs is here."""
    if needs is None or find_spec(needs) is not None:
        say(f"next, {what}: {command(*parts)}")


def log_words(bundle: "Bundle") -> list[str]:
    """The `--log` of `serve` with the table that a bundle was trained on; nothing if it is gone or has no users.

    Nor if the table lacks features that the recipe made.
    """
    settings = bundle.about.recipe_settings
    data = settings.get("data", {})
    path = data.get("path")
    if (
        path is None
        or "features" in settings
        or not Path(path).is_file()
        or not bundle.schema.has_both_sides
    ):
        return []
    text = TextFormat(**{key: data[key] for key in TEXT_OPTIONS if key in data})
    return ["--log", path, *text.words()]


def suggest_report(bundle: "Bundle", folder: Path) -> bool:
    """Suggest a report of a bundle if one can be made; returns whether it can."""
    if bundle.about.recipe is None or find_spec("jinja2") is None:
        return False
    suggest("an HTML report with intervals, curves, calibration and slices", "report", folder)
    return True


def command_again(arguments: Sequence[str]) -> list[str]:
    """The command line of a command with these arguments, for another process that runs it.

    Like this process, it imports nothing from the working directory, unless `python -m fieldwise`
    was called.
    """
    safe = [] if sys.path[:1] == [os.getcwd()] else ["-P"]
    return [sys.executable, *safe, "-m", "fieldwise", *arguments]
