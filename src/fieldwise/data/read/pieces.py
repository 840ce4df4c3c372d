"""Table files in bounded pieces of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.read.kinds import kind_of
from fieldwise.data.read.mapped import arrow_library
from fieldwise.data.read.one_file import is_stream, read_binary
from fieldwise.data.read.text_pieces import libfm_pieces
from fieldwise.data.read.unpacking import CHUNK
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.threads import ahead

__all__ = ["Bounds", "binary_pieces", "binary_schema", "count_rows", "estimated_bytes", "table_bytes"]

_PROBE = 1_000  # rows
_SMALL = 1 << 20  # bytes that any piece may take
_ROW_GROUPS = 1 << 26  # bytes of row groups that are read at once
_VIEW, _SHORT = 16, 12  # bytes of a text's entry, and of a text that lies in it
_TEXT, _PACKED = 6, 10  # bytes in memory per byte of plain text, at most about; of unpacked per packed text


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much of a table may be in memory.

    Args:
        memory: bytes of rows above which a table is written to scratch files.
        piece_bytes: bytes per piece, about.
        piece_rows: rows per piece, at most.
        share: the ratio of `data.memory` to `memory`, used in error messages.
    """

    memory: float = float("inf")
    piece_bytes: int = 1 << 24
    piece_rows: int = 1 << 20
    share: int = 1

    @classmethod
    def within(cls, memory: int | None, share: int = 1) -> "Bounds":
        """Bounds for a total of `memory` bytes; None: any number."""
        if memory is None:
            return cls()
        return cls(memory=memory, piece_bytes=min(1 << 24, max(1 << 16, memory // 32)), share=share)

    @property
    def bounded(self) -> bool:
        """Whether there is a limit."""
        return self.memory != float("inf")

    def check(self, piece: pl.DataFrame, path: Path) -> None:
        """Check that a piece leaves room for others.

        Errors:
            DataError: it takes more than half of the memory, and more than a piece should.
        """
        size = int(piece.estimated_size())
        if size > max(self.memory // 2, 4 * self.piece_bytes, _SMALL):
            raise DataError(
                f"the memory must hold two pieces of a table, but {path} has one of {piece.height:,} rows and "
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
    """The memory that a file's rows take, about: the first rows' mean times the number of rows; for text, at most.

    Errors:
        DataError: the file is absent or broken.
    """
    kind = kind_of(path)
    if kind in ("delimited text", "libFM", None):
        size = path.stat().st_size if path.is_file() else 0
        return _TEXT * size * (_PACKED if path.suffix.lower() in (".gz", ".zst") else 1)
    if kind == "Arrow IPC" and read_binary(path, kind, lambda: is_stream(path)):
        return 2.0 * path.stat().st_size

    def estimate() -> float:
        scan = pl.scan_parquet if kind == "Parquet" else pl.scan_ipc
        head = scan(path, glob=False).head(_PROBE).collect()
        return count_rows(path) * head.estimated_size() / max(1, head.height)

    return read_binary(path, str(kind), estimate)


def binary_schema(path: Path) -> pl.Schema:
    """The columns and types of a Parquet or Arrow file.

    Errors:
        DataError: the file is absent or broken.
    """
    if kind_of(path) == "Parquet":
        return read_binary(path, "Parquet", lambda: pl.Schema(pl.read_parquet_schema(path)))
    if not read_binary(path, "Arrow IPC", lambda: is_stream(path)):
        return read_binary(path, "Arrow IPC", lambda: pl.Schema(pl.read_ipc_schema(path)))
    return read_binary(path, "Arrow IPC", lambda: pl.read_ipc_stream(path, n_rows=0).schema)


def count_rows(path: Path) -> int:
    """The number of rows of a Parquet, Arrow or libFM file, from its metadata where it has them.

    Errors:
        DataError: the file is absent or broken.
    """
    kind = str(kind_of(path))
    if kind == "libFM":
        return sum(piece.height for piece in libfm_pieces(path, CHUNK))
    if kind != "Parquet" and read_binary(path, kind, lambda: is_stream(path)):
        return read_binary(path, kind, lambda: pl.read_ipc_stream(path)).height
    scan = pl.scan_parquet if kind == "Parquet" else pl.scan_ipc
    return int(read_binary(path, kind, lambda: scan(path, glob=False).select(pl.len()).collect().item()))


def binary_pieces(path: Path, bounds: Bounds, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet or Arrow file in pieces.

    Without pyarrow Polars reads them, which holds several row groups in memory.

    Args:
        path: the file.
        bounds: the size of pieces.
        columns: the wanted columns.

    Errors:
        DataError: the file is absent or broken, or one of its batches needs too much memory.
    """
    try:
        arrow = arrow_library()
    except MissingExtraError:
        yield from _polars_batches(path, bounds, columns)
        return
    with _explained(path, arrow):
        if kind_of(path) == "Parquet":
            yield from _parquet_pieces(path, bounds, columns)
            return
        with arrow.memory_map(str(path)) as file:
            batches: Any
            if is_stream(path):
                batches = iter(arrow.ipc.open_stream(file))
            else:
                reader = arrow.ipc.open_file(file)
                batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
            for batch in batches:
                frame = _frame(batch)
                bounds.check(frame, path)
                frame = frame.select(columns)
                yield from frame.iter_slices(_rows(bounds, frame.estimated_size() / max(1, frame.height)))


def _parquet_pieces(path: Path, bounds: Bounds, columns: list[str]) -> Iterator[pl.DataFrame]:
    schema = binary_schema(path)
    if not columns or not all(_readable(schema[name]) for name in columns):
        yield from _parquet_slices(path, bounds, columns)
        return
    import pyarrow.parquet

    # Without buffers ahead, and page by page: a row group may be larger than memory.
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
        about = file.metadata
        groups = [about.row_group(k) for k in range(about.num_row_groups)]
        unpacked = sum(group.total_byte_size for group in groups)
        row_bytes = max(8 * about.num_columns, unpacked / max(1, about.num_rows))
        if (spans := _row_spans([group.num_rows for group in groups], bounds, path, row_bytes)) is not None:
            file.close()
            yield from _row_group_pieces(path, bounds, columns, spans)
            return
        rows = _rows(bounds, row_bytes)
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            frame = _frame(batch)
            bounds.check(frame, path)
            yield frame.select(columns)


def _row_spans(lengths: list[int], bounds: Bounds, path: Path, row_bytes: float) -> list[slice] | None:
    """Rows that whole row groups hold, those of small ones together; None if a row group is too large for the bounds.

    Args:
        lengths: rows of each row group.
        bounds: of pieces.
        path: the file.
        row_bytes: mean size of a row in the file, before compression.
    """
    head = pl.scan_parquet(path, glob=False).head(_PROBE).collect()
    row = max(row_bytes, head.estimated_size() / max(1, head.height))
    most = int(min(8 * bounds.piece_bytes, _ROW_GROUPS) / row)
    if not lengths or max(lengths) > most:
        return None
    spans, end = [slice(0, 0)], 0
    for length in lengths:
        if end + length - spans[-1].start > most:
            spans.append(slice(end, end))
        end += length
        spans[-1] = slice(spans[-1].start, end)
    return spans


def _row_group_pieces(path: Path, bounds: Bounds, columns: list[str], spans: list[slice]) -> Iterator[pl.DataFrame]:
    """The rows by whole row groups, which Polars reads in a quarter of the time that pyarrow takes, one span ahead."""
    rows = pl.scan_parquet(path, glob=False).select(columns)

    def read(span: slice) -> pl.DataFrame:
        return read_binary(path, "Parquet", lambda: rows.slice(span.start, span.stop - span.start).collect())

    for frame in ahead(map(read, spans)):
        bounds.check(frame, path)
        yield from frame.iter_slices(bounds.piece_rows)


def _readable(dtype: pl.DataType) -> bool:
    """Whether pyarrow reads a column of this type in pieces: it cannot cut nested texts at any row."""
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    fixed = isinstance(inner, pl.DataType) and (inner.is_numeric() or inner.is_temporal() or inner == pl.Boolean)
    return dtype not in (pl.Int128, pl.UInt128) and (fixed if dtype.is_nested() else True)


def _parquet_slices(path: Path, bounds: Bounds, columns: list[str]) -> Iterator[pl.DataFrame]:
    """The rows by slices, for each of which polars reads a row group again."""
    rows = pl.scan_parquet(path, glob=False).select(columns)
    head = rows.head(_PROBE).collect()
    step = _rows(bounds, head.estimated_size() / max(1, head.height))
    at = 0
    while True:
        start = at
        piece = read_binary(path, "Parquet", lambda: rows.slice(start, step).collect())  # noqa: B023
        if not piece.height:
            return
        yield piece
        at += piece.height


def _polars_batches(path: Path, bounds: Bounds, columns: list[str]) -> Iterator[pl.DataFrame]:
    kind = str(kind_of(path))
    if kind != "Parquet" and read_binary(path, kind, lambda: is_stream(path)):
        yield from read_binary(path, kind, lambda: pl.read_ipc_stream(path)).select(columns).iter_slices()
        return
    scan = pl.scan_parquet if kind == "Parquet" else pl.scan_ipc
    rows = read_binary(path, kind, lambda: scan(path, glob=False).select(columns))
    step = bounds.piece_rows
    batches = read_binary(path, kind, lambda: rows.collect_batches(chunk_size=step, maintain_order=True))
    while (batch := read_binary(path, kind, lambda: next(batches, None))) is not None:
        yield batch


def _rows(bounds: Bounds, row_bytes: float) -> int:
    return max(1, min(bounds.piece_rows, int(bounds.piece_bytes / max(1.0, row_bytes))))


def _frame(batch: Any) -> pl.DataFrame:
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame


@contextmanager
def _explained(path: Path, arrow: Any) -> Iterator[None]:
    """A context in which pyarrow's errors become a DataError that names the file."""
    kind = kind_of(path)
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; check the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a {kind} file was expected; write it again")
    try:
        yield
    except (arrow.ArrowException, OSError) as e:
        raise DataError(f"{path} is not a whole {kind} file ({str(e).splitlines()[0]}); write or copy it again") from e
