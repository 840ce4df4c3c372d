"""Arrays with a number per row, in memory or in mapped scratch files, and the pieces of rows that work is done in."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fieldwise.storage.files import cannot_write
from fieldwise.storage.folders import scratch_folder

ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class Scratch:
    """Where the arrays of a preparation lie, and how many rows are processed at once.

    Arrays in files are mapped into memory. The operating system may write their pages to disk at any time, so they do
    not count as anonymous memory, however many rows there are. Results are the same in both places.

    Args:
        folder: for the files, which the caller removes with the folder; None keeps all arrays in memory.
        piece: rows that are processed at once; None processes all rows at once.
        told: called with the number of rows of each encoded piece, and with a field's part of the rows once it is
            fitted.

    >>> [part.stop - part.start for part in Scratch(piece=4).pieces(10)]
    [4, 4, 2]
    """

    folder: Path | None = None
    piece: int | None = None
    told: Callable[[int], None] = lambda _: None

    def pieces(self, rows: int) -> Iterator[slice]:
        """Consecutive slices of `rows` rows; at least one, which is empty if there are no rows."""
        size = self.piece or max(rows, 1)
        return (slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size))

    def several(self, rows: int) -> bool:
        """Whether a table of this many rows has more than one piece."""
        return self.piece is not None and rows > self.piece

    def empty(self, shape: int | tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """A new array, whose values are undefined."""
        dtype = np.dtype(kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if self.folder is None or not size:
            return np.empty(shape, dtype)
        path = self.folder / f"{secrets.token_hex(8)}.array"
        try:
            with path.open("xb") as file:
                _reserve(file.fileno(), size)
        except OSError as e:
            raise cannot_write(self.folder, e) from e
        return np.asarray(np.memmap(path, dtype, "r+", shape=shape))

    def fill(
        self, shape: int | tuple[int, ...], kind: type[np.generic], values: Callable[[slice], np.ndarray]
    ) -> np.ndarray:
        """A new array of the values that a function gives for each chunk of rows."""
        found = self.empty(shape, kind)
        for part in self.pieces(len(found)):
            found[part] = values(part)
        return found

    def numbers(self, rows: int) -> np.ndarray:
        """The row numbers 0 to rows - 1, int64."""
        return self.fill(rows, np.int64, lambda part: np.arange(part.start, part.stop))

    def copy(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array."""
        return self.fill(array.shape, array.dtype.type, lambda part: array[part])

    def take(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The values of some rows, by number."""
        return self.fill((len(rows), *array.shape[1:]), array.dtype.type, lambda part: array[rows[part]])

    def where(self, rows: int, chosen: Callable[[slice], np.ndarray]) -> np.ndarray:
        """The numbers of the chosen rows, of which a function tells for each chunk, ascending, int64."""
        found = self.growing(np.int64)
        for part in self.pieces(rows):
            found.add(np.flatnonzero(chosen(part)) + part.start)
        return found.whole()

    @contextmanager
    def within(self) -> Iterator["Scratch"]:
        """A context with a new folder for files within the folder; mapped arrays may be used after it.

        Files in use are then removed later.
        """
        if self.folder is None:
            yield self
            return
        with scratch_folder(self.folder) as folder:
            yield replace(self, folder=folder)

    def growing(self, kind: type[np.generic]) -> "ScratchArray":
        """A one-dimensional array of unknown length, to which values are appended."""
        return ScratchArray(self, kind)


class ScratchArray:
    """A one-dimensional array that is made piece by piece; see `Scratch.growing`."""

    def __init__(self, scratch: Scratch, kind: type[np.generic]) -> None:
        self.dtype, self.length = np.dtype(kind), 0
        self._parts: list[np.ndarray] = []
        self._path = None if scratch.folder is None else scratch.folder / f"{secrets.token_hex(8)}.array"

    def add(self, values: np.ndarray) -> None:
        """Append values."""
        self.length += len(values)
        values = np.ascontiguousarray(values, self.dtype)
        if self._path is None:
            self._parts.append(values)
            return
        try:
            with self._path.open("ab") as file:
                file.write(values.view(np.uint8).data)
        except OSError as e:
            raise cannot_write(self._path.parent, e) from e

    def whole(self) -> np.ndarray:
        """All values, in the order in which they were appended."""
        if self._path is None or not self.length:
            return np.concatenate([np.empty(0, self.dtype), *self._parts])
        return np.asarray(np.memmap(self._path, self.dtype, "r+", shape=(self.length,)))


IN_MEMORY = Scratch()
"""Arrays in memory, and all rows at once."""


def _reserve(file: int, size: int) -> None:
    """Give a file its size and its place on disk: a full disk is then an error here, and no crash at a later write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for start in range(0, size, len(ZEROS)):
        os.write(file, ZEROS[: size - start])
