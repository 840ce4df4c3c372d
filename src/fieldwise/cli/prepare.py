"""`fieldwise prepare`: prepare a recipe's rows in the cache; list and clear the cache."""

import time
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.errors import ConfigError, DataError
from fieldwise.runs.recipe_files import load_recipe
from fieldwise.storage.cache import Cache, default_cache


def run(
    *,
    recipe: opt.RecipeName = "",
    settings: opt.Settings = None,
    clear: Annotated[bool, Option(help="Remove all entries of the cache.")] = False,
    json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    progress: opt.Shown = "text",
    engine: EngineName = "local",
) -> None:
    """Prepare a recipe's rows in the cache, or list the cache.

    All commands read the rows from there. Without RECIPE the entries are listed; --clear removes
    them. With --engine ray the machines of a Ray cluster share the work; the result is the same to
    the bit.
    """
    cache = default_cache() if quiet else default_cache(show.say)
    if recipe and not clear:
        _prepare(
            recipe, settings, cache, as_json=json, quiet=quiet, progress=progress, engine=engine
        )
        return

    if recipe:
        raise ConfigError(
            f"--clear removes all entries, found the recipe {recipe} too: give one of them"
        )
    opt.check_no_settings(settings)
    if engine != "local":
        raise ConfigError(
            f"--engine {engine} prepares a recipe, which is not given: name one, or omit --engine"
        )
    if clear:
        _clear_cache(cache, as_json=json)
    else:
        _list_cache(cache, as_json=json)


def _prepare(
    recipe: str,
    settings: list[str] | None,
    cache: Cache,
    *,
    as_json: bool,
    quiet: bool,
    progress: str,
    engine: str,
) -> None:
    """Prepare a recipe's rows in the cache."""
    loaded = load_recipe(recipe, settings or ())  # PyTorch is loaded only if all else is valid
    from fieldwise.runs.data import prepare_recipe

    began = time.time()
    with engine_for(engine) as cluster, resources.reports_for(progress, quiet=quiet) as reports:
        reports.begin("preparation", run=loaded.name)
        folder = resources.data_folder(loaded.data.name)
        prepared = prepare_recipe(loaded, folder, cache=cache, reports=reports, engine=cluster)
    is_stored = any(entry.used >= began - 1 for entry in cache.entries())
    if not is_stored:
        raise DataError(
            f"the prepared rows could not be stored in the cache {cache.folder}: free some space there, or set "
            "FIELDWISE_CACHE to another folder"
        )

    seconds = round(time.time() - began, 1)
    if as_json:
        show.print_json(
            {
                "recipe": loaded.name,
                "counts": prepared.counts,
                "cache": str(cache.folder),
                "seconds": seconds,
            }
        )
        return
    show.say(
        f"{loaded.name}: {show.row_counts(prepared.counts)}; prepared in {seconds:,.1f} s, in the cache {cache.folder}"
    )
    if not quiet:
        show.suggest("train on them", "train", recipe, *opt.setting_words(settings))


def _clear_cache(cache: Cache, *, as_json: bool) -> None:
    """Remove all entries of the cache."""
    removed = cache.clear()
    size = sum(entry.size for entry in removed)
    if as_json:
        show.print_json({"cache": str(cache.folder), "removed": len(removed), "bytes": size})
        return
    number = show.counted(len(removed), "entry", "entries")
    show.say(f"{number} removed, {size / show.MIB:,.1f} MiB, from {cache.folder}")


def _list_cache(cache: Cache, *, as_json: bool) -> None:
    """List the entries of the cache, most recently used first."""
    entries = cache.entries()
    if as_json:
        plain = [
            {"title": e.title, "bytes": e.size, "used": e.used, "folder": str(e.folder)}
            for e in entries
        ]
        show.print_json({"cache": str(cache.folder), "limit": cache.limit, "entries": plain})
        return

    rows = []
    for entry in entries:
        last_used = ""
        if entry.used:
            last_used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        size = f"{entry.size / show.MIB:,.1f}"
        rows.append([entry.title, size, last_used, entry.folder.name[:12]])
    if rows:
        show.print_table(["prepared", "MiB", "last used", "entry"], rows)

    total = sum(entry.size for entry in entries) / show.MIB
    number = show.counted(len(entries), "entry", "entries")
    show.console().print(
        f"{number}, {total:,.1f} of at most {cache.limit / show.MIB:,.0f} MiB, in {cache.folder}"
    )
