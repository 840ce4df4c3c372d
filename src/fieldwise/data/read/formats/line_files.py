"""Text with a row on every line, whose columns all rows decide."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.formats.table_files import Chunks, TableFiles
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import CHUNK_BYTES, ByteSource


class ColumnsOfRows(Protocol):
    """The columns of a table, as all of its rows decide them."""

    def add(self, frame: pl.DataFrame, source: ByteSource) -> None:
        """Take the next rows into account, as they were read from some lines of a file."""
        ...

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows that were added, with the columns of all."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """What all rows decide."""

    columns: ColumnsOfRows
    empty: pl.DataFrame
    rows_by_file: Mapping[Path, int]


class LineFiles(TableFiles):
    """Files with a row on every line; blank lines may stand at the end.

    Within bounds they are read twice, else their rows are held in memory until all are known.
    """

    is_text = True

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        super().__init__(files, text)
        self._facts: _Facts | None = None

    @abstractmethod
    def _new_columns(self) -> ColumnsOfRows:
        """The columns of no rows yet."""

    @abstractmethod
    def _read(self, source: ByteSource) -> pl.DataFrame:
        """The rows of some lines, with any columns."""

    def _chunks(self, limits: ChunkLimits, columns: Sequence[str] | None) -> Chunks:
        chunks: Iterable[tuple[ByteSource, pl.DataFrame]] = self._read_files(limits.chunk_bytes)
        if self._facts is None and not limits.bounded:
            chunks = list(chunks)
            self._facts = self._facts_of(chunks)
        all_columns = self._known(limits.chunk_bytes).columns
        for source, chunk in chunks:
            yield source.path, all_columns.table(chunk)

    def _read_files(self, size: int) -> Iterator[tuple[ByteSource, pl.DataFrame]]:
        """The lines of all files in chunks, and their rows."""
        for path in self.files:
            for source in line_chunks(path, size):
                yield source, self._read(source)

    def _known(self, size: int = CHUNK_BYTES) -> _Facts:
        """What all rows decide, which are read for it if they were not yet."""
        if self._facts is None:
            self._facts = self._facts_of(self._read_files(size))
        return self._facts

    def _facts_of(self, chunks: Iterable[tuple[ByteSource, pl.DataFrame]]) -> _Facts:
        """What these rows decide, which are all."""
        columns = self._new_columns()
        rows_by_file = Counter[Path]()
        for source, chunk in chunks:
            columns.add(chunk, source)
            rows_by_file[source.path] += chunk.height
        empty = columns.table(chunk).clear()
        return _Facts(columns=columns, empty=empty, rows_by_file=rows_by_file)

    def _empty(self) -> pl.DataFrame:
        return self._known().empty

    def _rows_by_file(self) -> Mapping[Path, int]:
        return self._known().rows_by_file


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
