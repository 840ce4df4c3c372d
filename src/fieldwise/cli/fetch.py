"""`fieldwise fetch` and `fieldwise simulate`: public data sets, and a simulated log."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fieldwise.cli.options import Seed, data_folder
from fieldwise.cli.show import console, counted, print_table, say, suggest
from fieldwise.config import nearest
from fieldwise.errors import ConfigError


def run(
    *, name: Annotated[str | None, Argument(metavar="NAME", help="The data set. Default: all are listed.")] = None
) -> None:
    """Download a public data set from its source, or list all.

    Checksums are checked, and a download that broke off starts again. The files are in the folder that the environment
    variable FIELDWISE_DATA names, else in the user's cache folder; other commands read them there.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from fieldwise.data.read.public_sets import PUBLIC_SETS, fetch
    from fieldwise.runs.recipe import recipe_names

    folder, rows, absent = data_folder(), [], []
    if name is None:
        for known, public in PUBLIC_SETS.items():
            how, here = f"fieldwise fetch {known}" if public.origin else "by hand", public.present(folder)
            rows.append([known, f"{public.rows:,}", "yes" if here else "no", how, public.licence])
            absent += [known] if public.origin and not here else []
        rows.append(["simulated", "any", "yes", "fieldwise simulate", "none: synthetic data"])
        print_table(["name", "rows", "present", "how to get it", "terms"], rows)
        console().print(f"data folder: {folder}" + ("" if folder.is_dir() else " (does not exist yet)"))
        if absent:
            suggest("download one", "fetch", absent[0])
        return
    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    public = PUBLIC_SETS[name]
    say(f"{public.title}: {public.licence}")
    shown = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(TextColumn(name), *shown, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        files = fetch(public, folder, progress=lambda done, total: bar.update(task, completed=done, total=total))
    print(*files, sep="\n")
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    if recipes:
        suggest("train a model on it", "train", f"{name}/fm" if f"{name}/fm" in recipes else recipes[0])


def run_simulate(
    *,
    out: Annotated[Path, Option(help="File to write: .csv, .tsv, .parquet or .arrow.")],
    rows: Annotated[int, Option(min=1, help="Number of rows.")] = 120_000,
    users: Annotated[int, Option(min=1, help="Number of users.")] = 1_000,
    items: Annotated[int, Option(min=1, help="Number of films.")] = 400,
    seed: Seed = 0,
) -> None:
    """Write a simulated log, with the true probability of every row."""
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.tables import write_table
    from fieldwise.storage.files import check_file

    check_file(out)
    frame = simulate(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    say(f"{counted(frame.height, 'row')} written to {out} ({', '.join(frame.columns)})")
    suggest("write a schema and a recipe for it", "init", out, "--label", "liked")
