"""A bounded random sample of a table's rows, for tables that are too large to look at as a whole."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.found import check_unchanged, find_files
from fieldwise.data.read.headers import names_among_values, warn_of_names
from fieldwise.data.read.kinds import kind_of
from fieldwise.data.read.one_file import TextFormat
from fieldwise.data.read.pieces import Bounds, estimated_bytes
from fieldwise.data.read.source import file_states, open_table, raw_pieces
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.read.vectors import with_positions

__all__ = ["RowSampler", "Sample", "sample_table"]

MOST_ROWS = 200_000
WHOLE = 1 << 30  # bytes of a table that is looked at as a whole


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
    def told(self) -> str:
        """How many rows of how many, for a sentence; empty if all rows are kept."""
        return (
            "" if self.kept is None else f"{self.frame.height:,} of {self.rows:,} rows, drawn at random from all files"
        )


class RowSampler:
    """A uniform random sample of the rows that come piece by piece; it does not depend on the pieces.

    Args:
        most: number of rows to keep.
        seed: seed of the choice.

    >>> sampler = RowSampler(3, seed=0)
    >>> for start in range(0, 100, 10):
    ...     sampler.add(pl.DataFrame({"n": range(start, start + 10)}))
    >>> frame, numbers = sampler.finish()
    >>> frame["n"].to_list() == numbers.tolist(), sampler.rows
    (True, 100)
    """

    def __init__(self, most: int, seed: int) -> None:
        self.rows = 0
        self._most, self._seed = most, seed
        self._limit = np.uint64(2**64 - 1)  # rows with greater keys are not among the chosen ones
        self._frames: list[pl.DataFrame] = []
        self._numbers: list[np.ndarray] = []

    def add(self, piece: pl.DataFrame) -> None:
        """The next rows of the table."""
        numbers = np.arange(self.rows, self.rows + piece.height, dtype=np.uint64)
        self.rows += piece.height
        chosen = self._keys(numbers) <= self._limit
        # A copy, so that the rest of the piece is not kept alive.
        self._frames.append(piece.filter(chosen))
        self._numbers.append(numbers[chosen])
        if sum(map(len, self._numbers)) > 2 * self._most + 1000:
            self._shrink()

    def finish(self) -> tuple[pl.DataFrame, np.ndarray]:
        """The chosen rows in the table's order, and their numbers."""
        self._shrink()
        return self._frames[0], self._numbers[0].astype(np.int64)

    def _shrink(self) -> None:
        numbers = np.concatenate(self._numbers)
        keys = self._keys(numbers)
        if len(keys) > self._most:
            self._limit = np.partition(keys, self._most - 1)[self._most - 1]
        chosen = keys <= self._limit
        self._frames = [pl.concat(self._frames).filter(chosen).rechunk()]
        self._numbers = [numbers[chosen]]

    def _keys(self, numbers: np.ndarray) -> np.ndarray:
        """A random key of each row, by its number (SplitMix64, a permutation: no two rows have the same)."""
        offset = np.uint64((self._seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
        x = (numbers + offset) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))


def sample_table(
    data: str | Path,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Sample:
    """All rows of a table of up to about 1 GiB, else a random sample of 200,000 rows, with a few pieces in memory.

    Types of text are those that all values decide, not only the sample's.

    Args:
        data: a file, a folder or a pattern, as for `as_table`.
        separator: as for `as_table`.
        encoding: as for `as_table`.
        columns: as for `as_table`.
        seed: seed of the choice.

    Errors:
        DataError: as `as_table`.
    """
    path = Path(data)
    files = find_files(path)
    if sum(map(estimated_bytes, files)) <= WHOLE:
        frame = open_table(path, separator=separator, encoding=encoding, columns=columns)
        return Sample(frame=frame, rows=frame.height)
    states, sampler = file_states(files), RowSampler(MOST_ROWS, seed)
    types = TextTypes() if kind_of(files[0]) == "delimited text" else None
    names: dict[str, Path] = {}
    text = TextFormat(separator=separator, encoding=encoding, columns=columns)
    for file, piece in raw_pieces(files, text, Bounds(memory=sys.maxsize)):
        sampler.add(piece)
        if types is not None:
            types.add(piece)
            names |= {name: file for name in names_among_values(piece) if name not in names}
    check_unchanged(states)
    frame, kept = sampler.finish()
    if types is not None:
        frame = types.typed(frame)
        if columns is None:
            warn_of_names(frame.clear(), files[0], names)
    whole = len(kept) == sampler.rows
    return Sample(frame=with_positions(frame), rows=sampler.rows, kept=None if whole else kept)
