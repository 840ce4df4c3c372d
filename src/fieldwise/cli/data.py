"""`fieldwise data`: list and fetch public sets, simulate a log, infer a schema."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import MAX_SEED, Columns, DataDir, Encoding, Positive, Separator, column_names

__all__ = ["app"]

app = typer.Typer(
    help="Public data sets, the simulated log, and schemas for tables of one's own.", no_args_is_help=True
)


@app.command("list")
def list_sets(data_dir: DataDir = None) -> None:
    """List the public data sets: rows, terms, and whether they are at hand."""
    from rich.table import Table

    from fieldwise.cli.next import data_options, suggest
    from fieldwise.cli.options import resolve_data_dir
    from fieldwise.cli.show import console
    from fieldwise.data.read.public import PUBLIC_SETS

    folder = resolve_data_dir(data_dir)
    table = Table("name", "rows", "at hand", "how to get it", "terms", box=None)
    for name, public in PUBLIC_SETS.items():
        how = f"fieldwise data fetch {name}" if public.files else "by hand"
        table.add_row(name, f"{public.rows:,}", "yes" if public.present(folder) else "no", how, public.licence)
    table.add_row("simulated", "any", "yes", "fieldwise data simulate", "none: it is made up")
    out = console()
    out.print(table)
    out.print(f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)"))
    absent = [name for name, public in PUBLIC_SETS.items() if public.files and not public.present(folder)]
    if absent:
        suggest("have one of them", "data", "fetch", absent[0], *data_options(data_dir))


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `fieldwise data list` shows.")],
    data_dir: DataDir = None,
) -> None:
    """Download a public set from its official origin; resumes where it was cut off, and checks sizes and checksums."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from fieldwise.cli.next import data_options, suggest
    from fieldwise.cli.options import resolve_data_dir
    from fieldwise.cli.show import say
    from fieldwise.config import nearest
    from fieldwise.data.read.fetch import fetch as fetch_set
    from fieldwise.data.read.public import PUBLIC_SETS
    from fieldwise.errors import ConfigError
    from fieldwise.runs.recipe import recipe_names

    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    folder = resolve_data_dir(data_dir)
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
        files = fetch_set(
            PUBLIC_SETS[name], folder, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    for file in files:
        print(file)
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    if recipes:
        first = next((recipe for recipe in recipes if recipe.endswith("/fm")), recipes[0])
        suggest("train a model on it", "train", first, *data_options(data_dir))


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Where to write the log: .csv, .tsv, .parquet or .arrow.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows of the log.")] = 120_000,
    users: Annotated[int, typer.Option(min=1, help="Users of the service.")] = 1_000,
    items: Annotated[int, typer.Option(min=1, help="Films of the service.")] = 400,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of everything.")] = 0,
) -> None:
    """Write the simulated log of a film service, with the true probability of every row."""
    from fieldwise.cli.next import suggest
    from fieldwise.cli.show import say
    from fieldwise.data.read.simulated.log import simulate as simulate_log
    from fieldwise.data.read.tables import write_table
    from fieldwise.storage.files import check_file

    check_file(out)
    frame = simulate_log(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    say(f"{frame.height:,} rows written to {out} ({', '.join(frame.columns)})")
    suggest("a schema and a recipe for it", "init", out, "--label", "liked")


@app.command()
def infer(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, TSV, Parquet, Arrow or libFM.")],
    label: Annotated[str | None, typer.Option(help="The label's column; guessed by name where left out.")] = None,
    positive: Positive = None,
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
) -> None:
    """Print the schema that a table seems to have, as TOML with a comment a column, to be corrected by hand."""
    from fieldwise.cli.next import suggest, text_options
    from fieldwise.cli.show import say
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.prepare.repeats import copies_sentence
    from fieldwise.data.read.lines import naming_lines
    from fieldwise.data.read.tables import as_table

    names = column_names(columns)
    frame = as_table(table, separator=separator, encoding=encoding, columns=names)
    with naming_lines(table, separator=separator, encoding=encoding, columns=names):
        guess = infer_schema(frame, label=label, positive=positive or ())
    print(guess.to_toml())
    if copies := copies_sentence(frame):
        say(copies)
    for doubt in guess.doubts.values():
        say(f"CHECK: {doubt}")
    given = [] if label is None else ["--label", label]
    given += [part for value in positive or () for part in ("--positive", value)]
    reading = text_options(separator, encoding, names)
    suggest("this as schema.toml with a recipe beside it", "init", table, *given, *reading)
