"""The raw table of a recipe: reading it, and preparing it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.prepare.preparation import Preparation
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.mapped_rows import MappedRows
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.data.read.row_numbers import naming_lines
from fieldwise.data.read.simulation import simulate
from fieldwise.errors import ConfigError
from fieldwise.features.log_features import LogFeatures
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe


def load_frame(
    data: DataSettings, data_dir: Path, text_columns: Sequence[str] = ()
) -> pl.DataFrame:
    """The raw table of a recipe, with the `text_columns` of its schema as they are written.

    Errors:
        ConfigError: an unknown name.
        DataError: missing or damaged files.
    """
    if data.path is not None:
        return open_table(data.path, data.text(text_columns))
    if data.name == "simulated":
        return simulate(data.rows, users=data.users, items=data.items, seed=data.seed)
    if data.name not in PUBLIC_SETS:
        known = nearest(str(data.name), [*PUBLIC_SETS, "simulated"])
        raise ConfigError(f"data.name must be a known data set, found {data.name!r}: {known}")
    return PUBLIC_SETS[data.name].read(data_dir)


def prepare_frame(recipe: Recipe, frame: pl.DataFrame, path: str | None = None) -> Prepared:
    """Prepared data of a table in memory; `path` is the file that it was read from, as in `prepare_rows`."""
    return prepare_rows(recipe, lambda _: MappedRows(frame=frame), path)


def prepare_rows(
    recipe: Recipe,
    source: Callable[[Path], MappedRows],
    path: str | None,
    **options: Any,
) -> Prepared:
    """Prepared data of rows, with `options` of `Preparation`.

    Errors about the rows name the lines of the file, if they were read from one.
    """
    with naming_lines(path, recipe.data.text()):
        return preparation_of(recipe, **options).run(source)


def preparation_of(recipe: Recipe, **options: Any) -> Preparation:
    """How the rows of a recipe are prepared, with `options` of `Preparation`."""
    features = None
    if recipe.features:
        features = LogFeatures(features=recipe.features, schema=recipe.schema)
    return Preparation(
        schema=recipe.schema,
        split=recipe.split,
        seed=recipe.rows_seed,
        negatives=recipe.negatives,
        history=recipe.history,
        target_encoding=recipe.target_encoding,
        features=features,
        **options,
    )
