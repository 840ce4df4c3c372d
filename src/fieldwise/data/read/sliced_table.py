"""A table of files that is read in slices, in order."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.fixed_size_lists import as_lists
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.text_format import TextFormat

_WHOLE = 1 << 28
"""Bytes of text, about, that are read at once."""


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
        self._source = table_files_of(self.files, text)
        if self._source.is_text and self._source.estimated_bytes() <= _WHOLE:
            self._frame = open_table(path, text)
            self.empty = self._frame.clear()
            return

        self.empty = as_lists(self._source.empty())

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

        for _, chunk in self._source.chunks(_limits(rows), list(dict.fromkeys(columns))):
            if self._source.types is not None:
                chunk = self._source.types.typed(chunk)
            yield from as_lists(chunk).select(columns).iter_slices(rows)


def _limits(rows: int) -> ChunkLimits:
    """Limits for slices of a number of rows."""
    return ChunkLimits(memory=sys.maxsize, chunk_rows=rows)
