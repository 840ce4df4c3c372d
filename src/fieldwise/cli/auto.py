"""`fieldwise auto`."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from fieldwise.automatic import AutoResult, AutoSettings, run_auto
from fieldwise.automatic.result import legend
from fieldwise.cli.next import suggest, text_options
from fieldwise.cli.options import set_threads
from fieldwise.cli.show import console, say
from fieldwise.runs.recipe import DataSettings
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
        _show(result)
    _suggest(result, data, quiet)
    if result.interrupted:
        raise KeyboardInterrupt


def _stem(path: Path) -> str:
    """A file's name without its endings: of `clicks.csv.gz` it is `clicks`."""
    return path.name.partition(".")[0] or "table"


def _show(result: AutoResult) -> None:
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


def _suggest(result: AutoResult, data: DataSettings, quiet: bool) -> None:
    """Name the commands worth typing next."""
    folder, table = result.folder or Path(), Path(str(data.path))
    bundle, how = folder / "bundle", text_options(data.separator, data.encoding, data.columns)
    scores = folder / "predictions.csv"
    suggest("predict; --data may be new rows", "predict", bundle, "--data", table, *how, "--out", scores, quiet=quiet)
    roles = {field.role for field in result.schema.fields}
    log = ["--log", table, *how] if {"user", "item"} <= roles else []
    suggest("a page to look at, and a server", "serve", bundle, *log, quiet=quiet)
    suggest("what the scores depend on", "explain", bundle, "--data", table, *how, quiet=quiet)
    suggest("train the same again, or change it", "train", folder / "recipe.toml", quiet=quiet)
