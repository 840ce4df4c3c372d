"""A recipe's data: reading, preparing and caching; tables that do not fit in the memory that a recipe states."""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import nearest, to_plain
from fieldwise.data.prepare.prepared import (
    SOURCE,
    Preparation,
    Prepared,
    SplitPart,
    is_begun,
    link_results,
    read_prepared,
    write_prepared,
)
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.arrow_files import (
    ChunkLimits,
    MappedRows,
    arrow_library,
    bytes_per_row,
    estimated_bytes,
    table_bytes,
)
from fieldwise.data.read.chunked_table import TableFiles, naming_lines, open_files, open_table
from fieldwise.data.read.file_listing import (
    file_state,
    find_files,
    folder_values,
    is_many,
    kind_of,
    suffix_of,
)
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.data.read.simulation import simulate
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.cache import Cache
from fieldwise.storage.files import file_digest, scratch_folder
from fieldwise.storage.machine import arrays_returned
from fieldwise.storage.scratch import MemoryBudget
from fieldwise.version import __version__

IN_MEMORY = 6  # preparing a table at once takes some six times the memory of its rows
PIECES = 32  # of the memory; a chunk takes several times its rows' memory while it is prepared
COPIES = 3  # of the rows on disk: as read, by part, encoded
LEAST_ROWS = 1_000  # per chunk
MB = 10**6
PROBE_BYTES = 1 << 20  # of a text, to learn how much memory its rows take
PACKED = 10
SOURCES = ("config.py", "layout.py", "runs/data.py", "runs/data_settings.py", "runs/recipe.py")
FOLDERS = ("data", "schema")
# of rows for a machine, about: such chunks are gathered to files of twice to four times as many
FILE_BYTES = 1 << 24


@dataclass(frozen=True)
class Inputs:
    """The input files of a recipe at one moment."""

    files: Mapping[str, str]  # the digest of each file's content, by name
    # its size, modification time and inode: a cheap check for changes
    state: Mapping[str, tuple[int, int, int]]

    @classmethod
    def of(cls, paths: Mapping[str, Path]) -> "Inputs":
        """The state and digests of files."""
        state = {name: file_state(path) for name, path in paths.items()}
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            digests = threads.map(file_digest, paths.values())
            return cls(dict(zip(paths, digests, strict=True)), state)

    def unchanged(self, paths: Mapping[str, Path]) -> bool:
        """Whether no file has changed."""
        try:
            return self.state == {name: file_state(path) for name, path in paths.items()}
        except OSError:
            return False


def data_key(settings: Mapping[str, Any], inputs: Inputs) -> str:
    """The cache key of prepared data: equal only if settings, files, and the code and versions that prepare are."""
    facts = {
        "settings": settings,
        "files": dict(inputs.files),
        "code": _code_digest(),
        "versions": [__version__, pl.__version__, np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _code_digest() -> str:
    """Digest of the source code that prepares data."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in [
        *(package / name for name in SOURCES),
        *(p for name in FOLDERS for p in sorted((package / name).rglob("*.py"))),
    ]:
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()


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
        return _prepare(recipe, as_table(frame))
    texts = recipe.schema.text_columns
    large = large_table(
        recipe.data, text_columns=texts, reports=reports or NO_REPORTS, engine=engine
    )
    paths = {} if cache is None else _data_files(recipe.data, data_dir)
    try:
        inputs = None if cache is None else Inputs.of(paths)
    except OSError:
        # loading the table says what is absent
        inputs = None
        large = None
    if cache is None or inputs is None:
        if large is None:
            frame = load_frame(recipe.data, data_dir, texts)
            return _prepare(recipe, frame, recipe.data.path)
        with scratch_folder() as folder:  # whose files have no names any more afterwards
            return large.prepared(recipe, data_dir, folder, folder.parent)
    key = data_key(data_settings(recipe), inputs)
    if (result := cache.get(key, read_prepared)) is not None:
        return result if large is None else large.bounded(result, cache.folder)
    if large is None:
        frame = load_frame(recipe.data, data_dir, texts)
        schema = recipe.schema
        numbers = sum(f.cell == "number" for f in recipe.schema.fields)
        encoded = 4 * frame.height * (len(schema.fields) + numbers + len(schema.labels))
        if lacking := _lacking(cache.folder, encoded + table_bytes(frame)):
            cache.note(f"not stored in the cache: that needs {lacking}")
        prepared = _prepare(recipe, frame, recipe.data.path)
        # otherwise the state of the files that were read is unknown
        if not lacking and inputs.unchanged(paths):
            cache.put(
                key, _title(recipe, prepared), lambda folder: write_prepared(prepared, folder)
            )
        return prepared
    with cache.making(key) as folder:  # where a killed preparation goes on
        # another process has made it meanwhile
        if (result := cache.get(key, read_prepared)) is not None:
            return large.bounded(result, cache.folder)
        if is_begun(folder) or (folder / SOURCE).is_dir():
            cache.note(f"a preparation of the same data was interrupted: it goes on ({folder})")
        prepared = large.prepared(recipe, data_dir, folder, cache.folder)
        cache.put(key, _title(recipe, prepared), partial(link_results, folder), limited=False)
        if (result := dataclasses.replace(cache, verify=False).get(key, read_prepared)) is None:
            # the disk was too full for an entry: the next run finds all stages finished
            return prepared
        shutil.rmtree(folder, ignore_errors=True)
        return large.bounded(result, cache.folder)


def _title(recipe: Recipe, prepared: Prepared) -> str:
    counts = ", ".join(f"{prepared.counts[f'{name}_rows']:,} {name}" for name in PARTS)
    short = Path(recipe.name).name if recipe.name.endswith(".toml") else recipe.name
    return f"{short}, {counts} rows"


def _prepare(
    recipe: Recipe,
    source: pl.DataFrame | Callable[[Path], MappedRows],
    path: str | None = None,
    **more: Any,
) -> Prepared:
    """Prepared data of a table; errors about its rows name the lines of the file, if it was read from one."""
    added = {name: getattr(recipe, name) for name in ("negatives", "history", "target_encoding")}
    made = Preparation(
        schema=recipe.schema, split=recipe.split, seed=recipe.rows_seed, **added, **more
    )
    with naming_lines(path, recipe.data.text()):
        return made.run(
            (lambda _: MappedRows(frame=source)) if isinstance(source, pl.DataFrame) else source
        )


def data_inputs(recipe: Recipe, data_dir: Path) -> Inputs:
    """The files that a recipe reads, with digests; a DataError if one cannot be read."""
    files = _data_files(recipe.data, data_dir)
    if not files and recipe.data.name in PUBLIC_SETS:
        load_frame(recipe.data, data_dir)  # whose error says what is absent
    try:
        return Inputs.of(files)
    except OSError as e:
        raise DataError(
            f"recipe {recipe.name}: cannot read {e.filename}: {e.strerror or e}"
        ) from None


def _data_files(data: DataSettings, data_dir: Path) -> dict[str, Path]:
    """The files that `load_frame` may read, by names that do not depend on their folder."""
    if data.path is not None:
        path = Path(data.path)
        files = (
            {f"data/{k:06d}": file for k, file in enumerate(find_files(path))}
            if is_many(path)
            else {"data": path}
        )
        return {
            f"{name}{_told_by_folders(file)}{''.join(file.suffixes)}": file
            for name, file in files.items()
        }
    if data.name not in PUBLIC_SETS:
        return {}
    folder = data_dir / PUBLIC_SETS[data.name].folder
    paths = {*folder.rglob("*"), *folder.glob("*/*")}  # rglob skips the contents of linked folders
    return {str(path.relative_to(folder)): path for path in paths if path.is_file()}


def _told_by_folders(file: Path) -> str:
    """The columns that a file's folders tell, which are data as its content is."""
    return "".join(f",{column}={value}" for column, value in folder_values(file).items())


def data_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that determine prepared data, as plain values."""
    data = to_plain(
        dataclasses.replace(
            recipe.data, path=None if recipe.data.path is None else "file", memory=None
        )
    )
    parts = {
        name: getattr(recipe, name) for name in ("split", "negatives", "history", "target_encoding")
    }
    plain = {
        name: None if settings is None else to_plain(settings) for name, settings in parts.items()
    }
    return {**plain, "data": data, "schema": recipe.schema.to_dict(), "seed": recipe.rows_seed}


@dataclass(frozen=True, kw_only=True)
class LargeTable:
    """A table that is prepared chunk by chunk."""

    memory: int  # bytes that may be in memory
    size: float  # bytes that its rows take, about
    reports: Reports = NO_REPORTS
    # machines that do a part of the work file by file; None: this process does all
    engine: Engine | None = None

    def chunk_rows(self, frame: pl.DataFrame) -> int:
        """How many rows of a table are processed at once; a DataError if the memory does not hold a useful chunk."""
        row = max(1.0, bytes_per_row(frame))
        rows = int(self.memory / PIECES / row)
        if rows < min(LEAST_ROWS, frame.height):
            least = min(LEAST_ROWS, frame.height) * row * PIECES
            raise DataError(
                f"data.memory must hold a chunk of the table: {self.memory / MB:,.0f}MB is too little for rows of "
                f"{row:,.0f} bytes; set it to {least / MB + 1:,.0f}MB or more"
            )
        return rows if self.engine is None else min(rows, max(LEAST_ROWS, int(FILE_BYTES / row)))

    def bounded(self, prepared: Prepared, place: Path) -> Prepared:
        """Prepared data whose parts know how they are processed, with scratch files in `place`."""

        def bounded(part: SplitPart) -> SplitPart:
            return dataclasses.replace(
                part, rows=part.frame, bound=MemoryBudget(place, self.chunk_rows(part.frame))
            )

        parts: dict[str, Any] = {name: bounded(getattr(prepared, name)) for name in PARTS}
        return dataclasses.replace(prepared, **parts)

    def prepared(self, recipe: Recipe, data_dir: Path, folder: Path, place: Path) -> Prepared:
        """Prepared data in files of `folder`; `place` is for scratch files later. A full disk is a DataError."""
        # with the rows of the parts, so that those as read are not written again
        begun = is_begun(folder)
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if lacking := _lacking(folder, self.size * (COPIES - begun) - written):
            raise DataError(
                f"preparing this table needs some {lacking}: free some space, or set FIELDWISE_CACHE to a folder on "
                "another disk"
            )
        how = {
            "folder": folder,
            "chunk_rows": self.chunk_rows,
            "reports": self.reports,
            "engine": self.engine,
        }

        def source(scratch: Path) -> MappedRows:
            if recipe.data.path is None:
                return MappedRows(frame=load_frame(recipe.data, data_dir))
            bounds = ChunkLimits.within(self.memory // IN_MEMORY, IN_MEMORY)
            text = recipe.data.text(recipe.schema.text_columns)
            return open_files(
                find_files(Path(recipe.data.path)), text, bounds, scratch, self.reports
            )

        with arrays_returned():  # all rows are mapped: the files will have other names
            return self.bounded(_prepare(recipe, source, recipe.data.path, **how), place)


def large_table(
    data: DataSettings,
    *,
    text_columns: Sequence[str] = (),
    reports: Reports = NO_REPORTS,
    engine: Engine | None = None,
) -> LargeTable | None:
    """What preparing a table needs that does not fit in memory at once, or that an engine has a share in; else None.

    Only a user's own files are prepared chunk by chunk. Without pyarrow, a table is large only if
    `data.memory` is set, or with an engine.

    Errors:
        DataError: see `find_files`. MissingExtraError: the table is large, and pyarrow is not
            installed.
    """
    if data.path is None and engine is None:
        return None
    memory = data.memory_bytes
    files = [] if data.path is None else find_files(Path(data.path))
    if engine is None and not all(path.is_file() for path in files):
        return None  # reading it says so
    size = sum(map(estimated_bytes, (path for path in files if path.is_file())))
    if engine is None:
        # as typed columns, by its first rows
        if size * IN_MEMORY > memory and kind_of(files[0]) == "delimited text":
            whole = sum(
                path.stat().st_size * (PACKED if suffix_of(path)[1] else 1) for path in files
            )
            chunks = TableFiles(files[:1], data.text()).chunks(
                ChunkLimits(memory=whole, chunk_bytes=PROBE_BYTES)
            )
            _, chunk = next(chunks, (None, pl.DataFrame()))
            letters = sum(int(column.str.len_bytes().sum()) for column in chunk.iter_columns())
            cells = letters + chunk.height * chunk.width
            size = min(
                size,
                TextTypes(text_columns).add(chunk).estimated_size() / cells * whole
                if cells
                else 0.0,
            )
        if size * IN_MEMORY <= memory:
            return None
    try:
        arrow_library()
    except MissingExtraError:
        if data.memory is None and engine is None:
            return None
        raise
    return LargeTable(memory=memory, size=size, reports=reports, engine=engine)


def _lacking(place: Path, needed: float) -> str:
    """The space that is needed and what the disk of a place has; empty if that is enough."""
    there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    return f"{_size(needed)} of disk, and {place} has {_size(free)} free" if needed > free else ""


def _size(number: float) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.0f} MB"
