"""Parquet and Arrow files in bounded chunks, and tables larger than memory: written as Arrow files, mapped as one."""

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from fieldwise.data.read.file_listing import kind_of
from fieldwise.data.read.libfm import libfm_chunks
from fieldwise.data.read.text_stream import CHUNK_BYTES
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage import scratch
from fieldwise.storage.files import new_file
from fieldwise.storage.machine import ahead

GATHERED = 1 << 25  # bytes


def arrow_library() -> Any:
    """The module `pyarrow`."""
    try:
        import pyarrow.ipc
    except ImportError as e:
        raise MissingExtraError(
            "a table larger than its share of memory is read through pyarrow, which is not installed: "
            "pip install 'fieldwise[large]'"
        ) from e
    return pyarrow


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """A file of `rows` rows, of which the first has the number `first` in the whole table."""

    path: Path
    first: int
    rows: int

    @property
    def end(self) -> int:
        """The number behind its last row."""
        return self.first + self.rows


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedRows:
    """A table, and the files whose rows it has, one after another; no files if it is in memory."""

    frame: pl.DataFrame
    files: Sequence[RowFile] = ()

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Self:
        """`map_rows` of some files; errors as there."""
        arrow = arrow_library()
        frames = []
        files = []
        end = 0
        for path in paths:
            try:
                table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
            except (OSError, arrow.ArrowInvalid) as e:
                raise DataError(
                    f"{path} is not a whole Arrow IPC file ({e}); write it again"
                ) from e
            frame = pl.from_arrow(table, rechunk=False)
            assert isinstance(frame, pl.DataFrame)
            frames.append(frame)
            files.append(RowFile(path=path, first=end, rows=frame.height))
            end += frame.height
        return cls(frame=pl.concat(frames, rechunk=False), files=files)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The rows of all files that a `RowsWriter` has written to a folder; errors as of `map_rows`."""
        return cls.of(sorted(folder.glob("rows-*.arrow")))


class RowsWriter:
    """Writes a table chunk by chunk to Arrow files in a folder, for `map_rows`, or holds its chunks in memory.

    Small chunks are gathered. Every file is written to a temporary name, then renamed.

    Args:
        folder: the folder, which is created; the caller removes it. None: nothing is written.
        gather: bytes of rows per file, at least; one longer chunk is one file.

    After writing:
        paths: the files so far, in order.
        rows: the number of rows added.
        empty: the table without its rows, once a chunk was added.
    """

    def __init__(self, folder: Path | None, *, gather: int = GATHERED) -> None:
        self.paths: list[Path] = []
        self.rows = 0
        self.empty = pl.DataFrame()
        self._folder = folder
        self._gather = gather
        self._held: list[pl.DataFrame] = []
        self._size = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every chunk must have the same columns and types."""
        if not self.rows and (frame.height or not self.empty.width):
            self.empty = frame.clear()
        for name, dtype in (
            frame.schema.items() if self._folder is not None and not self.rows else ()
        ):
            nested = dtype.is_nested() and any(kind in str(dtype) for kind in ("Int128", "Object"))
            if nested or dtype in (pl.Int128, pl.UInt128, pl.Object):
                raise DataError(
                    f"a table larger than its share of memory cannot hold {dtype}, found in column {name!r}: convert "
                    "it to text or to 64-bit numbers"
                )
        if not frame.height:
            return
        self._held.append(frame)
        self.rows += frame.height
        self._size += int(frame.estimated_size())
        if self._size >= self._gather and self._folder is not None:
            self._write()

    def take(self, file: RowFile) -> bool:
        """Move a file of another `RowsWriter`, whose rows are the next; False if the system does not move it.

        Its rows may be mapped. Windows moves no file that is.
        """
        self.finish()
        assert self._folder is not None, "files are taken to a folder"
        path = self._folder / f"rows-{len(self.paths):06d}.arrow"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.replace(file.path, path)
        except OSError:
            return False
        self.rows += file.rows
        self.paths.append(path)
        return True

    @property
    def is_flushed(self) -> bool:
        """Whether all rows are in files."""
        return not self._held

    def finish(self) -> list[Path]:
        """Write what has been gathered; returns all files, in order."""
        if self._held and self._folder is not None:
            self._write()
        return self.paths

    def table(self) -> MappedRows:
        """The table of all rows."""
        if self._folder is not None and self.finish():
            return MappedRows.of(self.paths)
        return MappedRows(frame=pl.concat(self._held) if self._held else self.empty)

    def _write(self) -> None:
        assert self._folder is not None
        path = self._folder / f"rows-{len(self.paths):06d}.arrow"
        frame = (
            self._held[0].rechunk() if len(self._held) == 1 else pl.concat(self._held, rechunk=True)
        )
        try:
            with new_file(path, flush=False) as file:
                frame.write_ipc(file)
        except pl.exceptions.PolarsError as e:
            raise DataError(
                f"cannot write {path}: {str(e).splitlines()[0]}; free some space there"
            ) from e
        self.paths.append(path)
        self._held = []
        self._size = 0


def map_rows(paths: Sequence[Path]) -> pl.DataFrame:
    """The rows of Arrow files of `RowsWriter`, mapped: nothing is copied, and every file is a chunk of the table.

    The operating system keeps in memory what is used, and may drop it at any time. Take the rows by
    slices, or few columns at a time: what copies all of the table needs memory for all of it. On
    Linux and macOS the files may be removed while the table is in use.
    """
    return MappedRows.of(paths).frame


def join_rows(chunks: Iterable[pl.DataFrame], folder: Path | None = None) -> pl.DataFrame:
    """The table of all chunks, of which there is at least one, one after another.

    If the memory budget has a folder they are written and mapped: to `folder`, if given.
    """
    writer = RowsWriter(folder or scratch.new_path())
    for chunk in chunks:
        writer.add(chunk)
    return writer.table().frame


def take_rows(
    frame: pl.DataFrame,
    rows: np.ndarray,
    folder: Path | None = None,
    files: Sequence[RowFile] = (),
    on_rows: Callable[[int], None] = lambda _: None,
) -> pl.DataFrame:
    """Some rows of a table.

    With `folder` they are written there, see `join_rows`; `files` of the table that hold no other
    rows are moved there, which is much faster. `on_rows` is called with the number of rows of each
    chunk.
    """

    def chunks(numbers: np.ndarray) -> Iterator[pl.DataFrame]:
        for at in scratch.chunk_slices(len(numbers)):
            some = numbers[at]
            yield frame[some[0] : some[-1] + 1][some - some[0]] if len(some) else frame.clear()
            on_rows(at.stop - at.start)

    if folder is not None and files and len(rows):
        writer = RowsWriter(folder)
        written = 0
        ends = np.searchsorted(rows, [file.end for file in files])
        for file, start, end in zip(files, [0, *ends[:-1]], ends, strict=True):
            if not 0 < end - start == file.rows:
                continue
            for chunk in chunks(rows[written:start]):
                writer.add(chunk)
            written = int(start)
            if writer.take(file):
                written = int(end)
                on_rows(file.rows)
        for chunk in chunks(rows[written:]):
            writer.add(chunk)
        return writer.table().frame
    if not scratch.several(len(rows)) and folder is None:
        on_rows(len(rows))
        return frame[rows]
    return join_rows(chunks(rows), folder)


def check_columns(path: Path, names: list[str], first: Path, wanted: list[str]) -> None:
    """Check that a file has the columns of the first one, in any order."""
    for there, other, one, two in ((names, wanted, path, first), (wanted, names, first, path)):
        extra = [name for name in there if name not in set(other)]
        if extra:
            raise DataError(
                f"the files of a table must have the same columns, but {one} has {extra[0]!r} and {two} has not: "
                "remove or add it, or leave out the file"
            )


def common_schema(schemas: Mapping[Path, pl.Schema]) -> pl.Schema:
    """The schema of the first file, with types that hold the values of all files.

    Integers, and Float32 with Float64, become the narrowest type that holds both without loss; a
    column of nulls takes any type. All else must be equal.

    Errors:
        DataError: a column is missing, extra, or of another type; both files are named.

    >>> first, second = pl.Schema({"a": pl.Int8()}), pl.Schema({"a": pl.UInt16()})
    >>> common_schema({Path("1.parquet"): first, Path("2.parquet"): second})
    Schema([('a', Int32)])
    """
    (first, common), *others = schemas.items()
    common, since = pl.Schema(common), dict.fromkeys(common, first)
    for path, schema in others:
        check_columns(path, schema.names(), first, common.names())
        for name, dtype in schema.items():
            known = common[name]
            wider = None
            if dtype in (known, pl.Null):
                continue
            if known == pl.Null:
                wider = dtype
            elif (known.is_integer() and dtype.is_integer()) or (
                known.is_float() and dtype.is_float()
            ):
                empty = [pl.Series("n", dtype=kind).to_frame() for kind in (known, dtype)]
                wider = pl.concat(empty, how="vertical_relaxed").schema["n"]
            # which cannot be mapped
            if wider is None or (wider in (pl.Int128, pl.UInt128) and known != pl.Null):
                raise DataError(
                    f"a column must have one type in all files, but {name!r} is {known} in {since[name]} and "
                    f"{dtype} in {path}: convert one of them"
                )
            if wider != known:
                common[name] = wider
                since[name] = path
    return common


_MOST_DIGITS = 38  # of a decimal of polars


def _is_stream(path: Path) -> bool:
    """Whether a file is an Arrow stream, rather than the format with an index."""
    if kind_of(path) != "Arrow IPC":
        return False
    with path.open("rb") as file:
        return file.read(6) != b"ARROW1"


def _wide_decimals(path: Path) -> list[str]:
    """The columns of a Parquet or Arrow file with decimals that polars cannot read, also within lists and structs."""
    if kind_of(path) == "Parquet":
        schema = pl.scan_parquet(path, glob=False).collect_schema()
        return [name for name, kind in schema.items() if _is_wide(kind)]
    if not _is_stream(path):
        schema = pl.scan_ipc(path, glob=False).collect_schema()
        if not any(_has_decimals(kind) for kind in schema.dtypes()):
            return []
    try:
        arrow = arrow_library()
    except MissingExtraError:  # polars says what it cannot read
        return []
    try:
        with arrow.OSFile(str(path)) as file:
            reader = arrow.ipc.open_stream(file) if _is_stream(path) else arrow.ipc.open_file(file)
            return [field.name for field in reader.schema if _holds_wide(field.type)]
    except arrow.ArrowException:  # polars says what is wrong with the file
        return []


def _has_decimals(kind: Any) -> bool:
    """Whether a polars type has decimals; polars does not tell those of 256 bits from others."""
    if isinstance(kind, pl.Struct):
        return any(_has_decimals(part.dtype) for part in kind.fields)
    if isinstance(kind, pl.List | pl.Array):
        return _has_decimals(kind.inner)
    return isinstance(kind, pl.Decimal)


def _is_wide(kind: Any) -> bool:
    """Whether a polars type has decimals of more than 38 digits."""
    if isinstance(kind, pl.Decimal):
        return kind.precision > _MOST_DIGITS
    if isinstance(kind, pl.Struct):
        return any(_is_wide(part.dtype) for part in kind.fields)
    return isinstance(kind, pl.List | pl.Array) and _is_wide(kind.inner)


def _narrow_type(kind: Any) -> Any:
    """A pyarrow type with Float64 in the place of decimals of 256 bits."""
    arrow = arrow_library()
    if arrow.types.is_decimal256(kind):
        return arrow.float64()
    if arrow.types.is_fixed_size_list(kind):
        return arrow.list_(_narrow_type(kind.value_type), kind.list_size)
    if arrow.types.is_list(kind):
        return arrow.list_(_narrow_type(kind.value_type))
    if arrow.types.is_large_list(kind):
        return arrow.large_list(_narrow_type(kind.value_type))
    if arrow.types.is_struct(kind):
        parts = [kind.field(k) for k in range(kind.num_fields)]
        return arrow.struct([(part.name, _narrow_type(part.type)) for part in parts])
    return kind


def with_narrow_decimals(table: Any, where: str) -> Any:
    """A pyarrow table whose decimals of 256 bits, which polars cannot read, are Float64; a warning names a column."""
    narrowed = []
    for place, field in enumerate(table.schema):
        kind = _narrow_type(field.type)
        if _holds_wide(field.type):
            narrowed.append(field.name)
            table = table.set_column(place, field.name, table.column(place).cast(kind))
    if narrowed:
        warnings.warn(
            f"column {narrowed[0]!r} of {where} has decimals of more than 38 digits, and is read as Float64",
            UserWarning,
            stacklevel=2,
        )
    return table


def _holds_wide(kind: Any) -> bool:
    """Whether a pyarrow type has decimals of 256 bits."""
    arrow = arrow_library()
    if arrow.types.is_decimal256(kind):
        return True
    return any(_holds_wide(kind.field(k).type) for k in range(kind.num_fields))


def _read_narrow(path: Path, columns: list[str]) -> pl.DataFrame:
    """The rows of a Parquet or Arrow file, read now, with decimals of more than 38 digits as Float64."""
    try:
        arrow = arrow_library()
    except MissingExtraError as e:
        raise MissingExtraError(
            f"column {columns[0]!r} of {path} has decimals of more than 38 digits, which are read through pyarrow, and "
            "it is not installed: pip install 'fieldwise[large]'"
        ) from e
    if kind_of(path) == "Parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path, partitioning=None)
    else:
        with arrow.OSFile(str(path)) as file:
            reader = arrow.ipc.open_stream(file) if _is_stream(path) else arrow.ipc.open_file(file)
            table = reader.read_all()
    return pl.DataFrame(with_narrow_decimals(table, str(path)))


def _scan(path: Path) -> pl.LazyFrame:
    """The rows of a Parquet or Arrow file, to be read when they are collected.

    An Arrow stream, and a file with decimals of more than 38 digits, is read now.
    """
    wide = _wide_decimals(path)
    if wide:
        return _read_narrow(path, wide).lazy()
    if _is_stream(path):
        return pl.read_ipc_stream(path).lazy()
    return (pl.scan_parquet if kind_of(path) == "Parquet" else pl.scan_ipc)(path, glob=False)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A context in which errors of the readers of Parquet and Arrow files become a DataError that names the file."""
    kind = kind_of(path)
    arrow = sys.modules.get("pyarrow")
    broken = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    broken += (arrow.ArrowException,) if arrow is not None else ()
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; check the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a {kind} file was expected; write it again")
    try:
        yield
    except broken as e:
        raise DataError(
            f"{path} is not a whole {kind} file ({str(e).splitlines()[0]}); write or copy it again"
        ) from e


_PROBE = 1_000  # rows
_SMALL = 1 << 20  # bytes that any chunk may take
# of a table, in which the size of rows is estimated
_PLACES = 16
_PLACE_ROWS = 256
_ROW_GROUPS = 1 << 26  # bytes of row groups that are read at once
# bytes of a text's entry, and of a text that lies in it
_VIEW = 16
_SHORT = 12
# bytes in memory per byte of plain text, at most about; of unpacked per packed text
_TEXT = 6
_PACKED = 10


@dataclass(frozen=True, kw_only=True)
class ChunkLimits:
    """How much of a table may be in memory.

    Args:
        memory: bytes of rows above which a table is written to scratch files.
        chunk_bytes: bytes per chunk, about.
        chunk_rows: rows per chunk, at most.
        share: the ratio of `data.memory` to `memory`, used in error messages.
    """

    memory: float = float("inf")
    chunk_bytes: int = 1 << 24
    chunk_rows: int = 1 << 20
    share: int = 1

    @classmethod
    def within(cls, memory: int, share: int = 1) -> "ChunkLimits":
        """Bounds for a total of `memory` bytes."""
        return cls(memory=memory, chunk_bytes=min(1 << 24, max(1 << 16, memory // 32)), share=share)

    @property
    def bounded(self) -> bool:
        """Whether there is a limit."""
        return self.memory != float("inf")

    def check(self, chunk: pl.DataFrame, path: Path) -> None:
        """Check that a chunk leaves room for others.

        Errors:
            DataError: it takes more than half of the memory, and more than a chunk should.
        """
        size = int(chunk.estimated_size())
        if size > max(self.memory // 2, 4 * self.chunk_bytes, _SMALL):
            raise DataError(
                f"the memory must hold two chunks of a table, but {path} has one of {chunk.height:,} rows and "
                f"{size / 1e6:,.0f} MB: set data.memory to {2 * size * self.share / 1e6:,.0f}MB or more, or write the "
                "file with smaller batches"
            )


def table_bytes(frame: pl.DataFrame) -> int:
    """The bytes of a table in memory or in an Arrow file, about: 16 for a text of up to 12 bytes, else as many more.

    `estimated_size` has only the bytes of the texts.

    >>> table_bytes(pl.DataFrame({"a": ["x", "y"], "n": [1, 2]}))
    48
    """
    size = 0
    for column in frame.iter_columns():
        own = int(column.estimated_size())
        if column.dtype in (pl.String, pl.Binary):
            own = _VIEW * len(column) + (own if own > _SHORT * len(column) else 0)
        size += own
    return size


def estimated_bytes(path: Path) -> float:
    """The memory that a file's rows take, about: the first rows' mean times the number of rows; for text, at most."""
    kind = kind_of(path)
    if kind in ("delimited text", "libFM", None):
        size = path.stat().st_size if path.is_file() else 0
        return _TEXT * size * (_PACKED if path.suffix.lower() in (".gz", ".zst") else 1)
    with _explained(path):
        if _is_stream(path):
            return 2.0 * path.stat().st_size
        return count_rows(path) * bytes_per_row(_scan(path).head(_PROBE).collect())


def bytes_per_row(frame: pl.DataFrame) -> float:
    """The memory that a row takes, about: of a long table the mean over rows in several places."""
    if frame.height <= _PLACES * _PLACE_ROWS:
        return frame.estimated_size() / max(1, frame.height)
    starts = range(0, frame.height - _PLACE_ROWS + 1, (frame.height - _PLACE_ROWS) // (_PLACES - 1))
    sizes = [frame[start : start + _PLACE_ROWS].estimated_size() for start in starts]
    return sum(sizes) / (len(sizes) * _PLACE_ROWS)


def binary_schema(path: Path) -> pl.Schema:
    """The columns and types of a Parquet or Arrow file."""
    with _explained(path):
        if _is_stream(path) and not _wide_decimals(path):
            return pl.read_ipc_stream(path, n_rows=0).schema
        return _scan(path).collect_schema()


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet, Arrow or libFM file, from its metadata where it has them."""
    if kind_of(path) == "libFM":
        return sum(chunk.height for chunk in libfm_chunks(path, CHUNK_BYTES))
    with _explained(path):
        return int(_scan(path).select(pl.len()).collect().item())


def binary_chunks(path: Path, bounds: ChunkLimits, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet or Arrow file in chunks, or without bounds at once.

    Without pyarrow Polars reads the chunks, which holds several row groups in memory.
    """
    if not bounds.bounded:
        with _explained(path):
            yield _scan(path).select(columns).collect()
        return
    try:
        arrow = arrow_library()
    except MissingExtraError:
        with _explained(path):
            yield from (
                _scan(path)
                .select(columns)
                .collect_batches(chunk_size=bounds.chunk_rows, maintain_order=True)
            )
        return
    with _explained(path):
        if _wide_decimals(path):
            frame = _scan(path).select(columns).collect()
            yield from frame.iter_slices(_rows(bounds, bytes_per_row(frame)))
            return
        if kind_of(path) == "Parquet":
            yield from _parquet_chunks(path, bounds, columns)
            return
        with arrow.memory_map(str(path)) as file:
            batches: Any
            if _is_stream(path):
                batches = iter(arrow.ipc.open_stream(file))
            else:
                reader = arrow.ipc.open_file(file)
                batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
            for batch in batches:
                frame = pl.DataFrame(batch)
                bounds.check(frame, path)
                frame = frame.select(columns)
                yield from frame.iter_slices(_rows(bounds, bytes_per_row(frame)))


def _parquet_chunks(path: Path, bounds: ChunkLimits, columns: list[str]) -> Iterator[pl.DataFrame]:
    schema = binary_schema(path)
    if not columns or not all(_readable(schema[name]) for name in columns):
        # By slices, for each of which Polars reads a row group again.
        rows = _scan(path).select(columns)
        at = 0
        step = _rows(bounds, bytes_per_row(rows.head(_PROBE).collect()))
        while (chunk := rows.slice(at, step).collect()).height:
            yield chunk
            at += chunk.height
        return
    import pyarrow.parquet

    # Without buffers ahead, and page by page: a row group may be larger than memory.
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        about = file.metadata
        groups = [about.row_group(k) for k in range(about.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
        row_bytes = max(8 * about.num_columns, unpacked / max(1, about.num_rows))
        row = max(row_bytes, bytes_per_row(_scan(path).head(_PROBE).collect()))
        most = int(min(8 * bounds.chunk_bytes, _ROW_GROUPS) / row)
        if groups and max(group.num_rows for group in groups) <= most:
            file.close()
            # of whole row groups, small ones together
            spans = [slice(0, 0)]
            end = 0
            for group in groups:
                if end + group.num_rows - spans[-1].start > most:
                    spans.append(slice(end, end))
                end += group.num_rows
                spans[-1] = slice(spans[-1].start, end)
            # Polars reads them in a quarter of the time that pyarrow takes, one span ahead.
            slices = (
                _scan(path).select(columns).slice(span.start, span.stop - span.start)
                for span in spans
            )
            for frame in ahead(one.collect() for one in slices):
                bounds.check(frame, path)
                yield from frame.iter_slices(bounds.chunk_rows)
            return
        for batch in file.iter_batches(batch_size=_rows(bounds, row_bytes), columns=columns):
            frame = pl.DataFrame(batch)
            bounds.check(frame, path)
            yield frame.select(columns)


def _readable(dtype: pl.DataType) -> bool:
    """Whether pyarrow reads a column of this type in chunks: it cannot cut nested texts at any row."""
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    fixed = isinstance(inner, pl.DataType) and (
        inner.is_numeric() or inner.is_temporal() or inner == pl.Boolean
    )
    return dtype not in (pl.Int128, pl.UInt128) and (fixed if dtype.is_nested() else True)


def _rows(bounds: ChunkLimits, row_bytes: float) -> int:
    return max(1, min(bounds.chunk_rows, int(bounds.chunk_bytes / max(1.0, row_bytes))))
