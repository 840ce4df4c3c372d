"""Files whose columns have names and types: what Parquet and Arrow files have in common."""

import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import polars as pl

from fieldwise.data.read.arrow_library import arrow_library, with_narrow_decimals
from fieldwise.data.read.chunk_limits import ChunkLimits, bytes_per_row
from fieldwise.data.read.formats.table_files import (
    Chunks,
    RowsWriting,
    TableFiles,
    check_columns,
    common_type,
)
from fieldwise.errors import DataError, MissingExtraError, first_line

PROBED_ROWS = 1_000
"""The first rows, by which the size of all is estimated."""


class TypedFiles(TableFiles):
    """Files whose columns have names and types, of which some columns are read alone.

    The types are those that hold the values of all files.
    """

    @abstractmethod
    def lazy(self, path: Path) -> pl.LazyFrame:
        """The rows of a file, to be read by Polars when they are collected."""

    @abstractmethod
    def wide_decimals(self, path: Path) -> list[str]:
        """The columns with decimals that polars cannot read, also within lists and structs."""

    @abstractmethod
    def arrow_table(self, path: Path) -> Any:
        """The rows of a file as a pyarrow table."""

    @abstractmethod
    def chunks_by_arrow(
        self, path: Path, limits: ChunkLimits, columns: list[str]
    ) -> Iterator[pl.DataFrame]:
        """The rows of a file in bounded chunks, where pyarrow is installed."""

    def file_schema(self, path: Path) -> pl.Schema:
        """The columns and types of a file."""
        with self._explained(path):
            return self.scan(path).collect_schema()

    def count_rows(self, path: Path) -> int:
        """The number of rows of a file, from its metadata where it has them."""
        with self._explained(path):
            return int(self.scan(path).select(pl.len()).collect().item())

    def file_bytes(self, path: Path) -> float:
        """The memory that a file's rows take, by the first ones."""
        with self._explained(path):
            return self.count_rows(path) * bytes_per_row(
                self.scan(path).head(PROBED_ROWS).collect()
            )

    def scan(self, path: Path) -> pl.LazyFrame:
        """The rows of a file, to be read when they are collected, or now if it has decimals of more than 38 digits."""
        wide_columns = self.wide_decimals(path)
        if not wide_columns:
            return self.lazy(path)
        try:
            arrow_library()
        except MissingExtraError as e:
            raise MissingExtraError(
                f"column {wide_columns[0]!r} of {path} has decimals of more than 38 digits, which are read through "
                "pyarrow, and it is not installed: pip install 'fieldwise[large]'"
            ) from e
        return pl.DataFrame(with_narrow_decimals(self.arrow_table(path), str(path))).lazy()

    def file_chunks(
        self, path: Path, limits: ChunkLimits, columns: list[str]
    ) -> Iterator[pl.DataFrame]:
        """The rows of a file in chunks, or without bounds at once.

        Without pyarrow Polars reads the chunks, which holds several row groups in memory.
        """
        with self._explained(path):
            if not limits.bounded:
                yield self.scan(path).select(columns).collect()
                return
            try:
                arrow_library()
            except MissingExtraError:
                rows = self.scan(path).select(columns)
                yield from rows.collect_batches(chunk_size=limits.chunk_rows, maintain_order=True)
                return
            if self.wide_decimals(path):
                frame = self.scan(path).select(columns).collect()
                yield from frame.iter_slices(limits.rows_per_chunk(bytes_per_row(frame)))
            else:
                yield from self.chunks_by_arrow(path, limits, columns)

    @contextmanager
    def _explained(self, path: Path) -> Iterator[None]:
        """A context in which errors of the file's reader become a DataError that names the file."""
        if not path.is_file():
            raise DataError(f"the file {path} does not exist; check the path")
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: a {self.name} file was expected; write it again")
        try:
            yield
        except _reading_errors() as e:
            raise DataError(
                f"{path} is not a whole {self.name} file ({first_line(e)}); write or copy it again"
            ) from e

    def estimated_bytes(self) -> float:
        return sum(map(self.file_bytes, self.files))

    def _schema(self) -> pl.Schema:
        """The columns of all files, with types that hold the values of each."""
        return common_schema({path: self.file_schema(path) for path in self.files})

    def _chunks(self, limits: ChunkLimits, columns: Sequence[str] | None) -> Chunks:
        schema = self._schema()
        read_schema = dict(schema)
        if columns is not None:
            read_schema = {name: dtype for name, dtype in schema.items() if name in columns}
        if not read_schema:
            # All columns are told by folders: one of the files' tells how many rows they have.
            read_schema = dict(list(schema.items())[:1])
        for path in self.files:
            for chunk in self.file_chunks(path, limits, list(read_schema)):
                if chunk.schema != read_schema:
                    chunk = chunk.cast(pl.Schema(read_schema))
                yield path, chunk

    def _empty(self) -> pl.DataFrame:
        return self._schema().to_frame()

    def _rows_by_file(self) -> dict[Path, int]:
        return {path: self.count_rows(path) for path in self.files}


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
            wider = common_type(known, dtype)
            if wider is None:
                raise DataError(
                    f"a column must have one type in all files, but {name!r} is {known} in {file_of_type[name]} and "
                    f"{dtype} in {path}: convert one of them"
                )
            if wider != known:
                common[name] = wider
                file_of_type[name] = path
    return common


def _reading_errors() -> tuple[type[BaseException], ...]:
    """The errors of broken files, also those of pyarrow if it has been imported."""
    errors = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        return errors
    return (*errors, arrow.ArrowException)


class SlicesWriting(RowsWriting):
    """Writes rows to scratch files, which are joined in one file at the end."""

    def __init__(self, path: Path, folder: Path, *, raw: bool) -> None:
        super().__init__(path, folder, raw=raw)
        self._slices: list[Path] = []

    def add(self, frame: pl.DataFrame, file: IO[bytes]) -> None:
        self._slices.append(self.folder / f"{len(self._slices)}.arrow")
        frame.write_ipc(self._slices[-1])

    def finish(self, file: IO[bytes]) -> None:
        self.join(pl.scan_ipc(self._slices), file)

    @abstractmethod
    def join(self, rows: pl.LazyFrame, file: IO[bytes]) -> None:
        """Write all rows to the file."""
