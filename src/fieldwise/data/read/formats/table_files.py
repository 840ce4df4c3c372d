"""Files of one format: what a format tells of its files, and how their rows are read and written."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.folder_columns import FolderColumns
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import suffix_of
from fieldwise.data.read.text_types import TextTypes
from fieldwise.errors import DataError, Row
from fieldwise.storage.files import FileState, file_state

Chunks = Iterator[tuple[Path, pl.DataFrame]]
"""Rows, with the file that has them."""
UNPACKED_PER_PACKED_BYTE = 10


class RowsWriting(ABC):
    """Writes the rows of one file of a format, chunk by chunk; `TableWriter` opens the file.

    Args:
        path: the file.
        folder: for scratch files.
        raw: as of `TableWriter`, whose `guarded` is counted here.
    """

    def __init__(self, path: Path, folder: Path, *, raw: bool) -> None:
        self.path = path
        self.folder = folder
        self.raw = raw
        self.guarded = 0

    @abstractmethod
    def add(self, frame: pl.DataFrame, file: IO[bytes]) -> None:
        """Write the next rows."""

    def finish(self, file: IO[bytes]) -> None:
        """Write what is left when all rows were added."""
        del file  # most formats have written all


class TableFiles(ABC):
    """Files of one format that are read in chunks of rows with the same columns.

    Each format is a class, registered in `fieldwise.data.read.formats`; nothing else asks which
    format a file has.

    Class attributes:
        name: the format's name in errors.
        suffixes: the suffixes of its files, in lower case.
        is_text: whether a file is text, which may be packed (`.gz`, `.zst`), with a row on every line.
        written_suffixes: the suffixes of the files that it writes; text also with `.gz`.
        writing: what writes a file, if there are such suffixes.
        takes_text_options: whether `separator`, `encoding` and `columns` tell how a file is written.
        memory_per_byte: of text, the memory that a byte takes as a table, at most about.

    After construction:
        files: the files, in order.
        text: how delimited text is read.
        states: of the files, for `check_unchanged`.
        folders: the columns that the names of the files' folders tell.
        types: of columns of text, by the values that were added to it; None if the format tells
            types itself.
        chunks_done: by file, how many chunks of delimited text are passed over, as an earlier
            reading has parsed them.

    Errors:
        DataError: options of text are given for files that do not take them.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    is_text: ClassVar[bool] = False
    written_suffixes: ClassVar[tuple[str, ...]] = ()
    writing: ClassVar[type[RowsWriting]]
    takes_text_options: ClassVar[bool] = False
    memory_per_byte: ClassVar[int] = 6

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        if text.given and not self.takes_text_options:
            option = next(iter(text.given))
            raise DataError(
                f"`{option}` is for delimited text, but {files[0]} is {self.name}: omit it"
            )
        self.files = files
        self.text = text
        self.states = {path: file_state(path) for path in files if path.is_file()}
        self.folders = FolderColumns(files, text.text_columns)
        self.types: TextTypes | None = None
        self.chunks_done: Mapping[Path, int] = {}

    @classmethod
    def owns(cls, path: Path) -> bool:
        """Whether a file's name is one of this format."""
        suffix, packing = suffix_of(path)
        return suffix in cls.suffixes and (cls.is_text or not packing)

    @classmethod
    def writes(cls, path: Path) -> bool:
        """Whether a file of this name is written in this format."""
        suffix, packing = suffix_of(path)
        return cls.owns(path) and suffix in cls.written_suffixes and packing != ".zst"

    def estimated_bytes(self) -> float:
        """The memory that all rows take, about; of text, at most about."""
        return self.memory_per_byte * sum(map(unpacked_bytes, self.files))

    def probed_bytes(self) -> float:
        """The same by the first rows, if they tell more."""
        return self.estimated_bytes()

    def chunks(self, limits: ChunkLimits, columns: Sequence[str] | None = None) -> Chunks:
        """The rows in chunks with the same columns, all or some, each with its file; delimited text as String columns.

        A file that has changed meanwhile is an error.
        """
        try:
            with_folders = self.folders.typed if self.types is None else self.folders.add
            for path, chunk in self._chunks(limits, columns):
                whole = with_folders(chunk, path)
                yield path, whole if columns is None else whole.select(columns)
        except pl.exceptions.PolarsError:
            check_unchanged(self.states)  # the likely cause
            raise
        check_unchanged(self.states)

    def whole_chunks(self, limits: ChunkLimits) -> Chunks:
        """The same for the first reading: every chunk is to be added to `types`, which warn of a header at the end."""
        yield from self.chunks(limits)
        if self.types is not None and self.text.columns is None:
            remedy = "give its column names (`columns`)"
            if not self.takes_text_options:
                remedy = "write one"
            self.types.warn_of_header(self.files[0], remedy)

    def empty(self) -> pl.DataFrame:
        """The table without its rows: names and types of all columns; text is read once for them."""
        return self.folders.typed(self._empty(), self.files[0])

    def count(self) -> int:
        """The number of rows, from the files' metadata where they have them."""
        return sum(self._rows_by_file().values())

    def place(self, row: int) -> Row | None:
        """The file and the row in it, and if it is text the line, of a row of the table; None if there is none."""
        for path, rows in self._rows_by_file().items():
            if row < rows:
                return Row(row, file=str(path), line=row + 1 if self.is_text else None)
            row -= rows
        return None

    @abstractmethod
    def _chunks(self, limits: ChunkLimits, columns: Sequence[str] | None) -> Chunks:
        """`chunks` of the files' own columns: all of them, or at least those of `columns`."""

    @abstractmethod
    def _empty(self) -> pl.DataFrame:
        """`empty` of the files' own columns."""

    @abstractmethod
    def _rows_by_file(self) -> Mapping[Path, int]:
        """The number of rows of each file, in order."""

    def detected_separator(self) -> str | None:
        """The delimiter of the first file, if neither the options nor the file's name tell it; None for a comma."""
        return None

    def better_separator(self) -> tuple[str, str] | None:
        """A delimiter that divides the first line if the given one does not, and this line; None if there is none."""
        return None


def unpacked_bytes(path: Path) -> int:
    """The bytes of a file after unpacking, about; 0 if it does not exist."""
    size = path.stat().st_size if path.is_file() else 0
    packing = suffix_of(path)[1]
    return size * UNPACKED_PER_PACKED_BYTE if packing else size


def check_columns(path: Path, names: list[str], first: Path, wanted: list[str]) -> None:
    """Check that a file has the columns of the first one, in any order."""
    _check_contains(path, names, first, wanted)
    _check_contains(first, wanted, path, names)


def _check_contains(path: Path, names: list[str], other: Path, other_names: list[str]) -> None:
    """Check that a file has no column that another has not."""
    known = set(other_names)
    extra = [name for name in names if name not in known]
    if extra:
        raise DataError(
            f"the files of a table must have the same columns, but {path} has {extra[0]!r} and {other} has not: "
            "remove or add it, or leave out the file"
        )


def common_type(known: pl.DataType, dtype: pl.DataType) -> pl.DataType | None:
    """The narrowest type that holds the values of two without loss; None if there is none, or none that is mapped."""
    if dtype in (known, pl.Null):
        return known
    if known == pl.Null:
        return dtype
    are_integers = known.is_integer() and dtype.is_integer()
    are_floats = known.is_float() and dtype.is_float()
    if not (are_integers or are_floats):
        return None
    empty = [pl.Series("n", dtype=kind).to_frame() for kind in (known, dtype)]
    wider = pl.concat(empty, how="vertical_relaxed").schema["n"]
    return None if wider in (pl.Int128, pl.UInt128) else wider


def check_unchanged(states: Mapping[Path, FileState]) -> None:
    """Check that files are as they were."""
    for path, state in states.items():
        try:
            is_same = file_state(path) == state
        except OSError:
            is_same = False
        if not is_same:
            raise DataError(
                f"{path} has changed while it was read: start again once its writer is done"
            )
