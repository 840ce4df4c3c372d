"""`fieldwise auto`."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from fieldwise.automatic import AutoResult, AutoSettings, run_auto
from fieldwise.automatic.result import legend
from fieldwise.cli.options import set_threads
from fieldwise.cli.show import console, say
from fieldwise.recipe import DataSettings
from fieldwise.schema import Schema

__all__ = ["run_auto_command"]


def run_auto_command(
    data: DataSettings,
    settings: AutoSettings,
    schema: Path | None,
    as_json: bool,
    quiet: bool,
    threads: int | None,
) -> None:
    """Find, write, print.

    Errors:
        KeyboardInterrupt: Ctrl-C ended it early; what there was by then is written and shown.
    """
    set_threads(threads)
    if schema is not None:
        settings = dataclasses.replace(settings, schema=Schema.from_toml(schema))
    if settings.out is None:
        settings = dataclasses.replace(settings, out=Path("runs") / f"auto-{_stem(Path(str(data.path)))}")
    heard: Callable[[str], None] = (lambda _: None) if quiet else say
    result = run_auto(data, settings, heard)
    if as_json:
        json.dump(result.to_plain(), sys.stdout, indent=1, default=str)
        print()
    else:
        _show(result, data)
    if result.interrupted:
        raise KeyboardInterrupt


def _stem(path: Path) -> str:
    """A file's name without its endings: of `clicks.csv.gz` it is `clicks`."""
    return path.name.partition(".")[0] or "table"


def _show(result: AutoResult, data: DataSettings) -> None:
    out = console()
    heads, rows = result.rows(short=True)
    table = Table(*heads, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print(
        f"{result.board.rows:,} test rows; * the bundle's model; ± half of a 95 % interval. {legend(result.board)}"
    )
    out.print("")
    for sentence in result.sentences():
        out.print(f"- {sentence}")
    assert result.folder is not None, "the command always writes"
    names = "schema.toml, recipe.toml, leaderboard.json and .md, bundle" + (", report.html" if result.report else "")
    out.print(f"\n{result.seconds:.0f} s. In {result.folder}: {names}")
    out.print("\nnext:")
    for command, what in _next(result, data):
        out.print(f"  {shlex.join(command)}    # {what}")


def _next(result: AutoResult, data: DataSettings) -> list[tuple[list[str], str]]:
    """Commands worth typing, each with what it does."""
    folder, bundle = result.folder or Path(), str((result.folder or Path()) / "bundle")
    scores = str(folder / "predictions.csv")
    return [
        (["fieldwise", "predict", bundle, "--data", str(data.path), "--out", scores], "score rows; give new ones"),
        (["fieldwise", "serve", bundle], "a page, and predictions over HTTP"),
        (["fieldwise", "explain", bundle, "--data", str(data.path)], "what the scores depend on"),
        (["fieldwise", "train", str(folder / "recipe.toml")], "train the same again"),
    ]
