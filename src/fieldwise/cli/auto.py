"""`fieldwise auto`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice, check_device
from fieldwise.cli.next import suggest
from fieldwise.cli.options import AsJson, Label, Positive, Quiet, Reading, Seed, Threads, set_threads
from fieldwise.cli.show import console, print_json, say

if TYPE_CHECKING:
    from fieldwise.automatic import AutoResult

__all__ = ["AutoOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class AutoOptions:
    """Options of `fieldwise auto`."""

    context: typer.Context  # holds the start time of the command
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows with labels: CSV, TSV, Parquet, Arrow or libFM.")]
    label: Label = None
    positive: Positive = None
    minutes: Annotated[float, typer.Option(min=0.01, help="Time budget of the whole run, from start to end.")] = 10.0
    out: Annotated[Path | None, typer.Option(help="Folder for all results. Default: runs/auto-TABLE.")] = None
    again: Annotated[bool, typer.Option("--again", help="Replace the result of an earlier run in that folder.")] = False
    schema: Annotated[Path | None, typer.Option(help="Your own schema (TOML). Default: inferred from the table.")] = (
        None
    )
    split_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A column with each row's part: train, valid or test.")
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Keep this column as a field whatever the audit finds. May be repeated."),
    ] = None
    seed: Seed = 0
    reading: Reading
    json: AsJson = False
    quiet: Quiet = False
    device: BundleDevice = "cpu"
    threads: Threads = None


def run(options: AutoOptions) -> None:
    """Find a good model for a table within a time budget: audit, train, tune, evaluate, save. Ctrl-C ends it early."""
    from fieldwise.automatic import AutoSettings, run_auto
    from fieldwise.data.prepare.split_settings import ColumnSplit
    from fieldwise.runs.data_settings import DataSettings
    from fieldwise.schema import Schema

    set_threads(options.threads)
    check_device(options.device)
    settings = AutoSettings(
        label=options.label,
        positive=options.positive or (),
        minutes=options.minutes,
        out=options.out or Path("runs") / f"auto-{_stem(options.table)}",
        seed=options.seed,
        keep=options.keep or (),
        again=options.again,
        began=options.context.obj,
        split=None if options.split_column is None else ColumnSplit(column=options.split_column),
        schema=None if options.schema is None else Schema.from_toml(options.schema),
        device=options.device,
    )
    reading = options.reading
    names = None if reading.names is None else tuple(reading.names)
    data = DataSettings(path=str(options.table), separator=reading.separator, encoding=reading.encoding, columns=names)
    heard: Callable[[str], None] = (lambda _: None) if options.quiet else say
    result = run_auto(data, settings, heard)
    if options.json:
        print_json(result.to_plain(), default=str)
    else:
        _show(result)
    _suggest(result, options)
    if result.interrupted:
        raise KeyboardInterrupt


def _stem(path: Path) -> str:
    """A file's name without its suffixes: `clicks` for `clicks.csv.gz`."""
    return path.name.partition(".")[0] or "table"


def _show(result: "AutoResult") -> None:
    from rich.table import Table

    from fieldwise.automatic.result import legend

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
        f"{result.board.rows:,} test rows; * the model in the bundle; ± half the width of the 95 % interval. "
        f"{legend(result.board)}"
    )
    out.print("")
    for sentence in result.sentences():
        out.print(f"- {sentence}")
    assert result.folder is not None, "the command always writes"
    names = "schema.toml, recipe.toml, leaderboard.json and .md, bundle" + (", report.html" if result.report else "")
    out.print(f"\n{result.seconds:.0f} s. In {result.folder}: {names}")


def _suggest(result: "AutoResult", options: AutoOptions) -> None:
    """Print useful next commands."""
    folder, table, quiet = result.folder or Path(), options.table, options.quiet
    bundle, how = folder / "bundle", options.reading.options()
    scores = folder / "predictions.csv"
    suggest(
        "predict (--data may hold new rows)", "predict", bundle, "--data", table, *how, "--out", scores, quiet=quiet
    )
    roles = {field.role for field in result.schema.fields}
    log = ["--log", table, *how] if {"user", "item"} <= roles else []
    suggest("start a server with a web page", "serve", bundle, *log, quiet=quiet)
    suggest("see what the scores depend on", "explain", bundle, "--data", table, *how, quiet=quiet)
    suggest("train the same model again, or change it", "train", folder / "recipe.toml", quiet=quiet)
