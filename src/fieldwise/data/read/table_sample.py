"""A random sample of the rows of a table that is too large to look at as a whole."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read import arrow_files
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import find_files
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.table_files import TableFiles, check_kind
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.vectors import with_positions

MOST_ROWS = 200_000
WHOLE = 1 << 30
"""Bytes of a table that is looked at as a whole."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows of a table, in its order.

    Args:
        frame: the rows.
        rows: the number of rows of the whole table.
        kept: the number of each row in the whole table; None if all rows are kept.
    """

    frame: pl.DataFrame
    rows: int
    kept: np.ndarray | None = None

    @property
    def origin(self) -> str:
        """How many rows of how many, for a sentence; empty if all rows are kept."""
        if self.kept is None:
            return ""
        return f"{self.frame.height:,} of {self.rows:,} rows, drawn at random from all files"


def sample_table(data: str | Path, text: TextFormat | None = None) -> Sample:
    """All rows of a table of up to about 1 GiB, else a random sample of 200,000 rows, with a few chunks in memory.

    A larger one is read twice: its rows are counted, then those with the numbers that were drawn
    are kept. Types of text are those that all values decide, not only the sample's.
    """
    files = find_files(Path(data))
    text = text or TextFormat()
    if sum(map(arrow_files.estimated_bytes, files)) <= WHOLE:
        frame = open_table(data, text)
        return Sample(frame=frame, rows=frame.height)

    source = TableFiles(files, text)
    limits = ChunkLimits(memory=sys.maxsize)
    rows = _count_rows(source, files, limits)
    numbers = np.random.default_rng(0).choice(rows, min(rows, MOST_ROWS), replace=False)
    drawn = np.sort(numbers)
    frame = pl.concat(_drawn_rows(source, limits, drawn))
    if source.types is not None:
        frame = source.types.typed(frame)
    return Sample(
        frame=with_positions(frame), rows=rows, kept=None if len(drawn) == rows else drawn
    )


def _count_rows(source: TableFiles, files: list[Path], limits: ChunkLimits) -> int:
    """The number of rows of a table; all values of text are added to the types of its columns."""
    if source.types is None:
        check_kind(files[0])
        return sum(map(arrow_files.count_rows, files))
    rows = 0
    for path, chunk in source.whole_chunks(limits):
        source.types.add(chunk, path)
        rows += chunk.height
    return rows


def _drawn_rows(source: TableFiles, limits: ChunkLimits, drawn: np.ndarray) -> list[pl.DataFrame]:
    """Of each chunk of a table the rows with the drawn numbers, which ascend."""
    chunks = []
    start = 0
    for _, chunk in source.chunks(limits):
        end = start + chunk.height
        low, high = np.searchsorted(drawn, (start, end))
        chunks.append(chunk[drawn[low:high] - start])
        start = end
    return chunks
