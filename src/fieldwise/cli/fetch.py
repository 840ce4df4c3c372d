"""`fieldwise fetch`: download public data sets, or list them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from fieldwise.cli import resources, show
from fieldwise.config import nearest
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.data.read.public_sets import PublicSet


def run(
    *,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="The data set. Default: all are listed.")
    ] = None,
) -> None:
    """Download a public data set from its source, or list all.

    Checksums are checked, and a download that broke off starts again. The files are in the folder
    that the environment variable FIELDWISE_DATA names, else in the user's cache folder; other
    commands read them there.
    """
    from fieldwise.data.read.public_sets import PUBLIC_SETS
    from fieldwise.runs.recipe_files import recipe_names

    folder = resources.data_folder()
    if name is None:
        _list_sets(folder)
        return
    if name not in PUBLIC_SETS:
        raise ConfigError(f"no data set is named {name!r}: {nearest(name, PUBLIC_SETS)}")
    public = PUBLIC_SETS[name]
    show.say(f"{public.title}: {public.licence}")
    files = _download(name, public, folder)
    print(*files, sep="\n")
    recipes = [recipe for recipe in recipe_names() if recipe.startswith(f"{name}/")]
    if recipes:
        fm_recipe = f"{name}/fm"
        recipe = fm_recipe if fm_recipe in recipes else recipes[0]
        show.suggest("train a model on it", "train", recipe)


def _list_sets(folder: Path) -> None:
    """Print the data sets, and which of them are in the data folder."""
    from fieldwise.data.read.public_sets import PUBLIC_SETS

    rows = []
    fetchable = []
    for name, public in PUBLIC_SETS.items():
        is_present = public.present(folder)
        how = f"fieldwise fetch {name}" if public.origin else "by hand"
        present = "yes" if is_present else "no"
        rows.append([name, f"{public.rows:,}", present, how, public.licence])
        if public.origin and not is_present:
            fetchable.append(name)
    rows.append(["simulated", "any", "yes", "fieldwise simulate", "none: synthetic data"])
    show.print_table(["name", "rows", "present", "how to get it", "terms"], rows)
    absent = "" if folder.is_dir() else " (does not exist yet)"
    show.console().print(f"data folder: {folder}{absent}")
    if fetchable:
        show.suggest("download one", "fetch", fetchable[0])


def _download(name: str, public: "PublicSet", folder: Path) -> "list[Path]":
    """Download a data set with a progress bar on standard error; returns its files."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from fieldwise.data.read.public_sets import fetch

    columns = (
        TextColumn(name),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)

        def show_progress(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        return fetch(public, folder, progress=show_progress)
