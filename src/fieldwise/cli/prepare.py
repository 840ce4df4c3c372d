"""`fieldwise prepare`."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldwise.cli.engines import EngineName, RayAddress, check_engine, engine_for
from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import (
    AsJson,
    DataDir,
    Protocol,
    Quiet,
    RecipeName,
    Settings,
    Shown,
    cache_for,
    existing_data_dir,
    reports_for,
)
from fieldwise.cli.show import print_json, row_counts, say
from fieldwise.errors import DataError

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.recipe import Recipe
    from fieldwise.storage.cache import Cache

__all__ = ["PrepareOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of `fieldwise prepare`."""

    recipe: RecipeName
    settings: Settings = None
    protocol: Protocol = None
    data_dir: DataDir = None
    json: AsJson = False
    quiet: Quiet = False
    progress: Shown = "text"
    engine: EngineName = "local"
    ray_address: RayAddress = None


def run(options: PrepareOptions) -> None:
    """Read, split and encode a recipe's rows once, into the cache that every other command reads.

    With --engine ray the machines of a Ray cluster share the work; the result is the same to the bit.
    """
    from fieldwise.runs.recipe import check_recipe, load_recipe

    check_recipe(options.recipe, options.settings or [], protocol=options.protocol)  # before PyTorch is loaded
    check_engine(options.engine, options.ray_address)
    recipe = load_recipe(options.recipe, options.settings or [], protocol=options.protocol)
    cache = cache_for(True, options.quiet)
    assert cache is not None, "it is wanted"
    began = time.perf_counter()
    prepared = _prepared(options, recipe, cache)
    seconds = round(time.perf_counter() - began, 1)
    if options.json:
        print_json({"recipe": recipe.name, "counts": prepared.counts, "cache": str(cache.folder), "seconds": seconds})
        return
    say(f"{recipe.name}: {row_counts(prepared.counts)}; prepared in {seconds:,.1f} s, in the cache {cache.folder}")
    if not options.quiet:
        given = [part for setting in options.settings or () for part in ("--set", setting)]
        given += [] if options.protocol is None else ["--protocol", options.protocol]
        suggest("train on them", "train", options.recipe, *given, *data_options(options.data_dir))


def _prepared(options: PrepareOptions, recipe: "Recipe", cache: "Cache") -> "Prepared":
    """The prepared rows, which are an entry of the cache then.

    Errors:
        DataError: the cache could not store them.
    """
    from fieldwise.runs.data import prepare_recipe

    data_dir = existing_data_dir(options.data_dir, recipe.data.name)
    began = time.time()
    with (
        engine_for(options.engine, options.ray_address) as engine,
        reports_for(options.progress, quiet=options.quiet) as reports,
    ):
        reports.begin("preparation", run=recipe.name)
        prepared = prepare_recipe(recipe, data_dir, cache=cache, reports=reports, engine=engine)
    if not any(entry.used >= began - 1 for entry in cache.entries()):
        raise DataError(
            f"the prepared rows could not be stored in the cache {cache.folder}: free some space there, or set "
            "FIELDWISE_CACHE to another folder"
        )
    return prepared
