"""Writing tables to files."""

import gzip
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import polars as pl

from fieldwise.data.read.file_listing import ARROW, PARQUET, TEXT, suffix_of
from fieldwise.errors import DataError
from fieldwise.storage.files import cannot_write, new_file, scratch_folder

_FORMULA = r"^[=+@\t\r\-]"
_SIGNED_NUMBER = r"^[+-][0-9.]+([eE][-+]?[0-9]+)?$"
_WRITTEN_KINDS = "csv, tsv, tab (each also .gz), parquet, arrow, feather, ipc"


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    The file is written atomically.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk.
    """
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


class TableWriter:
    """Writes a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    A context manager: at its end the file is moved into place; on an error an existing file is not
    changed. Only one slice is in memory at a time. What killed writers have left in the folder is
    removed.

    Args:
        path: the file; its parent folders are created.
        raw: if False, cells of delimited text that a spreadsheet would run as a formula (texts that
            begin with =, @, a tab, or a plus or minus that is no number's) are written with a ' in
            front.

    After construction:
        guarded: how many such cells there were so far.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk, a folder
            that is not writable.
    """

    def __init__(self, path: Path, *, raw: bool = True) -> None:
        suffix, packing = suffix_of(path)
        self._separator = TEXT.get(suffix)
        self._is_packed = bool(packing)
        self._is_parquet = suffix in PARQUET
        is_text = self._separator is not None
        is_binary = suffix in (*PARQUET, *ARROW) and not packing
        if packing == ".zst" or not (is_text or is_binary):
            raise DataError(
                f"a table is written as one of {_WRITTEN_KINDS}, found the name {path.name!r}; change its suffix"
            )
        self.path = path
        self._raw = raw
        self.guarded = 0
        self._slices: list[Path] = []
        self._open = ExitStack()
        self._has_header = False

    def __enter__(self) -> "TableWriter":
        if self.path.is_dir():  # else the last step would fail, after all the work
            raise DataError(f"cannot write {self.path}: it is a folder; choose another name")
        with self._naming_file():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = self._open.enter_context(scratch_folder(self.path.parent))
            self._file = self._open.enter_context(
                new_file(self.path, partial=self._folder / "whole")
            )
            if self._is_packed:  # without name and time, so that equal rows give equal bytes
                packer = self._open.enter_context(
                    gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
                )
                self._file = cast(IO[bytes], packer)
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every slice must have the same columns."""
        if self._separator is None:
            self._add_slice(frame)
        else:
            self._add_text(frame, self._separator)

    def _add_slice(self, frame: pl.DataFrame) -> None:
        """Write rows to a file of their own, which is joined with the others at the end."""
        with self._naming_file():
            self._slices.append(self._folder / f"{len(self._slices)}.arrow")
            frame.write_ipc(self._slices[-1])

    def _add_text(self, frame: pl.DataFrame, separator: str) -> None:
        """Write rows of delimited text, with a header before the first."""
        for name, dtype in frame.schema.items():
            if dtype.is_nested():
                raise DataError(
                    f"delimited text holds one value per cell, but column {name!r} holds {dtype}; write "
                    f"{self.path.name} as parquet, or join the column's values into text"
                )
            if not self._raw and dtype in (pl.String, pl.Categorical, pl.Enum):
                frame = self._without_formulas(frame, name)
        with self._naming_file():
            frame.write_csv(self._file, separator=separator, include_header=not self._has_header)
        self._has_header = True

    def _without_formulas(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """The rows with a ' in front of the cells of a column that a spreadsheet would run."""
        text = frame.get_column(name).cast(pl.String)
        is_formula = text.str.contains(_FORMULA) & ~text.str.contains(_SIGNED_NUMBER)
        is_formula = is_formula.fill_null(False)
        formulas = int(is_formula.sum())
        if not formulas:
            return frame
        self.guarded += formulas
        guarded = pl.when(is_formula).then("'" + text).otherwise(text)
        return frame.with_columns(guarded.alias(name))

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._naming_file():
            if error is not None:  # which need not be one in writing: it stays as it is
                with suppress(DataError, OSError):
                    self._open.__exit__(error_type, error, traceback)
                return
            with self._open:
                if self._separator is None:
                    self._join_slices()

    def _join_slices(self) -> None:
        """Write the rows of all slices to the file."""
        rows = pl.scan_ipc(self._slices)
        if self._is_parquet:
            rows.sink_parquet(self._file)
        else:
            rows.sink_ipc(self._file)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """A context that turns errors in writing into a DataError."""
        try:
            yield
        except OSError as e:
            raise cannot_write(self.path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(
                f"cannot write {self.path}: {str(e).splitlines()[0]}; choose another file type"
            ) from e
