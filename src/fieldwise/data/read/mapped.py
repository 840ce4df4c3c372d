"""Tables larger than memory: rows written piece by piece as Arrow files, and mapped into memory as one table."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.files import cannot_write

__all__ = ["RowsWriter", "arrow_library", "map_folder", "map_rows", "row_files"]

GATHERED = 1 << 25  # bytes
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


class RowsWriter:
    """Writes a table piece by piece to Arrow files in a folder, for `map_rows`.

    Small pieces are gathered. Every file is written to a temporary name, then renamed.

    Args:
        folder: the folder, which is created; the caller removes it.
        gather: bytes of rows per file, at least; one longer piece is one file.
        sync: whether every file is flushed to the disk before it is renamed, so that it survives a power cut.

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
        self._folder, self._gather, self._sync = folder, gather, sync
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

    def finish(self) -> list[Path]:
        """Write what has been gathered; returns all files, in order."""
        if self._held:
            self._write()
        return self.paths

    def _write(self) -> None:
        path = self._folder / f"rows-{len(self.paths):06d}.arrow"
        partial = self._folder / f".{secrets.token_hex(6)}.part"
        frame = self._held[0].rechunk() if len(self._held) == 1 else pl.concat(self._held, rechunk=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with partial.open("xb") as file:
                frame.write_ipc(file)
                file.flush()
                if self._sync:
                    os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as e:
            raise cannot_write(path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {path}: {str(e).splitlines()[0]}; free some space there") from e
        finally:
            if partial.exists():
                partial.unlink()
        self.paths.append(path)
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
    arrow = arrow_library()
    frames = []
    for path in paths:
        try:
            table = arrow.ipc.open_file(arrow.memory_map(str(path))).read_all()
        except (OSError, arrow.ArrowInvalid) as e:
            raise DataError(f"{path} is not a whole Arrow IPC file ({e}); write it again") from e
        frame = pl.from_arrow(table, rechunk=False)
        assert isinstance(frame, pl.DataFrame)
        frames.append(frame)
    return pl.concat(frames, rechunk=False)


def map_folder(folder: Path) -> pl.DataFrame:
    """`map_rows` of all files that a `RowsWriter` has written to a folder."""
    return map_rows(row_files(folder))


def row_files(folder: Path) -> list[Path]:
    """The files that a `RowsWriter` has written to a folder, in order."""
    return sorted(folder.glob("rows-*.arrow"))


def _check_types(frame: pl.DataFrame) -> None:
    for name, dtype in frame.schema.items():
        if dtype in _UNMAPPED or (dtype.is_nested() and any(str(one) in str(dtype) for one in ("Int128", "Object"))):
            raise DataError(
                f"a table larger than its share of memory cannot hold {dtype}, found in column {name!r}: convert it to "
                "text or to 64-bit numbers"
            )
