"""Reading and writing tables: files, in memory where they fit, and frames of other libraries, as polars DataFrames.

Lists of equal length (vectors) become a column per position, `embedding[0]` and so on.
"""

import gzip
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, cast

import polars as pl
from polars.datatypes import DataTypeClass

from fieldwise.data.read.arrow_files import (
    GATHERED,
    Bounds,
    MappedRows,
    RowsWriter,
    arrow_library,
    binary_chunks,
    binary_schema,
    check_columns,
    common_schema,
    estimated_bytes,
    map_rows,
)
from fieldwise.data.read.delimited import TextFormat, TextTypes
from fieldwise.data.read.file_listing import (
    ARROW,
    KINDS,
    PARQUET,
    TEXT,
    check_unchanged,
    file_state,
    find_files,
    kind_of,
    suffix_of,
)
from fieldwise.data.read.libfm import LibfmFields, libfm_chunks
from fieldwise.data.reports import NO_REPORTS, Reports
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.files import cannot_write, new_file
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.machine import available_memory

MOST_POSITIONS = 64
_POSITION = re.compile(r"(.+)\[(\d+)\]")


def is_position(name: str, columns: Iterable[str]) -> str | None:
    """The column of lists that a column is one position of, or None."""
    found = _POSITION.fullmatch(name)
    return found[1] if found is not None and found[1] in columns else None


def vector_length(column: pl.Series) -> int | None:
    """The common length of the float lists in a column, else None.

    >>> vector_length(pl.Series([[0.5, 1.0], None, [2.0, 3.0]])), vector_length(pl.Series([[0.5], [1.0, 2.0]]))
    (2, None)
    """
    lengths = VectorLengths()
    lengths.add(column.to_frame())
    return lengths.common.get(column.name)


class VectorLengths:
    """The common lengths of the float lists in a table's columns, found piece by piece; see `vector_length`."""

    def __init__(self) -> None:
        self._found: dict[str, set[int]] = {}

    def add(self, piece: pl.DataFrame) -> None:
        """Take the next rows into account."""
        for column in piece.iter_columns():
            kind = column.dtype
            if not (isinstance(kind, (pl.List, pl.Array)) and isinstance(kind.inner, pl.DataType)):
                continue
            if not kind.inner.is_float():
                continue
            found = self._found.setdefault(column.name, set())
            if isinstance(kind, pl.Array):
                found.add(kind.size)
            elif len(found) < 2:
                lengths = column.list.len()
                found |= {int(n) for n in (lengths.min(), lengths.max()) if n is not None}  # type: ignore[arg-type]

    @property
    def common(self) -> dict[str, int]:
        """The length of each column whose lists have one."""
        return {name: next(iter(found)) for name, found in self._found.items() if len(found) == 1}


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

    Lists of at least 2 and at most `MOST_POSITIONS` floats get columns; longer ones are not changed.

    >>> with_positions(pl.DataFrame({"v": [[0.5, 1.0], [2.0, 3.0]]})).columns
    ['v', 'v[0]', 'v[1]']
    """
    if not has_vectors(frame.schema):
        return frame
    lengths = VectorLengths()
    lengths.add(frame)
    made = position_columns(frame.schema, lengths.common)
    return as_lists(frame.with_columns(made.values()))


def has_vectors(schema: Mapping[str, pl.DataType | DataTypeClass]) -> bool:
    """Whether a table may have vectors; libFM's lists are none."""
    return any(kind.is_nested() for kind in schema.values()) and list(schema) != ["label", "ids", "values"]


def as_lists(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with every fixed-size list as a list."""
    fixed = [pl.col(name).arr.to_list() for name, kind in frame.schema.items() if isinstance(kind, pl.Array)]
    return frame.with_columns(fixed) if fixed else frame


FORMULA = r"^[=+@\t\r\-]"
NEGATIVE = r"^-[0-9.]+([eE][-+]?[0-9]+)?$"


class TableWriter:
    """Writes a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    A context manager: at its end the file is moved into place; on an error an existing file is not changed. Only one
    slice is in memory at a time. What killed writers have left in the folder is removed.

    Args:
        path: the file; its parent folders are created.
        raw: if False, cells of delimited text that a spreadsheet would run as a formula (texts that begin with =, +, @,
            a tab, or a minus that is no number's) are written with a ' in front.

    After construction:
        path: see the arguments.
        guarded: how many such cells there were so far.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk, a folder that is not
            writable.
    """

    def __init__(self, path: Path, *, raw: bool = True) -> None:
        suffix, packed = suffix_of(path)
        self._separator = TEXT.get(suffix)
        self._packed, self._parquet = bool(packed), suffix in PARQUET
        if packed == ".zst" or (self._separator is None and (packed or suffix not in (*PARQUET, *ARROW))):
            kinds = "csv, tsv, tab (each also .gz), parquet, arrow, feather, ipc"
            raise DataError(f"a table is written as one of {kinds}, found the name {path.name!r}; change its suffix")
        self.path, self._raw, self.guarded = path, raw, 0
        self._slices: list[Path] = []
        self._open, self._first = ExitStack(), True

    def __enter__(self) -> "TableWriter":
        if self.path.is_dir():  # else the last step would fail, after all the work
            raise DataError(f"cannot write {self.path}: it is a folder; choose another name")
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = self._open.enter_context(scratch_folder(self.path.parent))
            self._file = self._open.enter_context(new_file(self.path, partial=self._folder / "whole"))
            if self._packed:  # without name and time, so that equal rows give equal bytes
                packer = self._open.enter_context(gzip.GzipFile("", "wb", fileobj=self._file, mtime=0))
                self._file = cast(IO[bytes], packer)
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every slice must have the same columns."""
        if self._separator is not None:
            self._add_text(frame, self._separator)
            return
        with self._told():
            self._slices.append(self._folder / f"{len(self._slices)}.arrow")
            frame.write_ipc(self._slices[-1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._told():
            if error is not None:  # which need not be one in writing: it stays as it is
                with suppress(DataError, OSError):
                    self._open.__exit__(kind, error, at)
                return
            with self._open:
                if self._separator is None:
                    rows = pl.scan_ipc(self._slices)
                    rows.sink_parquet(self._file) if self._parquet else rows.sink_ipc(self._file)

    def _add_text(self, frame: pl.DataFrame, separator: str) -> None:
        nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
        if nested:
            raise DataError(
                f"delimited text holds one value per cell, but column {nested[0]!r} holds {frame.schema[nested[0]]}; "
                f"write {self.path.name} as parquet, or join the column's values into text"
            )
        if not self._raw:
            frame = self._without_formulas(frame)
        with self._told():
            frame.write_csv(self._file, separator=separator, include_header=self._first)
        self._first = False

    def _without_formulas(self, frame: pl.DataFrame) -> pl.DataFrame:
        for name in (name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)):
            text = frame.get_column(name).cast(pl.String)
            runs = (text.str.contains(FORMULA) & ~text.str.contains(NEGATIVE)).fill_null(False)
            if count := int(runs.sum()):
                self.guarded += count
                frame = frame.with_columns(pl.when(runs).then("'" + text).otherwise(text).alias(name))
        return frame

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A context that turns errors in writing into a DataError."""
        try:
            yield
        except OSError as e:
            raise cannot_write(self.path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {self.path}: {str(e).splitlines()[0]}; choose another file type") from e


_FILES = 8  # of the memory; a file's rows are in memory twice while it is written


def open_table(
    data: str | Path, text: TextFormat | None = None, *, memory: int | None = None, folder: Path | None = None
) -> pl.DataFrame:
    r"""The table of a file, a folder or a pattern: the same as `as_table`, also where it is larger than memory.

    Rows stand in the order of the files' names. A table that takes more than `memory` bytes is written chunk by chunk
    to Arrow files in `folder`, which the caller removes, and mapped: a few chunks of it are in memory at a time.

    Errors:
        DataError: as `as_table`; no file, files of different kinds, columns or types; a file that changes while it is
            read; a full disk.
        MissingExtraError: the table does not fit in `memory`, and pyarrow is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("b.csv", "a.csv"):
    ...         _ = (Path(place) / name).write_text(f"file,n\n{name[0]},1\n")
    ...     open_table(place).rows()
    [('a', 1), ('b', 1)]
    """
    files, text = find_files(Path(data)), text or TextFormat()
    small = memory is None or sum(map(estimated_bytes, files)) <= memory
    return open_files(files, text, Bounds() if small else Bounds.within(memory), folder).frame


def open_files(
    files: Sequence[Path], text: TextFormat, bounds: Bounds, folder: Path | None, reports: Reports = NO_REPORTS
) -> MappedRows:
    """The table of these files of one kind, within bounds; see `open_table`. `reports` is told the rows."""
    states = file_states(files)
    reports.begin("reading rows")
    types = TextTypes() if kind_of(files[0]) == "delimited text" else None
    rows, lengths = _Rows(folder, bounds), VectorLengths()
    for path, piece in raw_pieces(files, text, bounds):
        reports.add(piece.height)
        bounds.check(piece, path)
        lengths.add(piece)
        rows.add(as_lists(piece) if types is None else types.add(piece, path))
    if types is not None and rows.differ:  # a later value has changed a type
        reports.begin("reading rows again", rows.read)
        if folder is not None:
            shutil.rmtree(folder / "rows", ignore_errors=True)
        rows = _Rows(folder, bounds)
        for _, piece in raw_pieces(files, text, bounds):
            reports.add(piece.height)
            rows.add(types.typed(piece))
    check_unchanged(states)
    found = rows.finish()
    if types is not None and text.columns is None:
        types.warn_of_header(files[0])
    schema = found.frame.schema
    return rows.with_columns(found, position_columns(schema, lengths.common)) if has_vectors(schema) else found


def raw_pieces(
    files: Sequence[Path], text: TextFormat, bounds: Bounds, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pl.DataFrame]]:
    """The rows of files of one kind in pieces with the same columns, each with its file; text as String columns.

    Of Parquet and Arrow files only `columns` are read.
    """
    for path in files:
        text.check_applies(path)
    kind = kind_of(files[0])
    if kind == "delimited text":
        wanted: list[str] = []
        for path in files:
            for k, piece in enumerate(text.chunks(path, bounds.piece_bytes)):
                wanted = wanted or piece.columns
                if not k:
                    check_columns(path, piece.columns, files[0], wanted)
                yield path, piece.select(wanted)
    elif kind == "libFM":
        fields, held = LibfmFields(), list[tuple[Path, pl.DataFrame]]()
        for path, piece in _libfm_pieces(files, bounds):
            fields.add(piece)
            if not bounds.bounded:
                held.append((path, piece))
        yield from ((path, fields.table(piece)) for path, piece in held or _libfm_pieces(files, bounds))
    elif kind is None:
        raise DataError(f"a table file must be one of {KINDS}, found the name {files[0].name!r}; convert or rename it")
    else:
        schema = common_schema({path: binary_schema(path) for path in files})
        schema = schema if columns is None else pl.Schema({name: schema[name] for name in columns})
        for path in files:
            for piece in binary_chunks(path, bounds, schema.names()):
                yield path, piece if piece.schema == schema else piece.cast(schema)


def _libfm_pieces(files: Sequence[Path], bounds: Bounds) -> Iterator[tuple[Path, pl.DataFrame]]:
    return ((path, piece) for path in files for piece in libfm_chunks(path, bounds.piece_bytes))


class _Rows:
    """Rows that are held in memory, or within bounds written to a folder."""

    def __init__(self, folder: Path | None, bounds: Bounds) -> None:
        self._folder, self._writer, self.read = folder, None, 0
        self._held: list[pl.DataFrame] = []
        self._empty: pl.DataFrame | None = None
        self._schemas: list[pl.Schema] = []
        if bounds.bounded:
            arrow_library()
            assert folder is not None, "what is written needs a place"
            gather = max(bounds.piece_bytes, min(GATHERED, int(bounds.memory // _FILES)))
            self._writer = RowsWriter(folder / "rows", gather=gather)

    def add(self, piece: pl.DataFrame) -> None:
        if self._empty is None:
            self._empty = piece.clear()
        self.read += piece.height
        if not piece.height:
            return
        if piece.schema not in self._schemas:
            self._schemas.append(piece.schema)
        if self.differ:  # all will be read again
            self._held = []
        elif self._writer is not None:
            self._writer.add(piece)
        else:
            self._held.append(piece)

    @property
    def differ(self) -> bool:
        """Whether the pieces have different types."""
        return len(self._schemas) > 1

    def finish(self) -> MappedRows:
        assert self._empty is not None
        if self._writer is not None and (paths := self._writer.finish()):
            return MappedRows.of(paths)
        return MappedRows(frame=pl.concat(self._held, rechunk=False) if self._held else self._empty)

    def with_columns(self, found: MappedRows, made: Mapping[str, pl.Expr]) -> MappedRows:
        """The finished table with more columns, which are mapped if it is."""
        if not made:
            return found
        if self._folder is None or not found.files:
            return MappedRows(frame=found.frame.with_columns(made.values()))
        writer = RowsWriter(self._folder / "positions", gather=0)  # a chunk for every chunk of the table
        for file in found.files:
            writer.add(map_rows([file.path]).select(made.values()))
        return MappedRows(frame=found.frame.hstack(map_rows(writer.finish())))


def file_states(files: Sequence[Path]) -> dict[Path, tuple[int, int, int]]:
    """The state of each file that exists, for `check_unchanged`."""
    return {path: file_state(path) for path in files if path.is_file()}


TableLike = Annotated[Any, "as_table"]
"""Input of `as_table`: a path, a polars, pandas or pyarrow table, a dict of lists, or a list of dicts."""


def as_table(
    data: Any, *, separator: str | None = None, encoding: str = "utf-8", columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Read or convert `data` into a polars DataFrame.

    Types of delimited text are inferred from all values of a column: Int64, Float64 or Boolean if every value fits,
    else String; numbers with leading zeros stay text, so that codes such as `01234` are not changed. An empty unquoted
    field is null. A pandas frame's index is dropped. For vectors (lists of equal length of 2 to 64 floats) a column per
    position is added, `embedding[0]` and so on; fixed-size lists become lists.

    Args:
        data: a file (csv, tsv, tab, txt, libfm, libsvm, svm, each also with `.gz` or `.zst`; parquet; arrow, feather,
            ipc), a folder of such files of one kind or a pattern such as `logs/*.parquet`, whose rows follow in the
            order of the files' names; a polars DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table; a
            dict with a list for each column, or a list with a dict for each row (an absent key is null).
        separator: delimiter of text; if omitted a tab for `.tsv` and `.tab`, else the one of tab, semicolon, `|` and
            comma that divides the first records evenly.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header line. A header that looks like a row causes a
            warning.

    Errors:
        DataError: missing file, unknown suffix, empty file, duplicate columns, a malformed line (file and line are
            named), a wrong encoding, an object of another kind.
        MissingExtraError: a pandas frame or a `.zst` file, and no pyarrow to read it.

    >>> as_table(pl.DataFrame({"user": [1, 2]}).lazy()).shape
    (2, 1)
    """
    if isinstance(data, (str, Path)):
        return open_table(data, TextFormat(separator=separator, encoding=encoding, columns=columns))
    return with_positions(_from_frame(data))


def _from_frame(data: Any) -> pl.DataFrame:
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data)
    if library == "pyarrow" and hasattr(data, "column_names"):
        _check_names(data.column_names, "the pyarrow table")
        return pl.DataFrame(data)
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return _from_columns(
            {name: [row.get(name) for row in data] for name in {key: 0 for row in data for key in row}}
        )
    raise DataError(
        "a table must be a path, a polars DataFrame or LazyFrame, a pandas DataFrame, a pyarrow Table, a dict of lists "
        f"or a list of dicts, found {type(data).__module__}.{type(data).__qualname__}; convert it"
    )


def _from_columns(data: Mapping[Any, Any]) -> pl.DataFrame:
    """A dict of columns as a table."""
    columns: list[pl.Series] = []
    for name, values in data.items():
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise DataError(
                f"a table as a dict needs a list of values for each column, found {values!r} for {name!r}: write "
                "a row as [{...}]"
            )
        try:
            columns.append(pl.Series(str(name), values))
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise DataError(
                f"a column must hold values of one kind: {name!r} does not ({str(e).splitlines()[0]}); convert it"
            ) from e
        if len(columns[-1]) != len(columns[0]):
            raise DataError(
                f"all columns of a table must have one length: {columns[0].name!r} has {len(columns[0])} values, "
                f"{name!r} {len(columns[-1])}"
            )
    _check_names([column.name for column in columns], "the dict")
    return pl.DataFrame(columns)


def as_given(frame: pl.DataFrame, data: Any) -> Any:
    """The frame as a table of the library of `data`: pandas, pyarrow, else polars.

    >>> as_given(pl.DataFrame({"user": [1, 2]}), Path("log.csv")).shape
    (2, 1)
    """
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        return frame.to_pandas()
    return frame.to_arrow() if library == "pyarrow" else frame


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    The file is written atomically.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk.
    """
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


def _from_pandas(data: Any) -> pl.DataFrame:
    names = [str(name) for name in data.columns]
    _check_names(names, "the pandas frame")
    columns = []
    for at, name in enumerate(names):
        try:
            columns.append(pl.from_pandas(data.iloc[:, at]).alias(name))
        except ImportError as e:
            raise MissingExtraError(
                "pandas frames are read through pyarrow, which is not installed: pip install 'fieldwise[pandas]'"
            ) from e
        except (pl.exceptions.PolarsError, TypeError, ValueError) as e:
            # pyarrow's errors are ValueErrors and TypeErrors.
            raise DataError(
                f"a column must hold values of one kind: the pandas frame's column {name!r} does not "
                f"({str(e).splitlines()[0]}); convert it, for example with astype(str)"
            ) from e
    return pl.DataFrame(columns)


def _check_names(names: Iterable[str], where: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        listed = ", ".join(repr(name) for name in repeated)
        raise DataError(f"columns must have different names: {where} repeats {listed}; rename them")


SHARE = 6  # of the available memory; rows are copied and encoded besides


def whole_table(data: str | Path, text: TextFormat | None = None, *, memory: int | None = None) -> pl.DataFrame:
    """The table of a file, a folder or a pattern, as of `as_table`.

    With pyarrow (extra `large`) a table that takes more than its share of memory is mapped from files in the folder of
    temporary files, which have no names any more; without it, it is read into memory.
    It may take `memory` bytes, or a sixth of what is available.
    """
    memory = available_memory() // SHARE if memory is None else memory
    if sum(map(estimated_bytes, find_files(Path(data)))) > memory:
        with suppress(MissingExtraError), scratch_folder() as folder:
            arrow_library()
            return open_table(data, text, memory=memory, folder=folder)
    return open_table(data, text)
