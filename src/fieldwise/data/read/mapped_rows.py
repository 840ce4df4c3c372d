"""Tables larger than memory: written chunk by chunk as Arrow files, and mapped as one."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl

from fieldwise.data.read.arrow_library import arrow_library
from fieldwise.errors import DataError, first_line
from fieldwise.storage.files import new_file
from fieldwise.storage.scratch import MemoryBudget

GATHERED_BYTES = 1 << 25
"""Of the rows of a file."""


@dataclass(frozen=True, kw_only=True)
class RowFile:
    """A file of `rows` rows, of which the first has the number `first` in the whole table."""

    path: Path
    first: int
    rows: int

    @property
    def end(self) -> int:
        """The number behind its last row."""
        return self.first + self.rows


@dataclass(frozen=True, kw_only=True, eq=False)
class MappedRows:
    """A table, and the files whose rows it has, one after another; no files if it is in memory."""

    frame: pl.DataFrame
    files: Sequence[RowFile] = ()

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Self:
        """`map_rows` of some files; errors as there."""
        arrow = arrow_library()
        frames = []
        files = []
        end = 0
        for path in paths:
            try:
                table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
            except (OSError, arrow.ArrowInvalid) as e:
                raise DataError(
                    f"{path} is not a whole Arrow IPC file ({e}); write it again"
                ) from e
            frame = pl.from_arrow(table, rechunk=False)
            assert isinstance(frame, pl.DataFrame)
            frames.append(frame)
            files.append(RowFile(path=path, first=end, rows=frame.height))
            end += frame.height
        return cls(frame=pl.concat(frames, rechunk=False), files=files)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The rows of all files that a `RowsWriter` has written to a folder; errors as of `map_rows`."""
        return cls.of(sorted(folder.glob("rows-*.arrow")))


class RowsWriter:
    """Writes a table chunk by chunk to Arrow files in a folder, for `map_rows`, or holds its chunks in memory.

    Small chunks are gathered. Every file is written to a temporary name, then renamed.

    Args:
        folder: the folder, which is created; the caller removes it. None: nothing is written.
        gather: bytes of rows per file, at least; one longer chunk is one file.

    After writing:
        paths: the files so far, in order.
        rows: the number of rows added.
        empty: the table without its rows, once a chunk was added.
    """

    def __init__(self, folder: Path | None, *, gather: int = GATHERED_BYTES) -> None:
        self.paths: list[Path] = []
        self.rows = 0
        self.empty = pl.DataFrame()
        self._folder = folder
        self._gather = gather
        self._gathered: list[pl.DataFrame] = []
        self._gathered_bytes = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every chunk must have the same columns and types."""
        if not self.rows:
            if frame.height or not self.empty.width:
                self.empty = frame.clear()
            if self._folder is not None:
                _check_writable(frame)
        if not frame.height:
            return
        self._gathered.append(frame)
        self.rows += frame.height
        self._gathered_bytes += int(frame.estimated_size())
        if self._gathered_bytes >= self._gather and self._folder is not None:
            self._write()

    def take(self, file: RowFile) -> bool:
        """Move a file of another `RowsWriter`, whose rows are the next; False if the system does not move it.

        Its rows may be mapped. Windows moves no file that is.
        """
        self.finish()
        path = self._next_path()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file.path, path)
        except OSError:
            return False
        self.rows += file.rows
        self.paths.append(path)
        return True

    @property
    def is_flushed(self) -> bool:
        """Whether all rows are in files."""
        return not self._gathered

    def finish(self) -> list[Path]:
        """Write what has been gathered; returns all files, in order."""
        if self._gathered and self._folder is not None:
            self._write()
        return self.paths

    def table(self) -> MappedRows:
        """The table of all rows."""
        if self._folder is not None and self.finish():
            return MappedRows.of(self.paths)
        return MappedRows(frame=pl.concat(self._gathered) if self._gathered else self.empty)

    def _next_path(self) -> Path:
        """The file of the next rows."""
        assert self._folder is not None, "rows are written to a folder"
        return self._folder / f"rows-{len(self.paths):06d}.arrow"

    def _write(self) -> None:
        """Write the gathered rows as one file."""
        path = self._next_path()
        first, *others = self._gathered
        frame = pl.concat(self._gathered, rechunk=True) if others else first.rechunk()
        try:
            with new_file(path, flush=False) as file:
                frame.write_ipc(file)
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {path}: {first_line(e)}; free some space there") from e
        self.paths.append(path)
        self._gathered = []
        self._gathered_bytes = 0


def _check_writable(frame: pl.DataFrame) -> None:
    """Refuse columns that an Arrow file cannot hold, or not so that they can be mapped."""
    for name, dtype in frame.schema.items():
        if dtype.is_nested():
            is_refused = "Int128" in str(dtype) or "Object" in str(dtype)
        else:
            is_refused = dtype in (pl.Int128, pl.UInt128, pl.Object)
        if is_refused:
            raise DataError(
                f"a table larger than its share of memory cannot hold {dtype}, found in column {name!r}: convert "
                "it to text or to 64-bit numbers"
            )


def map_rows(paths: Sequence[Path]) -> pl.DataFrame:
    """The rows of Arrow files of `RowsWriter`, mapped: nothing is copied, and every file is a chunk of the table.

    The operating system keeps in memory what is used, and may drop it at any time. Take the rows by
    slices, or few columns at a time: what copies all of the table needs memory for all of it. On
    Linux and macOS the files may be removed while the table is in use.
    """
    return MappedRows.of(paths).frame


def join_rows(
    chunks: Iterable[pl.DataFrame], folder: Path | None = None, *, budget: MemoryBudget
) -> pl.DataFrame:
    """The table of all chunks, of which there is at least one, one after another.

    If the memory budget has a folder they are written and mapped: to `folder`, if given.
    """
    writer = RowsWriter(folder or budget.new_path())
    for chunk in chunks:
        writer.add(chunk)
    return writer.table().frame


def take_rows(
    frame: pl.DataFrame,
    rows: np.ndarray,
    folder: Path | None = None,
    files: Sequence[RowFile] = (),
    on_rows: Callable[[int], None] = lambda _: None,
    *,
    budget: MemoryBudget,
) -> pl.DataFrame:
    """Some rows of a table.

    With `folder` they are written there, see `join_rows`; `files` of the table that hold no other
    rows are moved there, which is much faster. `on_rows` is called with the number of rows of each
    chunk.
    """
    if folder is not None and files and len(rows):
        return _taken_with_files(frame, rows, folder, files, on_rows, budget=budget)
    if folder is None and not budget.several(len(rows)):
        on_rows(len(rows))
        return frame[rows]
    return join_rows(_taken_chunks(frame, rows, on_rows, budget=budget), folder, budget=budget)


def _taken_chunks(
    frame: pl.DataFrame, rows: np.ndarray, on_rows: Callable[[int], None], *, budget: MemoryBudget
) -> Iterator[pl.DataFrame]:
    """Some rows of a table, whose numbers ascend, in chunks."""
    for chunk in budget.chunk_slices(len(rows)):
        numbers = rows[chunk]
        if len(numbers):
            first = numbers[0]
            # From a slice: of a mapped table no more is read.
            yield frame[first : numbers[-1] + 1][numbers - first]
        else:
            yield frame.clear()
        on_rows(chunk.stop - chunk.start)


def _taken_with_files(
    frame: pl.DataFrame,
    rows: np.ndarray,
    folder: Path,
    files: Sequence[RowFile],
    on_rows: Callable[[int], None],
    *,
    budget: MemoryBudget,
) -> pl.DataFrame:
    """Some rows of a table, written to a folder; files all of whose rows are taken are moved there."""
    writer = RowsWriter(folder)
    rows_written = 0
    ends = np.searchsorted(rows, [file.end for file in files])
    for file, start, end in zip(files, [0, *ends[:-1]], ends, strict=True):
        rows_of_file = end - start
        if rows_of_file == 0 or rows_of_file != file.rows:
            continue
        for chunk in _taken_chunks(frame, rows[rows_written:start], on_rows, budget=budget):
            writer.add(chunk)
        rows_written = int(start)
        if writer.take(file):
            rows_written = int(end)
            on_rows(file.rows)
    for chunk in _taken_chunks(frame, rows[rows_written:], on_rows, budget=budget):
        writer.add(chunk)
    return writer.table().frame
