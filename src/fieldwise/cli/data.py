"""`fieldwise data`: list and fetch public sets, simulate a log, infer a schema."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.command import add_command
from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import DataDir, Label, Positive, Reading, Seed, resolve_data_dir
from fieldwise.cli.show import console, say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError

__all__ = ["app"]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Options of `fieldwise data list`."""

    data_dir: DataDir = None


def run_list(options: ListOptions) -> None:
    """List the public data sets: rows, licence terms, and whether they are present."""
    from rich.table import Table

    from fieldwise.data.read.public import PUBLIC_SETS

    folder = resolve_data_dir(options.data_dir)
    table = Table("name", "rows", "present", "how to get it", "terms", box=None)
    for name, public in PUBLIC_SETS.items():
        how = f"fieldwise data fetch {name}" if public.files else "by hand"
        table.add_row(name, f"{public.rows:,}", "yes" if public.present(folder) else "no", how, public.licence)
    table.add_row("simulated", "any", "yes", "fieldwise data simulate", "none: synthetic data")
    out = console()
    out.print(table)
    out.print(f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)"))
    absent = [name for name, public in PUBLIC_SETS.items() if public.files and not public.present(folder)]
    if absent:
        suggest("download one", "data", "fetch", absent[0], *data_options(options.data_dir))


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Options of `fieldwise data fetch`."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `fieldwise data list`.")]
    data_dir: DataDir = None


def run_fetch(options: FetchOptions) -> None:
    """Download a public data set from its official source. Resumes partial downloads; checks sizes and checksums."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from fieldwise.data.read.fetch import fetch
    from fieldwise.data.read.public import PUBLIC_SETS
    from fieldwise.runs.recipe_files import recipe_names

    name = options.name
    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    folder = resolve_data_dir(options.data_dir)
    say(f"{PUBLIC_SETS[name].title}: {PUBLIC_SETS[name].licence}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        files = fetch(
            PUBLIC_SETS[name], folder, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    for file in files:
        print(file)
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    if recipes:
        first = next((recipe for recipe in recipes if recipe.endswith("/fm")), recipes[0])
        suggest("train a model on it", "train", first, *data_options(options.data_dir))


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Options of `fieldwise data simulate`."""

    out: Annotated[Path, typer.Option(help="File to write: .csv, .tsv, .parquet or .arrow.")]
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 120_000
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 1_000
    items: Annotated[int, typer.Option(min=1, help="Number of films.")] = 400
    seed: Seed = 0


def run_simulate(options: SimulateOptions) -> None:
    """Write a simulated log of a film service, with the true probability of every row."""
    from fieldwise.data.read.simulated.log import simulate
    from fieldwise.data.read.tables import write_table
    from fieldwise.storage.files import check_file

    out = options.out
    check_file(out)
    frame = simulate(options.rows, users=options.users, items=options.items, seed=options.seed)
    write_table(frame, out)
    say(f"{frame.height:,} rows written to {out} ({', '.join(frame.columns)})")
    suggest("write a schema and a recipe for it", "init", out, "--label", "liked")


@dataclass(frozen=True, kw_only=True)
class InferOptions:
    """Options of `fieldwise data infer`."""

    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")]
    label: Label = None
    positive: Positive = None
    reading: Reading


def run_infer(options: InferOptions) -> None:
    """Print the inferred schema of a table as TOML, with a comment per column, for you to correct."""
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.prepare.repeats import copies_sentence

    sample = options.reading.sample(options.table)
    with options.reading.lines(options.table):
        guess = infer_schema(sample, label=options.label, positive=options.positive or ())
    print(guess.to_toml())
    if sample.told:
        say(f"inferred from {sample.told}")
    elif copies := copies_sentence(sample.frame):
        say(copies)
    for doubt in guess.doubts.values():
        say(f"CHECK: {doubt}")
    given = [] if options.label is None else ["--label", options.label]
    given += [part for value in options.positive or () for part in ("--positive", value)]
    given += options.reading.options()
    suggest("write it as schema.toml, with a recipe", "init", options.table, *given)


app = typer.Typer(help="Public data sets, the simulated log, and schemas for your own tables.", no_args_is_help=True)
add_command(app, "list", run_list)
add_command(app, "fetch", run_fetch)
add_command(app, "simulate", run_simulate)
add_command(app, "infer", run_infer)
