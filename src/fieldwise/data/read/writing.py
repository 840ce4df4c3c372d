"""Writing tables slice by slice and atomically."""

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import polars as pl

from fieldwise.data.read.kinds import ARROW, PARQUET, TEXT, suffix_of
from fieldwise.errors import DataError
from fieldwise.storage.files import disk_is_full, remove_old_partials, sync_folder
from fieldwise.storage.folders import scratch_folder

__all__ = ["TableWriter"]

FORMULA = r"^[=+@\t\r\-]"
NEGATIVE = r"^-[0-9.]+([eE][-+]?[0-9]+)?$"


class TableWriter:
    """Writes a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    A context manager: at its end the file is moved into place; on an error an existing file is not changed. Only one
    slice is in memory at a time. What killed writers have left in the folder is removed.

    Args:
        path: the file; its parent folders are created.
        raw: if False, cells of delimited text that a spreadsheet would run as a formula (texts that begin with =, +, @,
            a tab, or a minus that is no number's) are written with a ' in front.

    After writing:
        guarded: how many such cells there were.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk, a folder that is not
            writable.
    """

    def __init__(self, path: Path, *, raw: bool = True) -> None:
        suffix, packed = suffix_of(path)
        self._separator = TEXT.get(suffix)
        self._packed, self._parquet = bool(packed), suffix in PARQUET
        if packed == ".zst" or (self._separator is None and (packed or suffix not in (*PARQUET, *ARROW))):
            kinds = "csv, tsv, tab (each also .gz), parquet, arrow, feather, ipc"
            raise DataError(f"a table is written as one of {kinds}, found the name {path.name!r}; change its suffix")
        self._path, self._raw, self.guarded = path, raw, 0
        self._slices: list[Path] = []
        self._open, self._scratch = ExitStack(), ExitStack()
        self._text: IO[bytes] | None = None

    def __enter__(self) -> "TableWriter":
        if self._path.is_dir():  # else the last step would fail, after all the work
            raise DataError(f"cannot write {self._path}: it is a folder; choose another name")
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            remove_old_partials(self._path.parent)  # of former versions
            self._folder = self._scratch.enter_context(scratch_folder(self._path.parent))
            self._whole = self._folder / "whole"
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every slice must have the same columns."""
        if self._separator is not None:
            self._add_text(frame, self._separator)
            return
        with self._told():
            self._slices.append(self._folder / f"{len(self._slices)}.arrow")
            frame.write_ipc(self._slices[-1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            with self._told():
                self._open.close()
                if error is None:
                    self._finish()
        finally:
            self._scratch.close()

    def _add_text(self, frame: pl.DataFrame, separator: str) -> None:
        nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
        if nested:
            raise DataError(
                f"delimited text holds one value per cell, but column {nested[0]!r} holds {frame.schema[nested[0]]}; "
                f"write {self._path.name} as parquet, or join the column's values into text"
            )
        if not self._raw:
            frame = self._without_formulas(frame)
        with self._told():
            first = self._text is None
            if self._text is None:
                self._text = file = self._open.enter_context(self._whole.open("wb"))
                if self._packed:  # without name and time, so that equal rows give equal bytes
                    packer = self._open.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
                    self._text = cast(IO[bytes], packer)
            frame.write_csv(self._text, separator=separator, include_header=first)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def _without_formulas(self, frame: pl.DataFrame) -> pl.DataFrame:
        for name in (name for name, kind in frame.schema.items() if kind in (pl.String, pl.Categorical, pl.Enum)):
            text = frame.get_column(name).cast(pl.String)
            runs = (text.str.contains(FORMULA) & ~text.str.contains(NEGATIVE)).fill_null(False)
            if count := int(runs.sum()):
                self.guarded += count
                frame = frame.with_columns(pl.when(runs).then("'" + text).otherwise(text).alias(name))
        return frame

    def _finish(self) -> None:
        if self._separator is None:
            rows = pl.scan_ipc(self._slices)
            rows.sink_parquet(self._whole) if self._parquet else rows.sink_ipc(self._whole)
        with self._whole.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(self._whole, self._path)
        sync_folder(self._path.parent)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A context that turns errors in writing into a DataError."""
        try:
            yield
        except OSError as e:
            if disk_is_full(e):
                raise DataError(f"the disk is full: {self._path} was not written; free some space there") from e
            why = e.strerror or str(e)
            raise DataError(f"cannot write {self._path}: {why}; choose a writable folder") from e
        except pl.exceptions.PolarsError as e:
            raise DataError(f"cannot write {self._path}: {str(e).splitlines()[0]}; choose another file type") from e
