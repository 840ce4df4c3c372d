"""`fieldwise data`: list and fetch public sets, simulate a log, infer a schema."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.command import add_command
from fieldwise.cli.next import suggest
from fieldwise.cli.options import Label, Positive, Reading, Seed, data_folder, naming_positive
from fieldwise.cli.show import console, print_table, say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError

__all__ = ["app"]


def run_list() -> None:
    """List the public data sets: rows, licence terms, and whether they are present.

    They are in the folder that the environment variable FIELDWISE_DATA names, else in the user's cache folder.
    """
    from fieldwise.data.read.public_sets import PUBLIC_SETS

    folder, rows = data_folder(), []
    for name, public in PUBLIC_SETS.items():
        how = f"fieldwise data fetch {name}" if public.origin else "by hand"
        rows.append([name, f"{public.rows:,}", "yes" if public.present(folder) else "no", how, public.licence])
    rows.append(["simulated", "any", "yes", "fieldwise data simulate", "none: synthetic data"])
    print_table(["name", "rows", "present", "how to get it", "terms"], rows)
    console().print(f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)"))
    absent = [name for name, public in PUBLIC_SETS.items() if public.origin and not public.present(folder)]
    if absent:
        suggest("download one", "data", "fetch", absent[0])


def run_fetch(
    *, name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `fieldwise data list`.")]
) -> None:
    """Download a public data set from its official source. Checks checksums.

    A download that broke off starts again. The files are written to the folder that the environment variable
    FIELDWISE_DATA names, else into the user's cache folder; other commands read them there.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from fieldwise.data.read.public_sets import PUBLIC_SETS, fetch
    from fieldwise.runs.recipe import recipe_names

    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    folder = data_folder()
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
        suggest("train a model on it", "train", first)


def run_simulate(
    *,
    out: Annotated[Path, typer.Option(help="File to write: .csv, .tsv, .parquet or .arrow.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 120_000,
    users: Annotated[int, typer.Option(min=1, help="Number of users.")] = 1_000,
    items: Annotated[int, typer.Option(min=1, help="Number of films.")] = 400,
    seed: Seed = 0,
) -> None:
    """Write a simulated log of a film service, with the true probability of every row."""
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.tables import write_table
    from fieldwise.storage.files import check_file

    check_file(out)
    frame = simulate(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    say(f"{frame.height:,} rows written to {out} ({', '.join(frame.columns)})")
    suggest("write a schema and a recipe for it", "init", out, "--label", "liked")


def run_infer(
    *,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")],
    label: Label = None,
    positive: Positive = None,
    reading: Reading,
) -> None:
    """Print the inferred schema of a table as TOML, with a comment per column, for you to correct."""
    from fieldwise.data.infer.schema import infer_schema

    sample = reading.sample(table)
    with naming_positive(), reading.lines(table):
        guess = infer_schema(sample, label=label, positive=positive or ())
    print(guess.to_toml())
    reading.say_sample(sample)
    for doubt in guess.doubts.values():
        say(f"CHECK: {doubt}")
    given = [] if label is None else ["--label", label]
    given += [part for value in positive or () for part in ("--positive", value)]
    given += reading.options()
    suggest("write it as schema.toml, with a recipe", "init", table, *given)


app = typer.Typer(help="Public data sets, the simulated log, and schemas for your own tables.", no_args_is_help=True)
add_command(app, "list", run_list)
add_command(app, "fetch", run_fetch)
add_command(app, "simulate", run_simulate)
add_command(app, "infer", run_infer)
