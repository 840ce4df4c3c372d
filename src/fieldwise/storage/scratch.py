"""Rows beyond memory: how many are processed at once, and arrays by row, in memory or in mapped files."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fieldwise.storage.files import cannot_write
from fieldwise.storage.folders import scratch_folder

ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class MemoryBudget:
    """Where arrays and rows of a preparation lie, and how many rows are processed at once.

    Results do not depend on it. Arrays in files are mapped into memory. The operating system may
    write their pages to disk at any time, so they do not count as anonymous memory, however many
    rows there are.

    Args:
        folder: for the files, which the caller removes with the folder; None keeps all arrays in
            memory.
        chunk_rows: rows that are processed at once; None processes all rows at once.
        memory: bytes that another table may take which is read beside the rows; None: a share of what
            is available.
        on_rows: called with the number of rows of each encoded chunk, and with a field's part of
            the rows once it is fitted.

    >>> [part.stop - part.start for part in MemoryBudget(chunk_rows=4).chunk_slices(10)]
    [4, 4, 2]
    """

    folder: Path | None = None
    chunk_rows: int | None = None
    on_rows: Callable[[int], None] = lambda _: None
    memory: int | None = None

    @contextmanager
    def in_new_folder(self) -> Iterator["MemoryBudget"]:
        """A context with this budget, with a new folder within the folder for its files, if it has one.

        Arrays may be used after it: files in use are removed later.
        """
        if self.folder is None:
            yield self
            return
        with scratch_folder(self.folder) as folder:
            yield replace(self, folder=folder)

    def new_path(self, suffix: str = "") -> Path | None:
        """A path for a new file or folder; None if all lies in memory."""
        return None if self.folder is None else self.folder / f"{secrets.token_hex(8)}{suffix}"

    def chunk_slices(self, rows: int) -> Iterator[slice]:
        """Consecutive slices of `rows` rows; at least one, which is empty if there are no rows."""
        size = self.chunk_rows or max(rows, 1)
        return (slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size))

    def several(self, rows: int) -> bool:
        """Whether a table of this many rows has more than one chunk."""
        return rows > (self.chunk_rows or rows)

    def empty(self, shape: int | tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
        """A new array, whose values are undefined."""
        path = self.new_path(".array")
        dtype = np.dtype(kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if path is None or not size:
            return np.empty(shape, dtype)
        try:
            with path.open("xb") as file:
                # Its place on disk is taken now: a full disk is then an error here, and no crash at
                # a later write.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    for start in range(0, size, len(ZEROS)):
                        file.write(ZEROS[: size - start])
        except OSError as e:
            raise cannot_write(path.parent, e) from e
        return np.asarray(np.memmap(path, dtype, "r+", shape=shape))

    def fill(
        self,
        shape: int | tuple[int, ...],
        kind: type[np.generic],
        values: Callable[[slice], np.ndarray],
    ) -> np.ndarray:
        """A new array of the values that a function gives for each chunk of rows."""
        result = self.empty(shape, kind)
        for part in self.chunk_slices(len(result)):
            result[part] = values(part)
        return result

    def take(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The values of some rows, by number."""
        if self.folder is None and not self.several(len(rows)):
            return np.asarray(array[rows])
        shape = (len(rows), *array.shape[1:])
        return self.fill(shape, array.dtype.type, lambda part: array[rows[part]])

    def where(self, rows: int, chosen: Callable[[slice], np.ndarray]) -> np.ndarray:
        """The numbers of the rows that a function selects in each chunk, ascending, int64."""
        numbers = (np.flatnonzero(chosen(part)) + part.start for part in self.chunk_slices(rows))
        return self.concatenate(numbers, np.int64)

    def concatenate(self, parts: Iterable[np.ndarray], kind: type[np.generic]) -> np.ndarray:
        """A new array of the values of all parts, one after another; how many there are need not be known before."""
        path = self.new_path(".array")
        dtype = np.dtype(kind)
        if path is None:
            arrays = (np.asarray(part, dtype) for part in parts)
            return np.concatenate([np.empty(0, dtype), *arrays])
        length = 0
        for part in parts:
            values = np.ascontiguousarray(part, dtype)
            length += len(values)
            try:
                with path.open("ab") as file:
                    file.write(values.view(np.uint8).data)
            except OSError as e:
                raise cannot_write(path.parent, e) from e
        if not length:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(path, dtype, "r+", shape=(length,)))


NO_LIMIT = MemoryBudget()
"""All rows at once, in memory."""
