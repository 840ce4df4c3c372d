"""A table of files that is read in slices, in order."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.vectors import (
    VectorLengths,
    as_lists,
    is_position,
    position_columns,
    vector_length,
)
from fieldwise.errors import DataError

_WHOLE = 1 << 28
"""Bytes of text, about, that are read at once."""
_PROBED_ROWS = 100
"""The first rows, by which a binary file's lists are vectors."""


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
        self._frame: pl.DataFrame | None = None
        self._vector_lengths: dict[str, int] = {}
        self._source = table_files_of(self.files, text)
        if self._source.is_text and self._source.estimated_bytes() <= _WHOLE:
            self._frame = open_table(path, text)
            self.empty = self._frame.clear()
            return

        empty = self._source.empty()
        if any(dtype.is_nested() for dtype in empty.dtypes):
            self._vector_lengths = self._first_lengths()
        positions = position_columns(empty.schema, self._vector_lengths)
        self.empty = as_lists(empty.with_columns(positions.values()))

    def _first_lengths(self) -> dict[str, int]:
        """The lengths of the vectors in the first rows."""
        lengths = VectorLengths()
        for _, chunk in self._source.chunks(_limits(_PROBED_ROWS)):
            lengths.add(chunk.head(_PROBED_ROWS))
            if chunk.height:
                break
        return lengths.common

    def count(self) -> int:
        """Number of rows, from the files' metadata where they have them."""
        return self._source.count() if self._frame is None else self._frame.height

    def slices(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """All rows with these columns, in slices of at most `rows` rows.

        Errors:
            DataError: a file is truncated, or has changed.
        """
        if self._frame is not None:
            if self._frame.height:
                yield from self._frame.select(columns).iter_slices(rows)
            return

        vectors = [is_position(name, self._vector_lengths) for name in columns]
        lengths = {name: self._vector_lengths[name] for name in vectors if name is not None}
        read_columns = list(
            dict.fromkeys(vector or name for name, vector in zip(columns, vectors, strict=True))
        )
        for path, chunk in self._source.chunks(_limits(rows), read_columns):
            if self._source.types is not None:
                chunk = self._source.types.typed(chunk)
            _check_vectors(chunk, lengths, path)
            positions = position_columns(chunk.schema, lengths)
            whole = as_lists(chunk.with_columns(positions.values()))
            yield from whole.select(columns).iter_slices(rows)


def _check_vectors(chunk: pl.DataFrame, lengths: Mapping[str, int], path: Path) -> None:
    """Refuse rows of a file in which a vector has another length than in the first rows."""
    for name, length in lengths.items():
        column = chunk.get_column(name)
        if vector_length(column) != length and column.null_count() < len(column):
            raise DataError(
                f"vectors must have one length: column {name!r} begins with {length} numbers a cell, and "
                f"{path} has cells with another number; correct them"
            )


def _limits(rows: int) -> ChunkLimits:
    """Limits for slices of a number of rows."""
    return ChunkLimits(memory=sys.maxsize, chunk_rows=rows)
