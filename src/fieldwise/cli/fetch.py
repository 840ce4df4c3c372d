"""`fieldwise fetch` and `fieldwise simulate`: public data sets, and a simulated log."""

from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import Seed, data_folder
from fieldwise.cli.show import console, print_table, say, suggest
from fieldwise.config import nearest
from fieldwise.errors import ConfigError


def run(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The data set. Default: all are listed, with their terms.")
    ] = None,
) -> None:
    """Download a public data set from its source, or list all.

    Checksums are checked, and a download that broke off starts again. The files are in the folder that the environment
    variable FIELDWISE_DATA names, else in the user's cache folder; other commands read them there.
    """
    from fieldwise.data.read.public_sets import PUBLIC_SETS

    if name is None:
        _list()
    elif name in PUBLIC_SETS:
        _fetch(name)
    else:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")


def _list() -> None:
    """Print the public data sets: rows, licence terms, and whether they are present."""
    from fieldwise.data.read.public_sets import PUBLIC_SETS

    folder, rows = data_folder(), []
    for name, public in PUBLIC_SETS.items():
        how = f"fieldwise fetch {name}" if public.origin else "by hand"
        rows.append([name, f"{public.rows:,}", "yes" if public.present(folder) else "no", how, public.licence])
    rows.append(["simulated", "any", "yes", "fieldwise simulate", "none: synthetic data"])
    print_table(["name", "rows", "present", "how to get it", "terms"], rows)
    console().print(f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)"))
    absent = [name for name, public in PUBLIC_SETS.items() if public.origin and not public.present(folder)]
    if absent:
        suggest("download one", "fetch", absent[0])


def _fetch(name: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from fieldwise.data.read.public_sets import PUBLIC_SETS, fetch
    from fieldwise.runs.recipe import recipe_names

    folder = data_folder()
    say(f"{PUBLIC_SETS[name].title}: {PUBLIC_SETS[name].licence}")
    shown = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(TextColumn(name), *shown, console=Console(stderr=True)) as bar:
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
    """Write a simulated log, with the true probability of every row."""
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.tables import write_table
    from fieldwise.storage.files import check_file

    check_file(out)
    frame = simulate(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    say(f"{frame.height:,} rows written to {out} ({', '.join(frame.columns)})")
    suggest("write a schema and a recipe for it", "init", out, "--label", "liked")
