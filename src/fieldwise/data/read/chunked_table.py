"""Tables too large to be held as a whole: read in slices, or as a random sample of their rows."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.arrow_files import Bounds, binary_schema, common_schema, count_rows, estimated_bytes
from fieldwise.data.read.delimited import TextFormat, TextTypes
from fieldwise.data.read.file_listing import check_unchanged, find_files, kind_of
from fieldwise.data.read.tables import (
    VectorLengths,
    as_lists,
    file_states,
    has_vectors,
    is_position,
    open_table,
    position_columns,
    raw_pieces,
    vector_length,
    with_positions,
)
from fieldwise.errors import DataError

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


def sample_table(data: str | Path, text: TextFormat | None = None) -> Sample:
    """All rows of a table of up to about 1 GiB, else a random sample of 200,000 rows, with a few pieces in memory.

    Types of text are those that all values decide, not only the sample's.
    """
    files, text = find_files(Path(data)), text or TextFormat()
    if sum(map(estimated_bytes, files)) <= WHOLE:
        frame = open_table(data, text)
        return Sample(frame=frame, rows=frame.height)
    sampler = RowSampler(MOST_ROWS, seed=0)
    types = _read_all(files, text, Bounds(memory=sys.maxsize), sampler.add)
    frame, kept = sampler.finish()
    frame = frame if types is None else types.typed(frame)
    whole = len(kept) == sampler.rows
    return Sample(frame=with_positions(frame), rows=sampler.rows, kept=None if whole else kept)


def _read_all(
    files: Sequence[Path], text: TextFormat, bounds: Bounds, add: Callable[[pl.DataFrame], None]
) -> TextTypes | None:
    """Read files once, with `add` called for every piece of rows; returns the types that all values of text decide."""
    states = file_states(files)
    types = TextTypes() if kind_of(files[0]) == "delimited text" else None
    for path, piece in raw_pieces(files, text, bounds):
        add(piece)
        if types is not None:
            types.add(piece, path)
    check_unchanged(states)
    if types is not None and text.columns is None:
        types.warn_of_header(files[0])
    return types


_WHOLE = 1 << 28  # bytes of text that are read at once
_PROBE = 100  # rows


class SlicedTable:
    """A table of one file or several that is read in slices, in order.

    Of Parquet and Arrow files only the requested columns are read. Text of more than about 256 MiB is read twice: all
    of a column's values determine its type.

    Args:
        path: a file, a folder or a pattern, as for `as_table`.
        text: how delimited text is written.

    After construction:
        path: see the arguments.
        files: the files, in order.
        empty: the table without its rows: names and types of all columns.
    """

    def __init__(self, path: Path, text: TextFormat | None = None) -> None:
        self.path, self.files, self._text = path, find_files(path), text or TextFormat()
        self._rows: pl.DataFrame | None = None
        self._types: TextTypes | None = None
        self._counted: int | None = None
        self._lengths: dict[str, int] = {}
        self._text.check_applies(self.files[0])
        kind = kind_of(self.files[0])
        binary = kind in ("Parquet", "Arrow IPC")
        if not binary and sum(estimated_bytes(file) for file in self.files) <= _WHOLE:
            self._rows = open_table(path, self._text)
            self.empty = self._rows.clear()
            return
        self._states = file_states(self.files)
        if binary:
            schema = common_schema({file: binary_schema(file) for file in self.files})
            self._lengths = self._probed(schema)
            self.empty = as_lists(schema.to_frame().with_columns(position_columns(schema, self._lengths).values()))
        elif kind == "libFM":
            self.empty = next(iter(raw_pieces(self.files, self._text, _bounds(1))))[1].clear()
        else:
            self._counted = 0
            self._types = _read_all(self.files, self._text, _bounds(1 << 20), self._look)
            assert self._types is not None, "it is text"
            self.empty = self._types.typed(self.empty)

    def _look(self, piece: pl.DataFrame) -> None:
        self._counted = (self._counted or 0) + piece.height
        self.empty = piece.clear()

    def count(self) -> int:
        """Number of rows, from the files' metadata where they have them."""
        if self._rows is not None:
            return self._rows.height
        return sum(map(count_rows, self.files)) if self._counted is None else self._counted

    def slices(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """All rows with these columns, in slices of at most `rows` rows.

        Errors:
            DataError: a file is truncated, or has changed.
        """
        if self._rows is not None:
            yield from (self._rows.select(columns).iter_slices(rows) if self._rows.height else ())
            return
        made = {name: vector for name in columns if (vector := is_position(name, self._lengths)) is not None}
        needed = list(dict.fromkeys(made.get(name, name) for name in columns))
        try:
            for path, piece in raw_pieces(self.files, self._text, _bounds(rows), needed):
                if self._types is not None:
                    piece = self._types.typed(piece.select(needed))
                vectors = {vector: self._check_length(piece.get_column(vector), path) for vector in set(made.values())}
                found = position_columns(piece.schema, vectors)
                piece = as_lists(piece.with_columns(found[name] for name in made))
                yield from piece.select(columns).iter_slices(rows)
        except pl.exceptions.PolarsError:
            check_unchanged(self._states)  # the likely cause
            raise
        check_unchanged(self._states)

    def _probed(self, schema: pl.Schema) -> dict[str, int]:
        """The lengths of vectors, found from the first rows."""
        nested = [name for name, kind in schema.items() if isinstance(kind, (pl.List, pl.Array))]
        lengths = VectorLengths()
        if nested and has_vectors(schema):
            for _, piece in raw_pieces(self.files, self._text, _bounds(_PROBE), nested):
                lengths.add(piece.head(_PROBE))
                if piece.height:
                    break
        return lengths.common

    def _check_length(self, column: pl.Series, path: Path) -> int:
        """The number of positions of a vector, which all of its cells must have."""
        most = self._lengths[column.name]
        if vector_length(column) != most and column.null_count() < len(column):
            raise DataError(
                f"vectors must have one length: column {column.name!r} begins with {most} numbers a cell, and {path} "
                "has cells with another number; correct them"
            )
        return most


def _bounds(rows: int) -> Bounds:
    return Bounds(memory=sys.maxsize, piece_rows=rows)
