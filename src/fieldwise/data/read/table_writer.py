"""Writing tables to files."""

import gzip
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, cast

import polars as pl

from fieldwise.data.read.formats import format_written
from fieldwise.data.read.text_stream import suffix_of
from fieldwise.errors import DataError, first_line
from fieldwise.storage.files import cannot_write, new_file
from fieldwise.storage.folders import scratch_folder


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table in the format of its path's suffix: those of `as_table`, but `.txt`, libFM and `.zst`.

    The file is written atomically.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk.
    """
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


class TableWriter:
    """Writes a table in the format of its path's suffix: those of `as_table`, but `.txt`, libFM and `.zst`.

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
        self._format = format_written(path)
        self.path = path
        self._raw = raw
        self._open = ExitStack()

    @property
    def guarded(self) -> int:
        """How many cells got a ' so far."""
        return self._writing.guarded

    def __enter__(self) -> "TableWriter":
        if self.path.is_dir():  # else the last step would fail, after all the work
            raise DataError(f"cannot write {self.path}: it is a folder; choose another name")
        with self._naming_file():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = self._open.enter_context(scratch_folder(self.path.parent))
            self._file = self._open.enter_context(
                new_file(self.path, partial=self._folder / "whole")
            )
            if suffix_of(self.path)[
                1
            ]:  # without name and time, so that equal rows give equal bytes
                packer = self._open.enter_context(
                    gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
                )
                self._file = cast(IO[bytes], packer)
        self._writing = self._format.writing(self.path, self._folder, raw=self._raw)
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every slice must have the same columns."""
        with self._naming_file():
            self._writing.add(frame, self._file)

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
                self._writing.finish(self._file)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """A context that turns errors in writing into a DataError."""
        try:
            yield
        except OSError as e:
            raise cannot_write(self.path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(
                f"cannot write {self.path}: {first_line(e)}; choose another file type"
            ) from e
