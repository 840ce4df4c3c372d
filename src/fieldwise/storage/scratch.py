"""Rows beyond memory: how many are processed at once, and arrays with a number per row, in memory or in mapped files.

A `MemoryBudget` is given once, to a context. The functions here follow it, also in the threads of
`storage.machine.each`. Without one all rows are processed at once, and arrays lie in memory.
Results are the same.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fieldwise.storage.files import cannot_write, scratch_folder

ZEROS = bytes(1 << 20)


@dataclass(frozen=True)
class MemoryBudget:
    """Where arrays and rows of a preparation lie, and how many rows are processed at once.

    Arrays in files are mapped into memory. The operating system may write their pages to disk at
    any time, so they do not count as anonymous memory, however many rows there are.

    Args:
        folder: for the files, which the caller removes with the folder; None keeps all arrays in
            memory.
        chunk_rows: rows that are processed at once; None processes all rows at once.
        on_rows: called with the number of rows of each encoded chunk, and with a field's part of
            the rows once it is fitted.

    >>> with MemoryBudget(chunk_rows=4).active():
    ...     [part.stop - part.start for part in chunk_slices(10)]
    [4, 4, 2]
    """

    folder: Path | None = None
    chunk_rows: int | None = None
    on_rows: Callable[[int], None] = lambda _: None

    @contextmanager
    def active(self, *, in_new_folder: bool = False) -> Iterator[None]:
        """A context in which this is the budget, with a new folder within the folder for its files, if wanted.

        Arrays may be used after it: files in use are removed later.
        """
        if in_new_folder and self.folder is not None:
            with scratch_folder(self.folder) as folder, replace(self, folder=folder).active():
                yield
            return
        token = _BUDGET.set(self)
        try:
            yield
        finally:
            _BUDGET.reset(token)


_BUDGET: ContextVar[MemoryBudget] = ContextVar("memory_budget", default=MemoryBudget())  # noqa: B039


def budget() -> MemoryBudget:
    """The budget of the context."""
    return _BUDGET.get()


def new_path(suffix: str = "") -> Path | None:
    """A path for a new file or folder of the budget; None if all lies in memory."""
    folder = _BUDGET.get().folder
    return None if folder is None else folder / f"{secrets.token_hex(8)}{suffix}"


def chunk_slices(rows: int) -> Iterator[slice]:
    """Consecutive slices of `rows` rows; at least one, which is empty if there are no rows."""
    size = _BUDGET.get().chunk_rows or max(rows, 1)
    return (slice(start, min(start + size, rows)) for start in range(0, max(rows, 1), size))


def several(rows: int) -> bool:
    """Whether a table of this many rows has more than one chunk."""
    return rows > (_BUDGET.get().chunk_rows or rows)


def empty(shape: int | tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    """A new array, whose values are undefined."""
    path = new_path(".array")
    dtype = np.dtype(kind)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if path is None or not size:
        return np.empty(shape, dtype)
    try:
        with path.open("xb") as file:
            # Its place on disk is taken now: a full disk is then an error here, and no crash at a
            # later write.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for start in range(0, size, len(ZEROS)):
                    file.write(ZEROS[: size - start])
    except OSError as e:
        raise cannot_write(path.parent, e) from e
    return np.asarray(np.memmap(path, dtype, "r+", shape=shape))


def fill(
    shape: int | tuple[int, ...], kind: type[np.generic], values: Callable[[slice], np.ndarray]
) -> np.ndarray:
    """A new array of the values that a function gives for each chunk of rows."""
    result = empty(shape, kind)
    for part in chunk_slices(len(result)):
        result[part] = values(part)
    return result


def take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The values of some rows, by number."""
    return fill((len(rows), *array.shape[1:]), array.dtype.type, lambda part: array[rows[part]])


def where(rows: int, chosen: Callable[[slice], np.ndarray]) -> np.ndarray:
    """The numbers of the rows that a function selects in each chunk, ascending, int64."""
    return concatenate(
        (np.flatnonzero(chosen(part)) + part.start for part in chunk_slices(rows)), np.int64
    )


def concatenate(parts: Iterable[np.ndarray], kind: type[np.generic]) -> np.ndarray:
    """A new array of the values of all parts, one after another; how many there are need not be known before."""
    path = new_path(".array")
    dtype = np.dtype(kind)
    length = 0
    if path is None:
        return np.concatenate([np.empty(0, dtype), *(np.asarray(part, dtype) for part in parts)])
    for part in parts:
        values = np.ascontiguousarray(part, dtype)
        length += len(values)
        try:
            with path.open("ab") as file:
                file.write(values.view(np.uint8).data)
        except OSError as e:
            raise cannot_write(path.parent, e) from e
    return (
        np.asarray(np.memmap(path, dtype, "r+", shape=(length,))) if length else np.empty(0, dtype)
    )
