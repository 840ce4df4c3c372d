"""`fieldwise auto`: find a good model for a table of your own in a given time."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from fieldwise.automatic.settings import AutoSettings
from fieldwise.cli import options as opt
from fieldwise.cli import resources, show

if TYPE_CHECKING:
    from fieldwise.automatic.result import AutoResult


@dataclass(frozen=True, kw_only=True)
class AutoOptions:
    """Options of `fieldwise auto`."""

    context: typer.Context  # holds the Invocation
    table: Annotated[Path, Argument(metavar="TABLE", help=f"Rows with labels: {opt.READ_FORMATS}.")]
    label: opt.Label = None
    positive: opt.Positive = None
    minutes: Annotated[float, Option(min=0.01, help="Time budget of the whole run.")] = (
        AutoSettings.minutes
    )
    out: Annotated[
        Path | None, Option(help="Folder for all results. Default: runs/auto-TABLE.")
    ] = None
    overwrite: opt.Overwrite = False
    schema: Annotated[
        Path | None, Option(help="Your own schema (TOML). Default: inferred from the table.")
    ] = None
    split_column: Annotated[
        str | None, Option(metavar="COLUMN", help="A column with train, valid or test.")
    ] = None
    keep: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN", help="Keep this column whatever the audit finds. May be repeated."
        ),
    ] = None
    seed: opt.Seed = AutoSettings.seed
    reading: opt.Reading
    json: opt.AsJson = False
    quiet: opt.Quiet = False
    device: opt.BundleDevice = AutoSettings.device

    @property
    def folder(self) -> Path:
        """The folder for all results."""
        if self.out is not None:
            return self.out
        stem = self.table.name.partition(".")[0]
        return Path("runs") / f"auto-{stem or 'table'}"


def run(options: AutoOptions) -> None:
    """Find a good model for a table in a given time.

    It audits the columns, trains, tunes, evaluates and saves. Ctrl-C ends it early.
    """
    from fieldwise.automatic.run import run_auto
    from fieldwise.runs.data_settings import DataSettings

    resources.check_device(options.device)
    options.reading.check_separator(options.table)
    data = DataSettings(path=str(options.table), **options.reading.text().given)
    tell = _say_nothing if options.quiet else show.say
    result = run_auto(data, _auto_settings(options), tell)
    if options.json:
        show.print_json(result.to_plain(), default=str)
    else:
        _show_result(result)
    if not options.quiet:
        _suggest_next(options, result)
    if result.interrupted:
        raise KeyboardInterrupt


def _auto_settings(options: AutoOptions) -> AutoSettings:
    from fieldwise.data.prepare.settings import ColumnSplit
    from fieldwise.schema import Schema

    split = None
    if options.split_column is not None:
        split = ColumnSplit(column=options.split_column)
    schema = None
    if options.schema is not None:
        schema = Schema.from_toml(options.schema)
    return AutoSettings(
        label=options.label,
        positive=options.positive or (),
        minutes=options.minutes,
        out=options.folder,
        overwrite=options.overwrite,
        keep=options.keep or (),
        seed=options.seed,
        device=options.device,
        began=options.context.obj.began,
        split=split,
        schema=schema,
    )


def _show_result(result: "AutoResult") -> None:
    """Print the models with their metrics, what was found out about the table, and the files."""
    assert result.folder is not None, "the command always writes"
    out = show.console()
    table = result.table(short=True)
    show.print_table(table.columns, table.rows, right=True)
    out.print(
        f"{result.test_rows:,} test rows; * the model in the bundle; ± half the width of the 95 % interval. "
        f"{result.legend}"
    )
    out.print("")
    for sentence in result.sentences():
        out.print(f"- {sentence}")
    files = "schema.toml, recipe.toml, leaderboard.json and .md, bundle"
    if result.report:
        files += ", report.html"
    out.print(f"\n{result.seconds:.0f} s. In {result.folder}: {files}")


def _suggest_next(options: AutoOptions, result: "AutoResult") -> None:
    folder = result.folder or Path()
    bundle = folder / "bundle"
    reading = options.reading.text().words()
    rows = ["--data", options.table, *reading]
    predictions = ["--out", folder / "predictions.csv"]
    show.suggest("predict (--data may hold new rows)", "predict", bundle, *rows, *predictions)
    log: list[object] = []
    if result.schema.has_both_sides:
        log = ["--log", options.table, *reading]
    show.suggest("start a server with a web page", "serve", bundle, *log)
    show.suggest("see what the scores depend on", "explain", bundle, *rows)
    recipe = folder / "recipe.toml"
    show.suggest("train the same model again, or change it", "train", recipe)


def _say_nothing(sentence: str) -> None:
    pass
