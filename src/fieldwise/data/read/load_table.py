"""A whole table of files: in memory, or written chunk by chunk to Arrow files and mapped."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.read.arrow_library import arrow_library
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.fixed_size_lists import as_lists
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.formats.table_files import TableFiles
from fieldwise.data.read.mapped_rows import GATHERED_BYTES, MappedRows, RowsWriter, map_rows
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.errors import MissingExtraError
from fieldwise.storage.files import write_atomically
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.machine import available_memory

_PROGRESS_FILE = "progress.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FILES_PER_MEMORY = 8
"""A file's rows are in memory twice while it is written."""
_TABLES_PER_MEMORY = 6
"""A table may take this part of the available memory, as its rows are copied and encoded besides."""


def open_table(
    data: str | Path,
    text: TextFormat | None = None,
    *,
    memory: int | None = None,
    folder: Path | None = None,
) -> pl.DataFrame:
    """The table of a file, a folder or a pattern: the same as `as_table`, also where it is larger than memory.

    Rows stand in the order of the files' names. A table that takes more than `memory` bytes is
    written chunk by chunk to Arrow files in `folder`, which the caller removes, and mapped: a few
    chunks of it are in memory at a time.

    Errors:
        DataError: as `as_table`; no file, files of different kinds, columns or types; a file that
            changes while it is read; a full disk.
        MissingExtraError: the table does not fit in `memory`, and pyarrow is not installed.
    """
    files = find_files(Path(data))
    limits = ChunkLimits()
    if memory is not None and table_files_of(files, text).estimated_bytes() > memory:
        limits = ChunkLimits.within(memory)
    return open_files(files, text or TextFormat(), limits, folder).frame


def open_files(
    files: Sequence[Path],
    text: TextFormat,
    limits: ChunkLimits,
    folder: Path | None,
    reports: Reports = NO_REPORTS,
) -> MappedRows:
    """The table of these files of one kind, within limits; see `open_table`. `reports` receives the rows.

    The rows of text that a killed process has written to the folder are not read again.
    """
    source = table_files_of(files, text)
    reports.begin("reading rows")
    rows_folder = None
    if limits.bounded:
        arrow_library()
        assert folder is not None, "what is written needs a place"
        rows_folder = folder / "rows"
    if source.types is None:
        return _open_typed_files(source, limits, rows_folder, reports)
    return _open_text(source, source.types, limits, rows_folder, reports)


def _open_typed_files(
    source: TableFiles,
    limits: ChunkLimits,
    rows_folder: Path | None,
    reports: Reports,
) -> MappedRows:
    """The table of files whose columns have types."""
    writer = RowsWriter(rows_folder, gather=_bytes_per_file(limits))
    for path, chunk in source.chunks(limits):
        reports.add(chunk.height)
        limits.check(chunk, path)
        writer.add(as_lists(chunk))
    return writer.table()


def _open_text(
    source: TableFiles,
    types: TextTypes,
    limits: ChunkLimits,
    rows_folder: Path | None,
    reports: Reports,
) -> MappedRows:
    """The table of files of text, whose types all values decide.

    The rows are read a second time if a later value changes a type of rows that are written.
    """
    writer = RowsWriter(rows_folder, gather=_bytes_per_file(limits))
    progress: _ReadingProgress | None = None
    if rows_folder is not None:
        progress = _ReadingProgress(rows_folder, (source.states, source.text, limits))
        progress.resume(writer, source, types)
    rows_read = writer.rows
    reports.add(rows_read)

    types_differ = False
    for path, chunk in source.whole_chunks(limits):
        reports.add(chunk.height)
        limits.check(chunk, path)
        typed = types.add(chunk, path)
        rows_read += chunk.height
        if writer.rows and chunk.height and typed.schema != writer.empty.schema:
            types_differ = True
        if types_differ:
            # Nothing is kept of rows that are read again.
            writer = RowsWriter(rows_folder, gather=_bytes_per_file(limits))
            continue
        writer.add(typed)
        if progress is not None:
            progress.add(path, writer, types)
    if not types_differ:
        return writer.table()

    reports.begin("reading rows again", rows_read)
    source.chunks_done = {}
    if rows_folder is not None:
        shutil.rmtree(rows_folder, ignore_errors=True)
    for _, chunk in source.chunks(limits):
        reports.add(chunk.height)
        writer.add(types.typed(chunk))
    return writer.table()


def _bytes_per_file(limits: ChunkLimits) -> int:
    """The bytes of rows that are gathered for a file."""
    gathered = min(GATHERED_BYTES, limits.memory / _FILES_PER_MEMORY)
    return max(limits.chunk_bytes, int(gathered))


class _ReadingProgress:
    """What a reading of text has written to a folder, stored there, so that a killed one is continued.

    It is not continued after the system has restarted, as nothing is flushed to disk.

    Args:
        folder: the folder of the rows.
        inputs: what the rows depend on; a reading of others is not continued.
    """

    def __init__(self, folder: Path, inputs: Sequence[object]) -> None:
        self._folder = folder
        self._chunks_done: Counter[Path] = Counter()
        # empty where a restart cannot be told
        self._facts = ""
        if _BOOT_ID.is_file():
            self._facts = repr((_BOOT_ID.read_text("ascii"), *inputs))

    def resume(self, writer: RowsWriter, source: TableFiles, types: TextTypes) -> None:
        """Continue where a killed reading of the same text stopped, else remove what it has written."""
        with suppress(OSError, ValueError, LookupError):
            stored = json.loads((self._folder / _PROGRESS_FILE).read_text("utf-8"))
            paths = [Path(path) for path in stored["paths"]]
            if self._facts and stored["facts"] == self._facts and all(map(Path.is_file, paths)):
                self._continue_from(stored, paths, writer, source, types)
                return
        shutil.rmtree(self._folder, ignore_errors=True)

    def _continue_from(
        self,
        stored: Mapping[str, Any],
        paths: list[Path],
        writer: RowsWriter,
        source: TableFiles,
        types: TextTypes,
    ) -> None:
        """Take over the files and types of an earlier reading, whose chunks are passed over."""
        written = map_rows(paths)
        writer.paths = paths
        writer.rows = written.height
        writer.empty = written.clear()
        types.restore(stored["types"])
        source.chunks_done = {Path(path): count for path, count in stored["done"]}
        self._chunks_done = Counter(source.chunks_done)

    def add(self, path: Path, writer: RowsWriter, types: TextTypes) -> None:
        """Note that a chunk of a file was read; store it if all rows are in files."""
        self._chunks_done[path] += 1
        if not (self._facts and writer.is_flushed):
            return
        progress = {
            "facts": self._facts,
            "paths": list(map(str, writer.paths)),
            "types": types.to_plain(),
            "done": [(str(path), count) for path, count in self._chunks_done.items()],
        }
        write_atomically(self._folder / _PROGRESS_FILE, json.dumps(progress).encode())


def whole_table(
    data: str | Path,
    text: TextFormat | None = None,
    *,
    memory: int | None = None,
    parent: Path | None = None,
) -> pl.DataFrame:
    """The table of a file, a folder or a pattern, as of `as_table`.

    With pyarrow (extra `large`) a table that takes more than its share of memory is mapped from
    files in `parent`, or the folder of temporary files, which have no names any more; without it, it
    is read into memory. It may take `memory` bytes, or a sixth of what is available.
    """
    if memory is None:
        memory = available_memory() // _TABLES_PER_MEMORY
    if table_files_of(find_files(Path(data)), text).estimated_bytes() > memory:
        with suppress(MissingExtraError), scratch_folder(parent) as folder:
            arrow_library()
            return open_table(data, text, memory=memory, folder=folder)
    return open_table(data, text)
