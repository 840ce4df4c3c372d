"""A recipe's prepared data: from the cache, or read, split, encoded and cached."""

import dataclasses
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import polars as pl

from fieldwise.data.prepare.preparation import SOURCE, is_begun, link_results
from fieldwise.data.prepare.prepared import Prepared, read_prepared, write_prepared
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.chunk_limits import table_bytes
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.runs.cache_key import data_key, data_settings
from fieldwise.runs.inputs import Inputs, input_files
from fieldwise.runs.large_table import LargeTable, lacking_space, large_table
from fieldwise.runs.raw_table import load_frame, prepare_frame
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.storage.cache import Cache
from fieldwise.storage.folders import scratch_folder

BYTES_PER_CELL = 4  # of encoded rows


def prepare_recipe(
    recipe: Recipe,
    data_dir: Path,
    frame: TableLike | None = None,
    *,
    cache: Cache | None = None,
    reports: Reports | None = None,
    engine: Engine | None = None,
) -> Prepared:
    """Load, split and encode a recipe's data; rows from the cache, and those of a large table, are mapped from disk.

    Args:
        recipe: its data, schema, split, seed, negatives, history and target encoding are used.
        data_dir: the folder of public data sets.
        frame: the raw table, if it has already been read.
        cache: cache of prepared data, which is read if it has the same data and settings, else
            written; not used with `frame`.
        reports: receives the phases of preparing a large table, and their rows.
        engine: machines that share the work and see the cache's folder; the result is the same. Not
            used with `frame`.
    """
    if frame is not None:
        return prepare_frame(recipe, as_table(frame))
    large = large_table(
        recipe.data,
        text_columns=recipe.text_columns,
        reports=reports or NO_REPORTS,
        engine=engine,
    )
    if cache is None:
        return _prepare_uncached(recipe, data_dir, large)
    paths = input_files(recipe, data_dir)
    try:
        inputs = Inputs.of(paths)
    except OSError:  # loading the table says what is absent
        return _prepare_uncached(recipe, data_dir, None)

    key = data_key(data_settings(recipe), inputs)
    cached = cache.get(key, read_prepared)
    if cached is not None:
        return cached if large is None else large.bounded(cached, cache.folder)
    if large is None:
        return _prepare_at_once(recipe, data_dir, cache, key, inputs, paths)
    return _prepare_by_chunks(recipe, data_dir, cache, key, large)


def _prepare_uncached(recipe: Recipe, data_dir: Path, large: LargeTable | None) -> Prepared:
    if large is None:
        frame = load_frame(recipe.data, data_dir, recipe.text_columns)
        return prepare_frame(recipe, frame, recipe.data.path)
    with scratch_folder() as folder:  # whose files have no names any more afterwards
        return large.prepared(recipe, data_dir, folder, folder.parent)


def _prepare_at_once(
    recipe: Recipe,
    data_dir: Path,
    cache: Cache,
    key: str,
    inputs: Inputs,
    paths: Mapping[str, Path],
) -> Prepared:
    """Prepared data of a table in memory, which are cached if the disk has the space and no file has changed."""
    frame = load_frame(recipe.data, data_dir, recipe.text_columns)
    lacking = lacking_space(cache.folder, _encoded_bytes(recipe.schema, frame) + table_bytes(frame))
    if lacking:
        cache.note(f"not stored in the cache: that needs {lacking}")
    prepared = prepare_frame(recipe, frame, recipe.data.path)

    # otherwise the state of the files that were read is unknown
    if not lacking and inputs.unchanged(paths):
        cache.put(key, _title(recipe, prepared), partial(write_prepared, prepared))
    return prepared


def _encoded_bytes(schema: Schema, frame: pl.DataFrame) -> int:
    numbers = sum(field.cell == "number" for field in schema.fields)
    cells_per_row = len(schema.fields) + numbers + len(schema.labels)
    return BYTES_PER_CELL * frame.height * cells_per_row


def _prepare_by_chunks(
    recipe: Recipe, data_dir: Path, cache: Cache, key: str, large: LargeTable
) -> Prepared:
    """Prepared data of a large table, in the cache; a killed preparation goes on."""
    with cache.making(key) as folder:
        made_meanwhile = cache.get(key, read_prepared)  # by another process
        if made_meanwhile is not None:
            return large.bounded(made_meanwhile, cache.folder)

        if is_begun(folder) or (folder / SOURCE).is_dir():
            cache.note(f"a preparation of the same data was interrupted: it goes on ({folder})")
        prepared = large.prepared(recipe, data_dir, folder, cache.folder)
        cache.put(key, _title(recipe, prepared), partial(link_results, folder), limited=False)

        cached = dataclasses.replace(cache, verify=False).get(key, read_prepared)
        if cached is None:
            # the disk was too full for an entry: the next run finds all stages finished
            return prepared
        shutil.rmtree(folder, ignore_errors=True)
        return large.bounded(cached, cache.folder)


def _title(recipe: Recipe, prepared: Prepared) -> str:
    """The title of prepared data in the cache."""
    name = recipe.name
    if name.endswith(".toml"):
        name = Path(name).name
    counts = ", ".join(f"{prepared.counts[f'{part}_rows']:,} {part}" for part in PARTS)
    return f"{name}, {counts} rows"
