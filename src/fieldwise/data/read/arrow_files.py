"""Tables larger than memory: rows written chunk by chunk as Arrow files, and mapped into memory as one table."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl

from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.files import new_file
from fieldwise.storage.scratch import IN_MEMORY, Scratch

GATHERED = 1 << 25  # bytes
_UNMAPPED = (pl.Int128, pl.UInt128, pl.Object)


def arrow_library() -> Any:
    """The module `pyarrow`."""
    try:
        import pyarrow.ipc
    except ImportError as e:
        raise MissingExtraError(
            "a table larger than its share of memory is read through pyarrow, which is not installed: "
            "pip install 'fieldwise[large]'"
        ) from e
    return pyarrow


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
        frames = [_map_file(path) for path in paths]
        files, end = [], 0
        for path, frame in zip(paths, frames, strict=True):
            files.append(RowFile(path=path, first=end, rows=frame.height))
            end += frame.height
        return cls(frame=pl.concat(frames, rechunk=False), files=files)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        """The rows of all files that a `RowsWriter` has written to a folder; errors as of `map_rows`."""
        return cls.of(sorted(folder.glob("rows-*.arrow")))


class RowsWriter:
    """Writes a table piece by piece to Arrow files in a folder, for `map_rows`.

    Small pieces are gathered. Every file is written to a temporary name, then renamed.

    Args:
        folder: the folder, which is created; the caller removes it.
        gather: bytes of rows per file, at least; one longer piece is one file.

    After writing:
        paths: the files so far, in order.
        rows: the number of rows added.
    """

    def __init__(self, folder: Path, *, gather: int = GATHERED) -> None:
        self.paths: list[Path] = []
        self.rows = 0
        self._folder, self._gather = folder, gather
        self._held: list[pl.DataFrame] = []
        self._size = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every piece must have the same columns and types."""
        if not self.rows:
            _check_types(frame)
        if not frame.height:
            return
        self._held.append(frame)
        self.rows += frame.height
        self._size += int(frame.estimated_size())
        if self._size >= self._gather:
            self._write()

    def take(self, file: RowFile) -> bool:
        """Move a file of another `RowsWriter`, whose rows are the next; False if the system does not move it.

        Its rows may be mapped. Windows moves no file that is.
        """
        self.finish()
        path = self._next()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.replace(file.path, path)
        except OSError:
            return False
        self.rows += file.rows
        self.paths.append(path)
        return True

    def finish(self) -> list[Path]:
        """Write what has been gathered; returns all files, in order."""
        if self._held:
            self._write()
        return self.paths

    def _next(self) -> Path:
        return self._folder / f"rows-{len(self.paths):06d}.arrow"

    def _write(self) -> None:
        path = self._next()
        frame = self._held[0].rechunk() if len(self._held) == 1 else pl.concat(self._held, rechunk=True)
        try:
            with new_file(path, flush=False) as file:
                frame.write_ipc(file)
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {path}: {str(e).splitlines()[0]}; free some space there") from e
        self.paths.append(path)
        self._held, self._size = [], 0


def map_rows(paths: Sequence[Path]) -> pl.DataFrame:
    """The rows of Arrow files of `RowsWriter`, mapped: nothing is copied, and every file is a chunk of the table.

    The operating system keeps in memory what is used, and may drop it at any time. Take the rows by slices, or
    few columns at a time: what copies all of the table needs memory for all of it. On Linux and macOS the files may be
    removed while the table is in use.
    """
    return MappedRows.of(paths).frame


def _map_file(path: Path) -> pl.DataFrame:
    arrow = arrow_library()
    try:
        table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
    except (OSError, arrow.ArrowInvalid) as e:
        raise DataError(f"{path} is not a whole Arrow IPC file ({e}); write it again") from e
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _check_types(frame: pl.DataFrame) -> None:
    for name, dtype in frame.schema.items():
        if dtype in _UNMAPPED or (dtype.is_nested() and any(str(one) in str(dtype) for one in ("Int128", "Object"))):
            raise DataError(
                f"a table larger than its share of memory cannot hold {dtype}, found in column {name!r}: convert it to "
                "text or to 64-bit numbers"
            )


def join_rows(pieces: Iterable[pl.DataFrame], scratch: Scratch = IN_MEMORY, folder: Path | None = None) -> pl.DataFrame:
    """The table of all pieces, of which there is at least one, one after another.

    With a folder in `scratch` they are written and mapped: to `folder`, if given.
    """
    if scratch.folder is None:
        return pl.concat(pieces)
    writer = RowsWriter(folder or scratch.folder / secrets.token_hex(8))
    empty = None
    for piece in pieces:
        writer.add(piece)
        empty = piece.clear() if empty is None else empty
    paths = writer.finish()
    return map_rows(paths) if paths or empty is None else empty


def take_rows(
    frame: pl.DataFrame,
    rows: np.ndarray,
    scratch: Scratch = IN_MEMORY,
    folder: Path | None = None,
    files: Sequence[RowFile] = (),
    told: Callable[[int], None] = lambda _: None,
) -> pl.DataFrame:
    """Some rows of a table.

    With `folder` they are written there, see `join_rows`; `files` of the table that hold no other rows are moved there,
    which is much faster. `told` is called with the number of rows of each chunk.
    """

    def pieces(numbers: np.ndarray) -> Iterator[pl.DataFrame]:
        for at in scratch.pieces(len(numbers)):
            some = numbers[at]
            yield frame[some[0] : some[-1] + 1][some - some[0]] if len(some) else frame.clear()
            told(at.stop - at.start)

    if folder is not None and files and len(rows):
        writer, written = RowsWriter(folder), 0
        ends = np.searchsorted(rows, [file.end for file in files])
        for file, start, end in zip(files, [0, *ends[:-1]], ends, strict=True):
            if not 0 < end - start == file.rows:
                continue
            for piece in pieces(rows[written:start]):
                writer.add(piece)
            written = int(start)
            if writer.take(file):
                written = int(end)
                told(file.rows)
        for piece in pieces(rows[written:]):
            writer.add(piece)
        return map_rows(writer.finish())
    if not scratch.several(len(rows)) and folder is None:
        told(len(rows))
        return frame[rows]
    return join_rows(pieces(rows), scratch, folder)
