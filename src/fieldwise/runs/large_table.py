"""Tables that do not fit in the memory that a recipe states: they are prepared chunk by chunk."""

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.prepare.preparation import is_begun
from fieldwise.data.prepare.prepared import Prepared, SplitPart
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.arrow_library import arrow_library
from fieldwise.data.read.chunk_limits import ChunkLimits, bytes_per_row
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.load_table import open_files
from fieldwise.data.read.mapped_rows import MappedRows
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.raw_table import load_frame, prepare_rows
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.machine import arrays_returned
from fieldwise.storage.scratch import MemoryBudget

MB = 10**6
GB = 10**9
PREPARATION_MEMORY_FACTOR = 6
"""Preparing a table at once takes some six times the memory of its rows."""
CHUNKS_PER_MEMORY_BUDGET = 32
"""A chunk takes several times its rows' memory while it is prepared."""
COPIES_ON_DISK = 3
"""As read, by part, encoded."""
LEAST_CHUNK_ROWS = 1_000
CHUNK_BYTES_FOR_A_MACHINE = 1 << 24
"""About: such chunks are gathered to files of twice to four times as many."""


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
        row_bytes = max(1.0, bytes_per_row(frame))
        rows = int(self.memory / CHUNKS_PER_MEMORY_BUDGET / row_bytes)
        least_rows = min(LEAST_CHUNK_ROWS, frame.height)
        if rows < least_rows:
            least_memory = least_rows * row_bytes * CHUNKS_PER_MEMORY_BUDGET
            raise DataError(
                f"data.memory must hold a chunk of the table: {self.memory / MB:,.0f}MB is too little for rows of "
                f"{row_bytes:,.0f} bytes; set it to {least_memory / MB + 1:,.0f}MB or more"
            )
        if self.engine is None:
            return rows
        return min(rows, max(LEAST_CHUNK_ROWS, int(CHUNK_BYTES_FOR_A_MACHINE / row_bytes)))

    def bounded(self, prepared: Prepared, scratch: Path) -> Prepared:
        """Prepared data whose parts know how they are processed, with scratch files in the folder `scratch`."""
        parts: dict[str, Any] = {}
        for name in PARTS:
            part: SplitPart = getattr(prepared, name)
            budget = MemoryBudget(scratch, self.chunk_rows(part.frame))
            parts[name] = dataclasses.replace(part, rows=part.frame, budget=budget)
        return dataclasses.replace(prepared, **parts)

    def prepared(self, recipe: Recipe, data_dir: Path, folder: Path, scratch: Path) -> Prepared:
        """Prepared data in files of `folder`; later scratch files are in `scratch`. A full disk is a DataError."""
        copies = COPIES_ON_DISK
        if is_begun(folder):  # with the rows of the parts: those as read are not written again
            copies -= 1
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        lacking = lacking_space(folder, self.size * copies - written)
        if lacking:
            raise DataError(
                f"preparing this table needs some {lacking}: free some space, or set FIELDWISE_CACHE to a folder on "
                "another disk"
            )

        table_memory = self.memory // PREPARATION_MEMORY_FACTOR

        def source(source_folder: Path) -> MappedRows:
            if recipe.data.path is None:
                return MappedRows(frame=load_frame(recipe.data, data_dir))
            limits = ChunkLimits.within(table_memory, PREPARATION_MEMORY_FACTOR)
            text = recipe.data.text(recipe.text_columns)
            files = find_files(Path(recipe.data.path))
            return open_files(files, text, limits, source_folder, self.reports)

        with arrays_returned():  # all rows are mapped: the files will have other names
            prepared = prepare_rows(
                recipe,
                source,
                recipe.data.path,
                folder=folder,
                chunk_rows=self.chunk_rows,
                table_memory=table_memory,
                reports=self.reports,
                engine=self.engine,
            )
            return self.bounded(prepared, scratch)


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
    paths = [] if data.path is None else find_files(Path(data.path))
    files = [path for path in paths if path.is_file()]
    if engine is None and len(files) < len(paths):
        return None  # reading it says so
    size = 0.0
    if files:
        source = table_files_of(files, data.text(text_columns))
        size = source.estimated_bytes()
        if engine is None and size * PREPARATION_MEMORY_FACTOR > memory:
            size = source.probed_bytes()
    if engine is None and size * PREPARATION_MEMORY_FACTOR <= memory:
        return None
    try:
        arrow_library()
    except MissingExtraError:
        if data.memory is None and engine is None:
            return None
        raise
    return LargeTable(memory=memory, size=size, reports=reports, engine=engine)


def lacking_space(folder: Path, needed_bytes: float) -> str:
    """The space that is needed and what the disk of a folder has; empty if that is enough."""
    absolute = folder.absolute()
    existing = next(path for path in (absolute, *absolute.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes <= free_bytes:
        return ""
    return f"{_size_words(needed_bytes)} of disk, and {folder} has {_size_words(free_bytes)} free"


def _size_words(size: float) -> str:
    if size >= GB:
        return f"{size / GB:,.1f} GB"
    return f"{size / MB:,.0f} MB"
