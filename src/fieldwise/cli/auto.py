"""`fieldwise auto`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fieldwise.automatic.settings import AutoSettings
from fieldwise.cli.options import AsJson, BundleDevice, Label, Overwrite, Positive, Quiet, Reading, Seed, check_device
from fieldwise.cli.show import console, print_json, print_table, say, suggest

if TYPE_CHECKING:
    from fieldwise.automatic.run import AutoResult


@dataclass(frozen=True, kw_only=True)
class AutoOptions:
    """Options of `fieldwise auto`."""

    context: typer.Context  # holds the start time of the command
    table: Annotated[Path, Argument(metavar="TABLE", help="Rows with labels: CSV, TSV, Parquet, Arrow or libFM.")]
    label: Label = None
    positive: Positive = None
    minutes: Annotated[float, Option(min=0.01, help="Time budget of the whole run.")] = AutoSettings.minutes
    out: Annotated[Path | None, Option(help="Folder for all results. Default: runs/auto-TABLE.")] = None
    overwrite: Overwrite = False
    schema: Annotated[Path | None, Option(help="Your own schema (TOML). Default: inferred from the table.")] = None
    split_column: Annotated[str | None, Option(metavar="COLUMN", help="A column with train, valid or test.")] = None
    keep: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="Keep this column whatever the audit finds. May be repeated.")
    ] = None
    seed: Seed = AutoSettings.seed
    reading: Reading
    json: AsJson = False
    quiet: Quiet = False
    device: BundleDevice = AutoSettings.device


def run(options: AutoOptions) -> None:
    """Find a good model for a table in a given time.

    It audits the columns, trains, tunes, evaluates and saves. Ctrl-C ends it early.
    """
    from fieldwise.automatic.run import run_auto
    from fieldwise.data.prepare.settings import ColumnSplit
    from fieldwise.runs.recipe import DataSettings
    from fieldwise.schema import Schema

    check_device(options.device)
    out = options.out or Path("runs") / f"auto-{options.table.name.partition('.')[0] or 'table'}"
    same = {name: getattr(options, name) for name in ("label", "minutes", "seed", "overwrite", "device")}
    settings = AutoSettings(
        **same,
        positive=options.positive or (),
        out=out,
        keep=options.keep or (),
        began=options.context.obj,
        split=None if options.split_column is None else ColumnSplit(column=options.split_column),
        schema=None if options.schema is None else Schema.from_toml(options.schema),
    )
    reading = options.reading.arguments
    names = reading.pop("columns")
    data = DataSettings(path=str(options.table), columns=None if names is None else tuple(names), **reading)
    result = run_auto(data, settings, (lambda _: None) if options.quiet else say)
    if options.json:
        print_json(result.to_plain(), default=str)
    else:
        _show(result)
    if not options.quiet:
        folder, how = result.folder or Path(), options.reading.options()
        bundle, rows = folder / "bundle", ["--data", options.table, *how]
        suggest("predict (--data may hold new rows)", "predict", bundle, *rows, "--out", folder / "predictions.csv")
        recommends = {"user", "item"} <= {field.role for field in result.schema.fields}
        log = ["--log", options.table, *how] if recommends else []
        suggest("start a server with a web page", "serve", bundle, *log)
        suggest("see what the scores depend on", "explain", bundle, *rows)
        suggest("train the same model again, or change it", "train", folder / "recipe.toml")
    if result.interrupted:
        raise KeyboardInterrupt


def _show(result: "AutoResult") -> None:
    out = console()
    heads, rows = result.rows(short=True)
    print_table(heads, rows, right=True)
    out.print(
        f"{result.test_rows:,} test rows; * the model in the bundle; ± half the width of the 95 % interval. "
        f"{result.legend}"
    )
    out.print("")
    for sentence in result.sentences():
        out.print(f"- {sentence}")
    assert result.folder is not None, "the command always writes"
    names = "schema.toml, recipe.toml, leaderboard.json and .md, bundle" + (", report.html" if result.report else "")
    out.print(f"\n{result.seconds:.0f} s. In {result.folder}: {names}")
