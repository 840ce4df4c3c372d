"""Text with a row on every line, whose columns all rows decide."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar, Protocol

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.formats.table_files import TableFiles
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import CHUNK_BYTES, ByteSource
from fieldwise.errors import Row


class ColumnsOfRows(Protocol):
    """The columns of a table, as all of its rows decide them."""

    def add(self, frame: pl.DataFrame, source: ByteSource) -> None:
        """Take the next rows into account, as they were read from some lines of a file."""
        ...

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows that were added, with the columns of all."""
        ...


class LineFiles(TableFiles):
    """Files with a row on every line; blank lines may stand at the end.

    Within bounds they are read twice, else their rows are held in memory until all are known.
    """

    is_text: ClassVar[bool] = True

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        super().__init__(files, text)
        self._columns: ColumnsOfRows | None = None
        self._rows_by_file: dict[Path, int] = {}
        self._empty = pl.DataFrame()

    @abstractmethod
    def _new_columns(self) -> ColumnsOfRows:
        """The columns of no rows yet."""

    @abstractmethod
    def _read(self, source: ByteSource) -> pl.DataFrame:
        """The rows of some lines, with any columns."""

    def _chunks(
        self, limits: ChunkLimits, columns: Sequence[str] | None
    ) -> Iterator[tuple[Path, pl.DataFrame]]:
        chunks: Iterable[tuple[ByteSource, pl.DataFrame]] = self._sources(limits.chunk_bytes)
        if not limits.bounded:
            chunks = list(chunks)
        decided = self._columns
        if decided is None:
            decided = self._decide(chunks)
            if limits.bounded:
                chunks = self._sources(limits.chunk_bytes)
        for source, chunk in chunks:
            whole = self.folders.typed(decided.table(chunk), source.path)
            yield source.path, whole if columns is None else whole.select(columns)

    def _sources(self, size: int) -> Iterator[tuple[ByteSource, pl.DataFrame]]:
        """The lines of all files in chunks, and their rows."""
        for path in self.files:
            for source in line_chunks(path, size):
                yield source, self._read(source)

    def _decide(self, chunks: Iterable[tuple[ByteSource, pl.DataFrame]]) -> ColumnsOfRows:
        """The columns of these rows, which are all; notes how many each file has."""
        columns = self._new_columns()
        self._rows_by_file = dict.fromkeys(self.files, 0)
        last = pl.DataFrame()
        for source, chunk in chunks:
            columns.add(chunk, source)
            self._rows_by_file[source.path] += chunk.height
            last = chunk.clear()
        self._columns = columns
        self._empty = self.folders.typed(columns.table(last), self.files[0])
        return columns

    def _check_decided(self) -> None:
        """Read all rows, if they were not yet, for what all decide."""
        if self._columns is None:
            self._decide(self._sources(CHUNK_BYTES))

    def empty(self) -> pl.DataFrame:
        self._check_decided()
        return self._empty

    def count(self) -> int:
        self._check_decided()
        return sum(self._rows_by_file.values())

    def place(self, row: int) -> Row | None:
        self._check_decided()
        for path, rows in self._rows_by_file.items():
            if row < rows:
                return Row(row, file=str(path), line=row + 1)
            row -= rows
        return None


def line_chunks(path: Path, size: int) -> Iterator[ByteSource]:
    """The lines of a text file in chunks of about `size` bytes, without blank lines at its end.

    An empty file has one chunk without lines.
    """
    first_line = 1
    unread = b""
    for chunk in chain(ByteSource(path=path).chunks(size), [b"\n"]):
        unread += chunk
        lines = unread[: unread.rfind(b"\n") + 1]
        filled_bytes = len(lines.rstrip())
        if not filled_bytes:
            continue
        # Blank lines are left for the next chunk: only at the end of the file are they no fault.
        end = lines.find(b"\n", filled_bytes) + 1
        yield ByteSource(path=path, content=lines[:end], first_line=first_line)
        first_line += lines.count(b"\n", 0, end)
        unread = unread[end:]
    if first_line == 1:
        yield ByteSource(path=path, content=b"")
