"""`fieldwise prepare` and `fieldwise cache`: fill the cache of prepared data, list it and clear it."""

import time

import typer

from fieldwise.cli.command import add_command
from fieldwise.cli.next import suggest
from fieldwise.cli.options import AsJson, Quiet, RecipeOptions, Shown, data_folder, reports_for
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.cli.show import MIB, console, print_json, print_table, row_counts, say
from fieldwise.errors import DataError

__all__ = ["app", "run"]


def run(
    *,
    recipe: RecipeOptions,
    json: AsJson = False,
    quiet: Quiet = False,
    progress: Shown = "text",
    engine: EngineName = "local",
) -> None:
    """Read, split and encode a recipe's rows once, into the cache that every other command reads.

    With --engine ray the machines of a Ray cluster share the work; the result is the same to the bit.
    """
    loaded = recipe.load()
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.storage.cache import default_cache

    cache = default_cache() if quiet else default_cache(say)
    began = time.time()
    with engine_for(engine) as cluster, reports_for(progress, quiet=quiet) as reports:
        reports.begin("preparation", run=loaded.name)
        prepared = prepare_recipe(loaded, data_folder(loaded.data.name), cache=cache, reports=reports, engine=cluster)
    if not any(entry.used >= began - 1 for entry in cache.entries()):
        raise DataError(
            f"the prepared rows could not be stored in the cache {cache.folder}: free some space there, or set "
            "FIELDWISE_CACHE to another folder"
        )
    seconds = round(time.time() - began, 1)
    if json:
        print_json({"recipe": loaded.name, "counts": prepared.counts, "cache": str(cache.folder), "seconds": seconds})
        return
    say(f"{loaded.name}: {row_counts(prepared.counts)}; prepared in {seconds:,.1f} s, in the cache {cache.folder}")
    if not quiet:
        suggest("train on them", "train", recipe.recipe, *recipe.words)


def _run_show() -> None:
    """List the entries of the cache, most recently used first."""
    from fieldwise.storage.cache import default_cache

    cache = default_cache()
    rows, entries = [], cache.entries()
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)) if entry.used else ""
        rows.append([entry.title, f"{entry.size / MIB:,.1f}", used, entry.folder.name[:12]])
    if rows:
        print_table(["prepared", "MiB", "last used", "entry"], rows)
    size = sum(entry.size for entry in entries) / MIB
    console().print(f"{len(entries)} entries, {size:,.1f} of at most {cache.limit / MIB:,.0f} MiB, in {cache.folder}")


def _run_clear() -> None:
    """Remove all entries. Later runs prepare their data again."""
    from fieldwise.storage.cache import default_cache

    cache = default_cache()
    removed = cache.clear()
    size = sum(entry.size for entry in removed) / MIB
    say(f"{len(removed)} entries removed, {size:,.1f} MiB, from {cache.folder}")


app = typer.Typer(
    help="Cache of prepared data, which later runs of the same recipe on the same data reuse.", no_args_is_help=True
)
add_command(app, "show", _run_show)
add_command(app, "clear", _run_clear)
