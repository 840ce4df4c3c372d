"""A recipe's data: reading, preparing and caching."""

import dataclasses
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.config import nearest, to_plain
from fieldwise.data.prepare.files import Inputs, data_key, prepared_sums, read_prepared, write_prepared
from fieldwise.data.prepare.parts import Plan
from fieldwise.data.prepare.prepared import Part, Prepared, prepare
from fieldwise.data.prepare.settings import PARTS, PreparationSettings
from fieldwise.data.prepare.stages import Stages
from fieldwise.data.read.found import is_many
from fieldwise.data.read.lines import naming_lines
from fieldwise.data.read.mapped import MappedRows
from fieldwise.data.read.pieces import table_bytes
from fieldwise.data.read.public import PUBLIC_SETS
from fieldwise.data.read.simulated.log import simulate
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.reports import Reports
from fieldwise.data.table import EncodedTable
from fieldwise.distributed.engine import Engine
from fieldwise.errors import ConfigError, DataError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.large import LargeTable, large_table, size_text, spread_table
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema
from fieldwise.storage.cache import Cache
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.memory import arrays_returned

__all__ = ["data_inputs", "data_settings", "load_frame", "prepare_recipe"]


def load_frame(data: DataSettings, data_dir: Path) -> pl.DataFrame:
    """The raw table of a recipe.

    Errors:
        ConfigError: an unknown name. DataError: missing or damaged files.
    """
    if data.path is not None:
        return as_table(Path(data.path), separator=data.separator, encoding=data.encoding, columns=data.columns)
    if data.name == "simulated":
        return simulate(data.rows, users=data.users, items=data.items, seed=data.seed)
    if data.name not in PUBLIC_SETS:
        known = nearest(str(data.name), [*PUBLIC_SETS, "simulated"])
        raise ConfigError(f"data.name must be a known data set, found {data.name!r}: {known}")
    return PUBLIC_SETS[data.name].read(data_dir)


def prepare_recipe(
    recipe: Recipe,
    data_dir: Path,
    frame: TableLike | None = None,
    *,
    cache: Cache | None = None,
    reports: Reports | None = None,
    engine: Engine | None = None,
) -> Prepared:
    """Load, split and encode a recipe's data; the encoded columns are mapped from disk.

    Args:
        recipe: its data, schema, split, seed, negatives, history and target encoding are used.
        data_dir: the folder of public data sets.
        frame: the raw table, if it has already been read.
        cache: cache of prepared data, which is read if it has the same data and settings, else written; not used
            with `frame`.
        reports: told the phases of preparing a large table, and their rows.
        engine: machines that share the work and see the cache's folder; the result is the same. Not used with `frame`.
    """
    if frame is not None:
        return _prepare(recipe, as_table(frame))
    large = large_table(recipe.data) if engine is None else spread_table(recipe.data, engine)
    if large is not None and reports is not None:
        large = dataclasses.replace(large, reports=reports)
    if cache is None:
        return _prepared_anew(recipe, data_dir)[0] if large is None else _large_anew(recipe, large, data_dir)
    paths = _data_files(recipe.data, data_dir)
    try:
        inputs = Inputs.of(paths)
    except OSError:
        return _prepared_anew(recipe, data_dir)[0]  # whose error says what is absent
    key = data_key(data_settings(recipe), inputs)
    found = cache.get(key, read_prepared)
    if found is not None:
        return found if large is None else large.bounded(found, cache.folder)
    if large is not None:
        return _large_cached(recipe, large, data_dir, cache, key)
    prepared, fits = _prepared_anew(recipe, data_dir, cache)
    if fits and inputs.unchanged(paths):  # otherwise the state of the files that were read is unknown
        cache.put(key, _title(recipe, prepared), lambda folder: write_prepared(prepared, folder))
    return prepared


def _title(recipe: Recipe, prepared: Prepared) -> str:
    counts = ", ".join(f"{prepared.counts[f'{name}_rows']:,} {name}" for name in PARTS)
    short = Path(recipe.name).name if recipe.name.endswith(".toml") else recipe.name
    return f"{short}, {counts} rows"


def _large_cached(recipe: Recipe, large: LargeTable, data_dir: Path, cache: Cache, key: str) -> Prepared:
    """Prepared data of a large table, made in the cache's folder; a killed preparation goes on there."""
    with cache.making(key) as folder:
        if (found := cache.get(key, read_prepared)) is not None:  # another process has made it meanwhile
            return large.bounded(found, cache.folder)
        if Stages.begun(folder):
            cache.note(f"a preparation of the same data was interrupted: it goes on ({folder})")
        prepared = _in_stages(recipe, large, data_dir, folder, cache.folder)
        sums = prepared_sums(folder)
        cache.put(key, _title(recipe, prepared), partial(Stages.link, folder), limited=False, sums=sums)
        made = cache.get(key, read_prepared, verify=False)
        if made is None:  # the disk was too full for an entry: the next run finds all stages finished
            return prepared
        shutil.rmtree(folder, ignore_errors=True)
    return large.bounded(made, cache.folder)


def _large_anew(recipe: Recipe, large: LargeTable, data_dir: Path) -> Prepared:
    """Prepared data of a large table in mapped files that have no names any more."""
    with scratch_folder() as folder:
        return _in_stages(recipe, large, data_dir, folder, folder.parent)


def _in_stages(recipe: Recipe, large: LargeTable, data_dir: Path, folder: Path, place: Path) -> Prepared:
    """Prepared data in files of `folder`; `place` is for scratch files later."""
    plan = Plan(schema=recipe.schema, split=recipe.split, seed=recipe.rows_seed, add=_additions(recipe))
    large.check_space(folder, begun=Stages.begun(folder))
    stages = Stages(folder=folder, plan=plan, reports=large.reports, engine=large.engine)

    def source(scratch: Path) -> MappedRows:
        if recipe.data.path is None:
            return MappedRows(frame=load_frame(recipe.data, data_dir))
        return large.read(recipe.data, scratch)

    with _naming_lines(recipe.data), arrays_returned():
        stages.run(source, large.piece_rows)
    prepared = read_prepared(folder)
    return large.bounded(prepared, place)  # all rows are mapped now: the files will have other names


def _prepared_anew(recipe: Recipe, data_dir: Path, cache: Cache | None = None) -> tuple[Prepared, bool]:
    """Prepared data, and whether the disk of the cache has room for them."""
    frame = load_frame(recipe.data, data_dir)
    fits = _check_disk(recipe.schema, frame, cache)
    with _naming_lines(recipe.data):
        return _prepare(recipe, frame), fits


def _check_disk(schema: Schema, frame: pl.DataFrame, cache: Cache | None) -> bool:
    """Check, before any work, that the encoded rows fit on the disk; returns whether the entry of the cache does too.

    Errors:
        DataError: they do not; both numbers are given.
    """
    numbers = sum(f.cell == "number" for f in schema.fields)
    encoded = 4 * frame.height * (len(schema.fields) + numbers + len(schema.labels))
    place = Path(tempfile.gettempdir())
    if encoded > (free := shutil.disk_usage(place).free):
        raise DataError(
            f"preparing this table needs at least {size_text(encoded)} of disk, and {place} has {size_text(free)} "
            "free: free some space, or set TMPDIR to a folder on another disk"
        )
    if cache is None:
        return True
    there = next(path for path in (cache.folder.absolute(), *cache.folder.absolute().parents) if path.exists())
    entry = encoded + table_bytes(frame) + (encoded if there.stat().st_dev == place.stat().st_dev else 0)
    if entry > (free := shutil.disk_usage(there).free):
        cache.note(
            f"not stored in the cache: that needs {size_text(entry)} of disk, and {cache.folder} has "
            f"{size_text(free)} free"
        )
        return False
    return True


def _naming_lines(data: DataSettings) -> AbstractContextManager[None]:
    """A context in which errors about rows of a user's text file name its lines."""
    if data.path is None:
        return nullcontext()
    return naming_lines(Path(data.path), separator=data.separator, encoding=data.encoding, columns=data.columns)


def _additions(recipe: Recipe) -> PreparationSettings:
    return PreparationSettings(
        negatives=recipe.negatives, history=recipe.history, target_encoding=recipe.target_encoding
    )


def _prepare(recipe: Recipe, frame: pl.DataFrame) -> Prepared:
    prepared = prepare(frame, recipe.schema, split=recipe.split, seed=recipe.rows_seed, add=_additions(recipe))
    # A mapping outlives its file's name; on systems that keep mapped files, their temporary folder is cleaned later.
    with scratch_folder() as folder:
        return dataclasses.replace(
            prepared,
            train=_mapped(prepared.train, folder / "train"),
            valid=_mapped(prepared.valid, folder / "valid"),
            test=_mapped(prepared.test, folder / "test"),
        )


def data_inputs(recipe: Recipe, data_dir: Path) -> Inputs:
    """The files that a recipe reads, with digests.

    Errors:
        DataError: a file cannot be read.
    """
    files = _data_files(recipe.data, data_dir)
    if not files and recipe.data.name in PUBLIC_SETS:
        load_frame(recipe.data, data_dir)  # whose error says what is absent
    try:
        return Inputs.of(files)
    except OSError as e:
        raise DataError(f"recipe {recipe.name}: cannot read {e.filename}: {e.strerror or e}") from None


def _data_files(data: DataSettings, data_dir: Path) -> dict[str, Path]:
    """The files that `load_frame` may read, by names that do not depend on their folder."""
    if data.path is not None:
        if not is_many(Path(data.path)):
            return {f"data{''.join(Path(data.path).suffixes)}": Path(data.path)}
        return {f"data/{k:06d}{''.join(path.suffixes)}": path for k, path in enumerate(data.files)}
    if data.name not in PUBLIC_SETS:
        return {}
    folder = data_dir / PUBLIC_SETS[data.name].folder
    paths = {*folder.rglob("*"), *folder.glob("*/*")}  # rglob skips the contents of linked folders
    return {str(path.relative_to(folder)): path for path in paths if path.is_file()}


def data_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that determine prepared data, as plain values."""
    data = to_plain(dataclasses.replace(recipe.data, path=None if recipe.data.path is None else "file", memory=None))
    parts = {
        "split": recipe.split,
        "negatives": recipe.negatives,
        "history": recipe.history,
        "target_encoding": recipe.target_encoding,
    }
    plain = {name: None if settings is None else to_plain(settings) for name, settings in parts.items()}
    return {**plain, "data": data, "schema": recipe.schema.to_dict(), "seed": recipe.rows_seed}


def _mapped(part: Part, folder: Path) -> Part:
    part.table.save(folder)
    return dataclasses.replace(part, table=EncodedTable.open(folder))
