"""What commands open by their options: bundle and rows, device, data folder, cache, and displays of progress."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fieldwise.cli.show import say
from fieldwise.data.reports import NO_REPORTS, Reports, ShownReports
from fieldwise.errors import ConfigError
from fieldwise.storage.cache import OFF, Cache, default_cache, user_cache_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.cli.options import Reading
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.recipe import Recipe
    from fieldwise.runs.recorded_runs import RunContext
    from fieldwise.training.callbacks import Callback


def cache_for(quiet: bool = False) -> Cache | None:
    """The cache of prepared data, which reports on standard error what it reads; None if FIELDWISE_CACHE is `off`."""
    if os.environ.get("FIELDWISE_CACHE") == OFF:
        return None
    return default_cache() if quiet else default_cache(say)


def data_folder(name: str | None = None) -> Path:
    """The folder of public data sets: FIELDWISE_DATA, which must exist if the set `name` is read, else a usual one."""
    path = os.environ.get("FIELDWISE_DATA")
    if not path:
        return user_cache_folder() / "data"
    if name is not None and not Path(path).is_dir():
        from fieldwise.data.read.public_sets import PUBLIC_SETS

        if name in PUBLIC_SETS:
            raise ConfigError(f"the data folder must exist: {path} does not; check FIELDWISE_DATA")
    return Path(path)


def reports_for(shown: str, *, quiet: bool = False) -> AbstractContextManager[Reports]:
    """A context whose reports on long work are shown as `--progress` says."""
    if quiet and shown == "text":
        return nullcontext(NO_REPORTS)
    return ShownReports(as_json=shown == "json")


def callbacks_for(tracker: str | None, *, quiet: bool) -> Callable[[str], "list[Callback]"]:
    """A function that makes a training's callbacks by its title: a progress display and the tracker if one is named."""
    from fieldwise.training.callbacks import check_tracker
    from fieldwise.training.progress import progress_for

    tracker_class = None if tracker is None else check_tracker(tracker)

    def callbacks(title: str) -> "list[Callback]":
        display = progress_for(title, quiet=quiet)
        if tracker_class is None:
            return [display]
        return [display, tracker_class(title)]

    return callbacks


def run_context(data_dir: Path, tracker: str | None, *, quiet: bool) -> "RunContext":
    """Where stored runs read their data, and how they are shown."""
    from fieldwise.runs.recorded_runs import RunContext

    note = (lambda _: None) if quiet else say
    callbacks = callbacks_for(tracker, quiet=quiet)
    return RunContext(data_dir=data_dir, cache=cache_for(quiet), note=note, callbacks=callbacks)


def check_device(*devices: str, what: str = "--device") -> None:
    """Check before any work that devices exist, and say which one `auto` is here; errors name `what`."""
    from fieldwise.ops.devices import auto_words, open_device

    for device in devices:
        open_device(device, what)
    if "auto" in devices:
        say(auto_words())


def check_library(recipe: "Recipe") -> None:
    """Check before any work that the library of a recipe's trees is installed."""
    from fieldwise.models.trees import TreeSettings

    if isinstance(recipe.model, TreeSettings):
        recipe.model.library()


def load_bundle(folder: Path, device: str) -> "Bundle":
    """A bundle, on the device that --device names."""
    from fieldwise.bundle.bundle import Bundle

    check_device(device)
    return Bundle.load(folder, device=device)


def rows_of_bundle(
    bundle: "Bundle", folder: Path, parts: "Sequence[Literal['valid', 'test']]", instead: str
) -> "tuple[Prepared, list[pl.DataFrame]]":
    """The prepared data of a bundle's recipe, and the raw rows of some parts; errors end with `instead`."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.rows_of_run import PART_WORDS, UNCHECKED, recipe_of, rows_of_run

    recipe = recipe_of(bundle, folder, instead)
    prepared = prepare_recipe(recipe, data_folder(recipe.data.name), cache=cache_for())
    frames = []
    for position, part in enumerate(parts):
        frame, is_checked = rows_of_run(bundle, recipe, prepared, part, instead)
        frames.append(frame)
        if position == 0:
            is_first_checked = is_checked
    if not is_first_checked:
        say(UNCHECKED.format(PART_WORDS[parts[0]]))
    return prepared, frames


def scored_table(bundle: "Bundle", table: Path, reading: "Reading") -> "pl.DataFrame":
    """The rows of a table for a bundle to score, with the features of its recipe."""
    from fieldwise.features.definitions import check_has_features

    rows = reading.table(table, bundle.schema.text_columns)
    check_has_features(rows.columns, bundle.about.recipe_settings, bundle.schema.columns)
    return rows


def table_files(*tables: Path | None) -> list[Path]:
    """The files of tables that a command reads; none for None."""
    from fieldwise.data.read.file_listing import find_files

    files: list[Path] = []
    for table in tables:
        if table is not None:
            files += find_files(table)
    return files
