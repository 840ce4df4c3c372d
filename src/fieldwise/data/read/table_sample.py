"""A random sample of the rows of a table that is too large to look at as a whole."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.fixed_size_lists import as_lists
from fieldwise.data.read.formats import table_files_of
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.sampling import drawn_rows

MOST_ROWS = 200_000
WHOLE = 1 << 30
"""Bytes of a table that is looked at as a whole."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of a table, in its order.

    Args:
        frame: the rows.
        rows: the number of rows of the whole table.
        row_numbers: the number of each row in the whole table; None if all rows are kept.
    """

    frame: pl.DataFrame
    rows: int
    row_numbers: np.ndarray | None = None

    @property
    def origin(self) -> str:
        """How many rows of how many, for a sentence; empty if all rows are kept."""
        if self.row_numbers is None:
            return ""
        return f"{self.frame.height:,} of {self.rows:,} rows, drawn at random from all files"


def sample_table(data: str | Path, text: TextFormat | None = None) -> Sample:
    """All rows of a table of up to about 1 GiB, else a random sample of 200,000 rows, with a few chunks in memory.

    A larger one is read twice: its rows are counted, then those with the numbers that were drawn
    are kept. Types of text are those that all values decide, not only the sample's.
    """
    source = table_files_of(find_files(Path(data)), text)
    if source.estimated_bytes() <= WHOLE:
        frame = open_table(data, text)
        return Sample(frame=frame, rows=frame.height)

    rows = source.count()
    drawn = drawn_rows(rows, MOST_ROWS)
    chunks = []
    start = 0
    for _, chunk in source.chunks(ChunkLimits(memory=sys.maxsize)):
        end = start + chunk.height
        low, high = np.searchsorted(drawn, (start, end))
        chunks.append(chunk[drawn[low:high] - start])
        start = end
    frame = pl.concat(chunks)
    if source.types is not None:
        frame = source.types.typed(frame)
    return Sample(
        frame=as_lists(frame), rows=rows, row_numbers=None if len(drawn) == rows else drawn
    )
