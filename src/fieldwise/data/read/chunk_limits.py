"""How much of a table may be in memory at once, and the memory that rows take."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fieldwise.errors import DataError

_CHUNKS_PER_MEMORY_BUDGET = 32
_LEAST_CHUNK_BYTES = 1 << 16
_MOST_CHUNK_BYTES = 1 << 24
_SMALL_CHUNK_BYTES = 1 << 20
"""Any chunk may take them."""
_SAMPLED_RANGES = 16
_ROWS_PER_RANGE = 256
_TEXT_ENTRY_BYTES = 16
_LONGEST_INLINE_TEXT_BYTES = 12
"""Of a text that lies in its entry."""


@dataclass(frozen=True, kw_only=True)
class ChunkLimits:
    """How much of a table may be in memory.

    Args:
        memory: bytes of rows above which a table is written to scratch files.
        chunk_bytes: bytes per chunk, about.
        chunk_rows: rows per chunk, at most.
        share: the ratio of `data.memory` to `memory`, used in error messages.
    """

    memory: float = float("inf")
    chunk_bytes: int = _MOST_CHUNK_BYTES
    chunk_rows: int = 1 << 20
    share: int = 1

    @classmethod
    def within(cls, memory: int, share: int = 1) -> "ChunkLimits":
        """Bounds for a total of `memory` bytes."""
        chunk_bytes = max(_LEAST_CHUNK_BYTES, memory // _CHUNKS_PER_MEMORY_BUDGET)
        return cls(memory=memory, chunk_bytes=min(_MOST_CHUNK_BYTES, chunk_bytes), share=share)

    @property
    def bounded(self) -> bool:
        """Whether there is a limit."""
        return self.memory != float("inf")

    def check(self, chunk: pl.DataFrame, path: Path) -> None:
        """Check that a chunk leaves room for others.

        Errors:
            DataError: it takes more than half of the memory, and more than a chunk should.
        """
        size = int(chunk.estimated_size())
        if size > max(self.memory // 2, 4 * self.chunk_bytes, _SMALL_CHUNK_BYTES):
            raise DataError(
                f"the memory must hold two chunks of a table, but {path} has one of {chunk.height:,} rows and "
                f"{size / 1e6:,.0f} MB: set data.memory to {2 * size * self.share / 1e6:,.0f}MB or more, or write the "
                "file with smaller batches"
            )

    def rows_per_chunk(self, bytes_per_row: float) -> int:
        """The number of rows of a chunk, at least one."""
        fitting_rows = int(self.chunk_bytes / max(1.0, bytes_per_row))
        return max(1, min(self.chunk_rows, fitting_rows))


def table_bytes(frame: pl.DataFrame) -> int:
    """The bytes of a table in memory or in an Arrow file, about: 16 for a text of up to 12 bytes, else as many more.

    `estimated_size` has only the bytes of the texts.

    >>> table_bytes(pl.DataFrame({"a": ["x", "y"], "n": [1, 2]}))
    48
    """
    total = 0
    for column in frame.iter_columns():
        size = int(column.estimated_size())
        if column.dtype in (pl.String, pl.Binary):
            total += _TEXT_ENTRY_BYTES * len(column)
            if size > _LONGEST_INLINE_TEXT_BYTES * len(column):
                total += size
        else:
            total += size
    return total


def bytes_per_row(frame: pl.DataFrame) -> float:
    """The memory that a row takes, about: of a long table the mean over rows in several places."""
    if frame.height <= _SAMPLED_RANGES * _ROWS_PER_RANGE:
        return frame.estimated_size() / max(1, frame.height)
    last_start = frame.height - _ROWS_PER_RANGE
    starts = range(0, last_start + 1, last_start // (_SAMPLED_RANGES - 1))
    sizes = [frame[start : start + _ROWS_PER_RANGE].estimated_size() for start in starts]
    return sum(sizes) / (len(sizes) * _ROWS_PER_RANGE)
