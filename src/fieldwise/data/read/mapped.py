"""Tables larger than memory: rows written piece by piece as Arrow files, and mapped into memory as one table."""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl

from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.files import Flusher, cannot_write, write_atomically

__all__ = ["MappedRows", "RowFile", "RowsWriter", "arrow_library", "map_folder", "map_rows"]

GATHERED = 1 << 25  # bytes
SUMS = "sums.json"
_UNMAPPED = (pl.Int128, pl.UInt128, pl.Object)


def arrow_library() -> Any:
    """The module `pyarrow`.

    Errors:
        MissingExtraError: it is not installed.
    """
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
        sync: whether the files are flushed to the disk, so that they survive a power cut after `finish`, which then
            writes `sums.json`, with the `word_sums` of each.

    After writing:
        paths: the files so far, in order.
        rows: the number of rows added.

    Errors:
        DataError: the disk is full, the folder is not writable, or a column has a type that cannot be mapped.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> writer = RowsWriter(Path(folder.name))
    >>> for k in range(3):
    ...     writer.add(pl.DataFrame({"user": [k, k]}))
    >>> map_rows(writer.finish())["user"].to_list()
    [0, 0, 1, 1, 2, 2]
    >>> folder.cleanup()
    """

    def __init__(self, folder: Path, *, gather: int = GATHERED, sync: bool = False) -> None:
        self.paths: list[Path] = []
        self.rows = 0
        self._folder, self._gather = folder, gather
        self._flusher = Flusher() if sync else None
        self._held: list[pl.DataFrame] = []
        self._size = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every piece must have the same columns and types."""
        if not self.rows and not self._held:
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
        self._flush()
        path = self._next()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.replace(file.path, path)
        except OSError:
            return False
        self.rows += file.rows
        self._written(path)
        return True

    def finish(self) -> list[Path]:
        """Write what has been gathered; returns all files, in order.

        Errors:
            DataError: as `add`; a file cannot be flushed to the disk.
        """
        self._flush()
        if self._flusher is not None:
            sums = {path.name: found for path, found in self._flusher.wait().items()}
            write_atomically(self._folder / SUMS, json.dumps(sums).encode())
        return self.paths

    def _flush(self) -> None:
        if self._held:
            self._write()

    def _next(self) -> Path:
        return self._folder / f"rows-{len(self.paths):06d}.arrow"

    def _written(self, path: Path) -> None:
        self.paths.append(path)
        if self._flusher is not None:
            self._flusher.add(path)

    def _write(self) -> None:
        path = self._next()
        partial = self._folder / f".{secrets.token_hex(6)}.part"
        frame = self._held[0].rechunk() if len(self._held) == 1 else pl.concat(self._held, rechunk=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                frame.write_ipc(file)
            os.replace(partial, path)
        except OSError as e:
            raise cannot_write(path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {path}: {str(e).splitlines()[0]}; free some space there") from e
        finally:
            if partial.exists():
                partial.unlink()
        self._written(path)
        self._held, self._size = [], 0


def map_rows(paths: Sequence[Path]) -> pl.DataFrame:
    """The rows of Arrow files of `RowsWriter`, mapped: nothing is copied, and every file is a chunk of the table.

    The operating system keeps in memory what is used, and may drop it at any time. Take the rows by slices, or
    few columns at a time: what copies all of the table needs memory for all of it. On Linux and macOS the files may be
    removed while the table is in use.

    Args:
        paths: at least one file; uncompressed.

    Errors:
        DataError: a file is absent or broken.
        MissingExtraError: pyarrow is not installed.
    """
    return MappedRows.of(paths).frame


def map_folder(folder: Path) -> pl.DataFrame:
    """`map_rows` of all files that a `RowsWriter` has written to a folder."""
    return MappedRows.of_folder(folder).frame


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
