"""Arrow IPC files (Feather) and streams."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import polars as pl

from fieldwise.data.read.arrow_library import arrow_library, has_decimals, holds_wide
from fieldwise.data.read.chunk_limits import ChunkLimits, bytes_per_row
from fieldwise.data.read.formats.typed_files import SlicesWriting, TypedFiles
from fieldwise.errors import MissingExtraError

_START_OF_FILE = b"ARROW1"


class ArrowIpcWriting(SlicesWriting):
    """Writes an Arrow IPC file."""

    def join(self, rows: pl.LazyFrame, file: IO[bytes]) -> None:
        rows.sink_ipc(file)


class ArrowIpcFiles(TypedFiles):
    """Arrow IPC files, with an index or as streams, which Polars reads as a whole."""

    name = "Arrow IPC"
    suffixes = (".arrow", ".feather", ".ipc")
    written_suffixes = suffixes
    writing = ArrowIpcWriting

    def lazy(self, path: Path) -> pl.LazyFrame:
        if _is_stream(path):
            return pl.read_ipc_stream(path).lazy()
        return pl.scan_ipc(path, glob=False)

    def wide_decimals(self, path: Path) -> list[str]:
        if not _is_stream(path):
            schema = self.lazy(path).collect_schema()
            if not any(has_decimals(dtype) for dtype in schema.dtypes()):
                return []
        try:
            arrow = arrow_library()
        except MissingExtraError:  # polars says what it cannot read
            return []
        try:
            with _opened(path, arrow.OSFile) as reader:
                return [field.name for field in reader.schema if holds_wide(field.type)]
        except arrow.ArrowException:  # polars says what is wrong with the file
            return []

    def arrow_table(self, path: Path) -> Any:
        with _opened(path, arrow_library().OSFile) as reader:
            return reader.read_all()

    def file_schema(self, path: Path) -> pl.Schema:
        with self._explained(path):
            if _is_stream(path) and not self.wide_decimals(path):
                return pl.read_ipc_stream(path, n_rows=0).schema
        return super().file_schema(path)

    def file_bytes(self, path: Path) -> float:
        with self._explained(path):
            if _is_stream(path):
                return 2.0 * path.stat().st_size
        return super().file_bytes(path)

    def chunks_by_arrow(
        self, path: Path, limits: ChunkLimits, columns: list[str]
    ) -> Iterator[pl.DataFrame]:
        with _opened(path, arrow_library().memory_map) as reader:
            for batch in _batches(reader, is_stream=_is_stream(path)):
                whole = pl.DataFrame(batch)
                limits.check(whole, path)
                frame = whole.select(columns)
                yield from frame.iter_slices(limits.rows_per_chunk(bytes_per_row(frame)))


def _is_stream(path: Path) -> bool:
    """Whether a file is an Arrow stream, rather than the format with an index."""
    with path.open("rb") as file:
        return file.read(len(_START_OF_FILE)) != _START_OF_FILE


@contextmanager
def _opened(path: Path, open_path: Any) -> Iterator[Any]:
    """The pyarrow reader of a file that `open_path` opens."""
    ipc = arrow_library().ipc
    with open_path(str(path)) as file:
        yield ipc.open_stream(file) if _is_stream(path) else ipc.open_file(file)


def _batches(reader: Any, *, is_stream: bool) -> Iterator[Any]:
    """The record batches of a reader."""
    if is_stream:
        yield from reader
        return
    for k in range(reader.num_record_batches):
        yield reader.get_batch(k)
