"""Parquet and Arrow files: their columns, their number of rows, and their rows in bounded chunks."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.read.arrow_library import arrow_library
from fieldwise.data.read.chunk_limits import ChunkLimits, bytes_per_row
from fieldwise.data.read.file_listing import kind_of
from fieldwise.data.read.libfm import libfm_chunks
from fieldwise.data.read.text_stream import CHUNK_BYTES
from fieldwise.data.read.wide_decimals import is_stream, read_narrow, wide_decimals
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.machine import ahead

_PROBED_ROWS = 1_000
"""The first rows, by which the size of all is estimated."""
_ROW_GROUPS_BYTES = 1 << 26
"""Of row groups that are read at once."""
_PARQUET_BUFFER_BYTES = 1 << 20
_MEMORY_PER_TEXT_BYTE = 6
"""Of plain text, at most about."""
_UNPACKED_PER_PACKED_BYTE = 10


def check_columns(path: Path, names: list[str], first: Path, wanted: list[str]) -> None:
    """Check that a file has the columns of the first one, in any order."""
    _check_contains(path, names, first, wanted)
    _check_contains(first, wanted, path, names)


def _check_contains(path: Path, names: list[str], other: Path, other_names: list[str]) -> None:
    """Check that a file has no column that another has not."""
    known = set(other_names)
    extra = [name for name in names if name not in known]
    if extra:
        raise DataError(
            f"the files of a table must have the same columns, but {path} has {extra[0]!r} and {other} has not: "
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
    (first, first_schema), *others = schemas.items()
    common = pl.Schema(first_schema)
    file_of_type = dict.fromkeys(common, first)
    for path, schema in others:
        check_columns(path, schema.names(), first, common.names())
        for name, dtype in schema.items():
            known = common[name]
            common_type = _common_type(known, dtype)
            if common_type is None:
                raise DataError(
                    f"a column must have one type in all files, but {name!r} is {known} in {file_of_type[name]} and "
                    f"{dtype} in {path}: convert one of them"
                )
            if common_type != known:
                common[name] = common_type
                file_of_type[name] = path
    return common


def _common_type(known: pl.DataType, dtype: pl.DataType) -> pl.DataType | None:
    """The narrowest type that holds the values of two without loss; None if there is none, or none that is mapped."""
    if dtype in (known, pl.Null):
        return known
    if known == pl.Null:
        return dtype
    are_integers = known.is_integer() and dtype.is_integer()
    are_floats = known.is_float() and dtype.is_float()
    if not (are_integers or are_floats):
        return None
    empty = [pl.Series("n", dtype=kind).to_frame() for kind in (known, dtype)]
    wider = pl.concat(empty, how="vertical_relaxed").schema["n"]
    return None if wider in (pl.Int128, pl.UInt128) else wider


def estimated_bytes(path: Path) -> float:
    """The memory that a file's rows take, about: the first rows' mean times the number of rows; for text, at most."""
    kind = kind_of(path)
    if kind in ("delimited text", "libFM", None):
        size = path.stat().st_size if path.is_file() else 0
        is_packed = path.suffix.lower() in (".gz", ".zst")
        return _MEMORY_PER_TEXT_BYTE * size * (_UNPACKED_PER_PACKED_BYTE if is_packed else 1)
    with _explained(path):
        if is_stream(path):
            return 2.0 * path.stat().st_size
        return count_rows(path) * bytes_per_row(_first_rows(path))


def binary_schema(path: Path) -> pl.Schema:
    """The columns and types of a Parquet or Arrow file."""
    with _explained(path):
        if is_stream(path) and not wide_decimals(path):
            return pl.read_ipc_stream(path, n_rows=0).schema
        return _scan(path).collect_schema()


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet, Arrow or libFM file, from its metadata where it has them."""
    if kind_of(path) == "libFM":
        return sum(chunk.height for chunk in libfm_chunks(path, CHUNK_BYTES))
    with _explained(path):
        return int(_scan(path).select(pl.len()).collect().item())


def binary_chunks(path: Path, limits: ChunkLimits, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet or Arrow file in chunks, or without bounds at once.

    Without pyarrow Polars reads the chunks, which holds several row groups in memory.
    """
    with _explained(path):
        if not limits.bounded:
            yield _scan(path).select(columns).collect()
            return
        try:
            arrow = arrow_library()
        except MissingExtraError:
            yield from (
                _scan(path)
                .select(columns)
                .collect_batches(chunk_size=limits.chunk_rows, maintain_order=True)
            )
            return
        if wide_decimals(path):
            frame = _scan(path).select(columns).collect()
            yield from frame.iter_slices(limits.rows_per_chunk(bytes_per_row(frame)))
        elif kind_of(path) == "Parquet":
            yield from _parquet_chunks(path, limits, columns)
        else:
            for batch in _record_batches(path, arrow):
                whole = pl.DataFrame(batch)
                limits.check(whole, path)
                frame = whole.select(columns)
                yield from frame.iter_slices(limits.rows_per_chunk(bytes_per_row(frame)))


def _record_batches(path: Path, arrow: Any) -> Iterator[Any]:
    """The record batches of an Arrow file, mapped."""
    with arrow.memory_map(str(path)) as file:
        if is_stream(path):
            yield from arrow.ipc.open_stream(file)
            return
        reader = arrow.ipc.open_file(file)
        for k in range(reader.num_record_batches):
            yield reader.get_batch(k)


def _parquet_chunks(path: Path, limits: ChunkLimits, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file in chunks.

    Polars reads whole row groups if they are small, else pyarrow reads pages, where it can.
    """
    schema = binary_schema(path)
    if not columns or not all(_is_cut_by_pyarrow(schema[name]) for name in columns):
        yield from _parquet_slices(path, limits, columns)
        return
    import pyarrow.parquet

    # Without buffers ahead, and page by page: a row group may be larger than memory.
    with pyarrow.parquet.ParquetFile(
        path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES
    ) as file:
        metadata = file.metadata
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        unpacked_bytes = sum(group.total_byte_size for group in groups)
        mean_row_bytes = unpacked_bytes / max(1, metadata.num_rows)
        row_bytes_on_disk = max(8 * metadata.num_columns, mean_row_bytes)
        row_bytes = max(row_bytes_on_disk, bytes_per_row(_first_rows(path)))
        rows_at_once = int(min(8 * limits.chunk_bytes, _ROW_GROUPS_BYTES) / row_bytes)
        group_rows = [group.num_rows for group in groups]
        if groups and max(group_rows) <= rows_at_once:
            file.close()
            yield from _row_groups(path, limits, columns, _row_spans(group_rows, rows_at_once))
            return
        batch_rows = limits.rows_per_chunk(row_bytes_on_disk)
        for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
            frame = pl.DataFrame(batch)
            limits.check(frame, path)
            yield frame.select(columns)


def _parquet_slices(path: Path, limits: ChunkLimits, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file in slices, for each of which Polars reads a row group again."""
    rows = _scan(path).select(columns)
    step = limits.rows_per_chunk(bytes_per_row(rows.head(_PROBED_ROWS).collect()))
    start = 0
    while (chunk := rows.slice(start, step).collect()).height:
        yield chunk
        start += chunk.height


def _row_spans(group_rows: list[int], most_rows: int) -> list[slice]:
    """The rows of whole row groups in order, small groups together."""
    spans = [slice(0, 0)]
    end = 0
    for rows in group_rows:
        if end + rows - spans[-1].start > most_rows:
            spans.append(slice(end, end))
        end += rows
        spans[-1] = slice(spans[-1].start, end)
    return spans


def _row_groups(
    path: Path, limits: ChunkLimits, columns: list[str], spans: list[slice]
) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file by spans of row groups.

    Polars reads them in a quarter of the time that pyarrow takes, one span ahead.
    """
    rows = _scan(path).select(columns)
    slices = (rows.slice(span.start, span.stop - span.start) for span in spans)
    for frame in ahead(span_rows.collect() for span_rows in slices):
        limits.check(frame, path)
        yield from frame.iter_slices(limits.chunk_rows)


def _is_cut_by_pyarrow(dtype: pl.DataType) -> bool:
    """Whether pyarrow reads a column of this type in chunks: it cannot cut nested texts at any row."""
    if not dtype.is_nested():
        return dtype not in (pl.Int128, pl.UInt128)
    if not isinstance(dtype, (pl.List, pl.Array)) or not isinstance(dtype.inner, pl.DataType):
        return False
    inner = dtype.inner
    return inner.is_numeric() or inner.is_temporal() or inner == pl.Boolean


def _first_rows(path: Path) -> pl.DataFrame:
    """The first rows of a Parquet or Arrow file."""
    return _scan(path).head(_PROBED_ROWS).collect()


def _scan(path: Path) -> pl.LazyFrame:
    """The rows of a Parquet or Arrow file, to be read when they are collected.

    An Arrow stream, and a file with decimals of more than 38 digits, is read now.
    """
    wide_columns = wide_decimals(path)
    if wide_columns:
        return read_narrow(path, wide_columns).lazy()
    if is_stream(path):
        return pl.read_ipc_stream(path).lazy()
    if kind_of(path) == "Parquet":
        return pl.scan_parquet(path, glob=False)
    return pl.scan_ipc(path, glob=False)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A context in which errors of the readers of Parquet and Arrow files become a DataError that names the file."""
    kind = kind_of(path)
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; check the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a {kind} file was expected; write it again")
    try:
        yield
    except _reading_errors() as e:
        raise DataError(
            f"{path} is not a whole {kind} file ({str(e).splitlines()[0]}); write or copy it again"
        ) from e


def _reading_errors() -> tuple[type[BaseException], ...]:
    """The errors of broken files, also those of pyarrow if it has been imported."""
    errors = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return errors
    return (*errors, arrow.ArrowException)
