"""Tables of files: read in chunks, as a whole (in memory or mapped), in slices, or as a random sample of rows.

Row numbers in errors are translated to files and line numbers of the text that a table came from.
Lists of equal length (vectors) get a column per position, `embedding[0]` and so on.
"""

import csv
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from polars.datatypes import DataTypeClass

from fieldwise.data.read import arrow_files, file_listing
from fieldwise.data.read.arrow_files import ChunkLimits, MappedRows, RowsWriter
from fieldwise.data.read.file_listing import KINDS, find_files, kind_of
from fieldwise.data.read.text_files import LibfmFields, TextFormat, libfm_chunks
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.errors import DataError, MissingExtraError, SchemaError
from fieldwise.storage.files import scratch_folder, write_atomically
from fieldwise.storage.machine import available_memory

MOST_POSITIONS = 64
_POSITION = re.compile(r"(.+)\[(\d+)\]")


def is_position(name: str, columns: Iterable[str]) -> str | None:
    """The column of lists that a column is one position of, or None."""
    result = _POSITION.fullmatch(name)
    return result[1] if result is not None and result[1] in columns else None


def vector_length(column: pl.Series) -> int | None:
    """The common length of the float lists in a column, else None.

    >>> vector_length(pl.Series([[0.5, 1.0], None, [2.0, 3.0]])), vector_length(pl.Series([[0.5], [1.0, 2.0]]))
    (2, None)
    """
    lengths = VectorLengths()
    lengths.add(column.to_frame())
    return lengths.common.get(column.name)


class VectorLengths:
    """The lengths of the float lists in a table's columns, found chunk by chunk; libFM's lists are no vectors."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    def add(self, chunk: pl.DataFrame) -> None:
        """Take the next rows into account."""
        for column in chunk.iter_columns() if chunk.columns != ["label", "ids", "values"] else ():
            kind = column.dtype
            inner = kind.inner if isinstance(kind, (pl.List, pl.Array)) else None
            if not isinstance(inner, pl.DataType) or not inner.is_float():
                continue
            result = self._found.setdefault(column.name, set())
            if isinstance(kind, pl.Array):
                result.add(kind.size)
            elif len(result) < 2:
                lengths = column.list.len()
                result |= {int(n) for n in (lengths.min(), lengths.max()) if n is not None}  # type: ignore[arg-type]

    @property
    def common(self) -> dict[str, int]:
        """The length of each column whose lists have one."""
        return {
            name: next(iter(result)) for name, result in self._found.items() if len(result) == 1
        }


def position_columns(
    schema: Mapping[str, pl.DataType | DataTypeClass], lengths: Mapping[str, int]
) -> dict[str, pl.Expr]:
    """The new columns of the vectors of these lengths that are short enough, by name."""
    made = {}
    for name, length in lengths.items():
        cells = pl.col(name)
        get = cells.arr.get if isinstance(schema[name], pl.Array) else cells.list.get
        for k in range(length if 2 <= length <= MOST_POSITIONS else 0):
            if f"{name}[{k}]" not in schema:
                made[f"{name}[{k}]"] = get(k, null_on_oob=False).alias(f"{name}[{k}]")
    return made


def with_positions(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with a column for each position of its vectors, and every fixed-size list as a list.

    Lists of at least 2 and at most `MOST_POSITIONS` floats get columns; longer ones are not
    changed.

    >>> with_positions(pl.DataFrame({"v": [[0.5, 1.0], [2.0, 3.0]]})).columns
    ['v', 'v[0]', 'v[1]']
    """
    if not any(kind.is_nested() for kind in frame.dtypes):
        return frame
    lengths = VectorLengths()
    lengths.add(frame)
    return as_lists(frame.with_columns(position_columns(frame.schema, lengths.common).values()))


def as_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with every fixed-size list as a list."""
    fixed = [
        pl.col(name).arr.to_list()
        for name, kind in frame.schema.items()
        if isinstance(kind, pl.Array)
    ]
    return frame.with_columns(fixed) if fixed else frame


class FolderColumns:
    """The columns that the names of files' folders tell (see `folder_values`), as they are added to the files' rows.

    A column that a file has itself stays as it is. Values of `text_columns` (None: all) stay as
    they are written.

    Errors:
        DataError: the folders of two files have other columns.
    """

    def __init__(self, files: Sequence[Path], text_columns: Sequence[str] | None = ()) -> None:
        self._values = {path: file_listing.folder_values(path) for path in files}
        first = files[0]
        names = list(self._values[first])
        for path, values in self._values.items():
            if list(values) != names:
                raise DataError(
                    f"the folders of a table must tell the same columns, but those of {first} are "
                    f"{', '.join(names) or 'none'} and those of {path} {', '.join(values) or 'none'}: move the files"
                )
        texts = {name: [values[name] for values in self._values.values()] for name in names}
        self._types = TextTypes(text_columns)
        if names:
            self._types.add(pl.DataFrame(texts, schema=dict.fromkeys(names, pl.String)))

    def add(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The rows of a file with these columns, as text."""
        added = {
            name: value for name, value in self._values[path].items() if name not in chunk.columns
        }
        if not added:
            return chunk
        return chunk.with_columns(
            pl.lit(value, dtype=pl.String).alias(name) for name, value in added.items()
        )

    def typed(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The same with the types that hold the values of all files: see `TextTypes`."""
        own = chunk.columns
        whole = self.add(chunk, path)
        return chunk.hstack(self._types.typed(whole.drop(own)))


class TableFiles:
    """Files of one kind that are read in chunks.

    After construction:
        text: how delimited text is read, its delimiter known; None for other kinds of files.
        states: of the files, for `check_unchanged`.
        types: of columns of text, by the values that were added to it; None if the files are no
            delimited text.
        folders: the columns that the names of the files' folders tell.
    """

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        self._files = files
        self.text = text
        for path in files:
            if (
                text.columns is not None
                and file_listing.suffix_of(path)[0] not in file_listing.TEXT
            ):
                raise DataError(
                    f"columns are for delimited text without a header, but {path} has its own column names: omit them"
                )
        self.states = {path: file_listing.file_state(path) for path in files if path.is_file()}
        self.folders = FolderColumns(files, text.text_columns)
        self.types = TextTypes(text.text_columns) if kind_of(files[0]) == "delimited text" else None

    def chunks(
        self, bounds: ChunkLimits, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows in chunks with the same columns, each with its file; text as String columns.

        Of Parquet and Arrow files only `columns` are read. A file that has changed meanwhile is an
        error.
        """
        files = self._files
        text = self.text
        kind = kind_of(self._files[0])
        try:
            if kind == "delimited text":
                wanted: list[str] = []
                if text.done:
                    wanted = next(
                        replace(text, done={}).chunks(files[0], bounds.chunk_bytes)
                    ).columns
                for path in files:
                    for k, chunk in enumerate(text.chunks(path, bounds.chunk_bytes)):
                        wanted = wanted or chunk.columns
                        if not k and path != files[0]:
                            arrow_files.check_columns(path, chunk.columns, files[0], wanted)
                        in_order = chunk if chunk.columns == wanted else chunk.select(wanted)
                        yield path, self.folders.add(in_order, path)
            elif kind == "libFM":

                def rows() -> Iterator[tuple[Path, pl.DataFrame]]:
                    return (
                        (path, chunk)
                        for path in files
                        for chunk in libfm_chunks(path, bounds.chunk_bytes)
                    )

                fields, held = LibfmFields(), None if bounds.bounded else list(rows())
                for _, chunk in held or rows():
                    fields.add(chunk)
                yield from ((path, fields.table(chunk)) for path, chunk in held or rows())
            else:
                _check_kind(files[0])
                schema = arrow_files.common_schema(
                    {path: arrow_files.binary_schema(path) for path in files}
                )
                own = {
                    name: kind
                    for name, kind in schema.items()
                    if columns is None or name in columns
                }
                # all columns are told by folders: one of the files' tells how many rows they have
                if not own:
                    own = dict(list(schema.items())[:1])
                for path in files:
                    for chunk in arrow_files.binary_chunks(path, bounds, list(own)):
                        typed = chunk if chunk.schema == own else chunk.cast(pl.Schema(own))
                        whole = self.folders.typed(typed, path)
                        yield path, whole if columns is None else whole.select(columns)
        except pl.exceptions.PolarsError:
            file_listing.check_unchanged(self.states)  # the likely cause
            raise
        file_listing.check_unchanged(self.states)

    def whole_chunks(self, bounds: ChunkLimits) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The same for the first reading: every chunk is to be added to `types`, which warn of a header at the end."""
        yield from self.chunks(bounds)
        if self.types is not None and self.text.columns is None:
            self.types.warn_of_header(self._files[0])


PROGRESS = "progress.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_FILES = 8  # of the memory; a file's rows are in memory twice while it is written


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
    text = text or TextFormat()
    bounds = ChunkLimits()
    if memory is not None and sum(map(arrow_files.estimated_bytes, files)) > memory:
        bounds = ChunkLimits.within(memory)
    return open_files(files, text, bounds, folder).frame


def open_files(
    files: Sequence[Path],
    text: TextFormat,
    bounds: ChunkLimits,
    folder: Path | None,
    reports: Reports = NO_REPORTS,
) -> MappedRows:
    """The table of these files of one kind, within bounds; see `open_table`. `reports` receives the rows.

    The rows of text that a killed process has written to the folder are not read again.
    """
    source = TableFiles(files, text)
    place = None
    reports.begin("reading rows")
    if bounds.bounded:
        arrow_files.arrow_library()
        assert folder is not None, "what is written needs a place"
        place = folder / "rows"
    gather = max(bounds.chunk_bytes, int(min(arrow_files.GATHERED, bounds.memory / _FILES)))
    rows = RowsWriter(place, gather=gather)
    types = source.types
    if types is None:
        lengths = VectorLengths()
        for path, chunk in source.chunks(bounds):
            reports.add(chunk.height)
            bounds.check(chunk, path)
            lengths.add(chunk)
            rows.add(as_lists(chunk))
        result = rows.table()
        made = position_columns(result.frame.schema, lengths.common).values()
        if not made or folder is None or not result.files:
            return MappedRows(frame=result.frame.with_columns(made), files=result.files)
        writer = RowsWriter(folder / "positions", gather=0)  # a chunk for every chunk of the table
        for file in result.files:
            writer.add(arrow_files.map_rows([file.path]).select(made))
        return MappedRows(frame=result.frame.hstack(writer.table().frame))
    facts = (
        repr((_BOOT.read_text("ascii"), source.states, text, bounds))
        if place and _BOOT.is_file()
        else ""
    )
    done = _resume(place, facts, rows, source) if place is not None else Counter()
    reports.add(read := rows.rows)
    differ = False
    for path, chunk in source.whole_chunks(bounds):
        reports.add(chunk.height)
        bounds.check(chunk, path)
        typed = types.add(chunk, path)
        read += chunk.height
        if differ or (rows.rows and chunk.height and typed.schema != rows.empty.schema):
            # a later value has changed a type
            differ = True
            rows = RowsWriter(place, gather=gather)
            continue
        rows.add(typed)
        done[path] += 1
        if place is not None and facts and rows.is_flushed:
            plain: dict[str, object] = {
                "facts": facts,
                "paths": list(map(str, rows.paths)),
                "types": types.to_plain(),
            }
            plain |= {"done": [(str(path), count) for path, count in done.items()]}
            write_atomically(place / PROGRESS, json.dumps(plain).encode())
    if differ:
        reports.begin("reading rows again", read)
        source.text = text
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        for _, chunk in source.chunks(bounds):
            reports.add(chunk.height)
            rows.add(types.typed(chunk))
    return rows.table()


def _resume(place: Path, facts: str, rows: RowsWriter, source: TableFiles) -> Counter[Path]:
    """Continue where a killed reading of the same text stopped, unless the system has restarted: nothing is flushed.

    Returns how many chunks of each file of text are done, whose rows stand in written files.
    """
    assert source.types is not None
    with suppress(OSError, ValueError, LookupError):
        result = json.loads((place / PROGRESS).read_text("utf-8"))
        paths = [Path(path) for path in result["paths"]]
        if facts and result["facts"] == facts and all(map(Path.is_file, paths)):
            written = arrow_files.map_rows(paths)
            rows.paths = paths
            rows.rows = written.height
            rows.empty = written.clear()
            source.types.restore(result["types"])
            source.text = replace(
                source.text, done={Path(path): count for path, count in result["done"]}
            )
            return Counter(source.text.done)
    shutil.rmtree(place, ignore_errors=True)
    return Counter()


SHARE = 6  # of the available memory; rows are copied and encoded besides


def whole_table(
    data: str | Path, text: TextFormat | None = None, *, memory: int | None = None
) -> pl.DataFrame:
    """The table of a file, a folder or a pattern, as of `as_table`.

    With pyarrow (extra `large`) a table that takes more than its share of memory is mapped from
    files in the folder of temporary files, which have no names any more; without it, it is read
    into memory. It may take `memory` bytes, or a sixth of what is available.
    """
    memory = available_memory() // SHARE if memory is None else memory
    if sum(map(arrow_files.estimated_bytes, find_files(Path(data)))) > memory:
        with suppress(MissingExtraError), scratch_folder() as folder:
            arrow_files.arrow_library()
            return open_table(data, text, memory=memory, folder=folder)
    return open_table(data, text)


MOST_ROWS = 200_000
WHOLE = 1 << 30  # bytes of a table that is looked at as a whole


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of a table, in its order.

    Args:
        frame: the rows.
        rows: the number of rows of the whole table.
        kept: the number of each row in the whole table; None if all rows are kept.
    """

    frame: pl.DataFrame
    rows: int
    kept: np.ndarray | None = None

    @property
    def origin(self) -> str:
        """How many rows of how many, for a sentence; empty if all rows are kept."""
        drawn = f"{self.frame.height:,} of {self.rows:,} rows, drawn at random from all files"
        return "" if self.kept is None else drawn


def _check_kind(path: Path) -> None:
    if kind_of(path) is None:
        raise DataError(
            f"a table file must be one of {KINDS}, found the name {path.name!r}; convert or rename it"
        )


def sample_table(data: str | Path, text: TextFormat | None = None) -> Sample:
    """All rows of a table of up to about 1 GiB, else a random sample of 200,000 rows, with a few chunks in memory.

    A larger one is read twice: its rows are counted, then those with the numbers that were drawn
    are kept. Types of text are those that all values decide, not only the sample's.
    """
    files = find_files(Path(data))
    text = text or TextFormat()
    if sum(map(arrow_files.estimated_bytes, files)) <= WHOLE:
        frame = open_table(data, text)
        return Sample(frame=frame, rows=frame.height)
    source = TableFiles(files, text)
    bounds = ChunkLimits(memory=sys.maxsize)
    rows = 0
    if source.types is None:
        _check_kind(files[0])
        rows = sum(map(arrow_files.count_rows, files))
    else:
        for path, chunk in source.whole_chunks(bounds):
            source.types.add(chunk, path)
            rows += chunk.height
    kept = np.sort(np.random.default_rng(0).choice(rows, min(rows, MOST_ROWS), replace=False))
    chosen = []
    first = 0
    for _, chunk in source.chunks(bounds):
        low, high = np.searchsorted(kept, (first, first + chunk.height))
        chosen.append(chunk[kept[low:high] - first])
        first += chunk.height
    frame = pl.concat(chosen) if source.types is None else source.types.typed(pl.concat(chosen))
    return Sample(frame=with_positions(frame), rows=rows, kept=None if len(kept) == rows else kept)


_WHOLE = 1 << 28  # bytes of text that are read at once
_PROBE = 100  # rows


class SlicedTable:
    """A table of one file or several that is read in slices, in order.

    Of Parquet and Arrow files only the requested columns are read. Text of more than about 256 MiB
    is read twice: all of a column's values determine its type.

    Args:
        path: a file, a folder or a pattern, as for `as_table`.
        text: how delimited text is written.

    After construction:
        files: the files, in order.
        empty: the table without its rows: names and types of all columns.
    """

    def __init__(self, path: Path, text: TextFormat | None = None) -> None:
        self.path = path
        self.files = find_files(path)
        text = text or TextFormat()
        self._rows: pl.DataFrame | None = None
        self._counted: int | None = None
        self._lengths: dict[str, int] = {}
        kind = kind_of(self.files[0])
        binary = kind in ("Parquet", "Arrow IPC")
        if not binary and sum(arrow_files.estimated_bytes(file) for file in self.files) <= _WHOLE:
            self._rows = open_table(path, text)
            self.empty = self._rows.clear()
            return
        self._source = TableFiles(self.files, text)
        if binary:
            schema = arrow_files.common_schema(
                {file: arrow_files.binary_schema(file) for file in self.files}
            )
            lengths = VectorLengths()
            if any(kind.is_nested() for kind in schema.values()):
                for _, chunk in self._source.chunks(_bounds(_PROBE)):
                    lengths.add(chunk.head(_PROBE))
                    if chunk.height:
                        break
            self._lengths = lengths.common  # as the first rows have them
            empty = as_lists(
                schema.to_frame().with_columns(position_columns(schema, self._lengths).values())
            )
            self.empty = self._source.folders.typed(empty, self.files[0])
        elif kind == "libFM":
            self.empty = next(iter(self._source.chunks(_bounds(1))))[1].clear()
        elif (types := self._source.types) is not None:
            self._counted = 0
            for file, chunk in self._source.whole_chunks(_bounds(1 << 20)):
                self._counted += chunk.height
                self.empty = types.add(chunk, file).clear()

    def count(self) -> int:
        """Number of rows, from the files' metadata where they have them."""
        if self._rows is not None:
            return self._rows.height
        return (
            sum(map(arrow_files.count_rows, self.files)) if self._counted is None else self._counted
        )

    def slices(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """All rows with these columns, in slices of at most `rows` rows.

        Errors:
            DataError: a file is truncated, or has changed.
        """
        if self._rows is not None:
            yield from (self._rows.select(columns).iter_slices(rows) if self._rows.height else ())
            return
        made = {
            name: vector
            for name in columns
            if (vector := is_position(name, self._lengths)) is not None
        }
        vectors = {vector: self._lengths[vector] for vector in made.values()}
        needed = list(dict.fromkeys(made.get(name, name) for name in columns))
        for path, chunk in self._source.chunks(_bounds(rows), needed):
            if self._source.types is not None:
                chunk = self._source.types.typed(chunk.select(needed))
            for vector, most in vectors.items():
                column = chunk.get_column(vector)
                if vector_length(column) != most and column.null_count() < len(column):
                    raise DataError(
                        f"vectors must have one length: column {vector!r} begins with {most} numbers a cell, and "
                        f"{path} has cells with another number; correct them"
                    )
            result = position_columns(chunk.schema, vectors)
            chunk = as_lists(chunk.with_columns(result[name] for name in made))
            yield from chunk.select(columns).iter_slices(rows)


def _bounds(rows: int) -> ChunkLimits:
    return ChunkLimits(memory=sys.maxsize, chunk_rows=rows)


_ROW = re.compile(r"row (\d+) \(counting from 0\)")


def naming_lines(
    data: str | Path | None, text: TextFormat | None = None
) -> AbstractContextManager[None]:
    """A context in which errors about a row of a text file's table name the line where the row begins.

    Rows of a single Parquet or other binary file stay rows, rows of several are named with their
    file. None: a table that was not read from a file.
    """
    text = text or TextFormat()
    path = None if data is None else Path(data)

    def line(row: int) -> str | None:
        for file in [] if path is None else find_files(path):
            if kind_of(file) == "delimited text":
                source = text.source(file)
                lines = (line.decode("utf-8-sig", "replace") for line in source.lines())
                records = csv.reader(
                    lines, delimiter=text.separator_of(file), skipinitialspace=True
                )
                # with the header
                start = source.first_line
                width = 0
                left = row + (text.columns is None)
                for record in records:
                    width = width or len(record)
                    # blank lines at the start and end are no rows, but in a single column
                    if record or width == 1:
                        if left == 0:
                            return f"line {start} of {file}"
                        left -= 1
                    # Quoted line ends are counted, so that an editor finds the place.
                    start = source.first_line + records.line_num
                row = left
            elif path is not None and file_listing.is_many(path):
                rows = arrow_files.count_rows(file)
                if row < rows:
                    return f"row {row} (counting from 0) of {file}"
                row -= rows
        return None

    return _changed(line)


def renumbering_rows(kept: Sequence[int] | np.ndarray | None) -> AbstractContextManager[None]:
    """A context in which errors about a row of a filtered table name its row in the whole table.

    `kept` are the rows' numbers in the whole table, None if all are kept.
    """
    return _changed(lambda row: None if kept is None else f"row {kept[row]} (counting from 0)")


def counting_from(first: int) -> AbstractContextManager[None]:
    """A context in which errors about a row of a slice name its row in the whole table."""
    return _changed(lambda row: f"row {first + row} (counting from 0)")


@contextmanager
def _changed(place: Callable[[int], str | None]) -> Iterator[None]:
    try:
        yield
    except (DataError, SchemaError) as e:
        result = _ROW.search(str(e))
        located = (
            None
            if result is None or type(e) not in (DataError, SchemaError)
            else place(int(result[1]))
        )
        if located is None:
            raise
        raise type(e)(_ROW.sub(lambda _: located, str(e), count=1)) from None
