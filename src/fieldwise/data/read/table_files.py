"""The files of a table in chunks of rows with the same columns, those that their folders tell included."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from fieldwise.data.read import arrow_files, file_listing
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.file_listing import KINDS, kind_of
from fieldwise.data.read.libfm import LibfmFields, libfm_chunks
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_types import TextTypes
from fieldwise.errors import DataError


class FolderColumns:
    """The columns that the names of files' folders tell (see `folder_values`), as they are added to the files' rows.

    A column that a file has itself stays as it is. Values of `text_columns` (None: all) stay as
    they are written.

    Errors:
        DataError: the folders of two files have other columns.
    """

    def __init__(self, files: Sequence[Path], text_columns: Sequence[str] | None = ()) -> None:
        self._values = {path: file_listing.folder_values(path) for path in files}
        first = files[0]
        names = list(self._values[first])
        for path, values in self._values.items():
            if list(values) != names:
                raise DataError(
                    f"the folders of a table must tell the same columns, but those of {first} are "
                    f"{', '.join(names) or 'none'} and those of {path} {', '.join(values) or 'none'}: move the files"
                )
        self._types = TextTypes(text_columns)
        if names:
            rows = pl.DataFrame(
                list(self._values.values()), schema=dict.fromkeys(names, pl.String), orient="row"
            )
            self._types.add(rows)

    def add(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The rows of a file with these columns, as text."""
        columns = chunk.columns
        missing = {name: value for name, value in self._values[path].items() if name not in columns}
        if not missing:
            return chunk
        return chunk.with_columns(
            pl.lit(value, dtype=pl.String).alias(name) for name, value in missing.items()
        )

    def typed(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The same with the types that hold the values of all files: see `TextTypes`."""
        folder_columns = self.add(chunk, path).drop(chunk.columns)
        return chunk.hstack(self._types.typed(folder_columns))


class TableFiles:
    """Files of one kind that are read in chunks.

    After construction:
        text: how delimited text is read, its delimiter known; None for other kinds of files.
        states: of the files, for `check_unchanged`.
        types: of columns of text, by the values that were added to it; None if the files are no
            delimited text.
        folders: the columns that the names of the files' folders tell.
    """

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        self._files = files
        self.text = text
        for path in files:
            is_text = file_listing.suffix_of(path)[0] in file_listing.TEXT
            if text.columns is not None and not is_text:
                raise DataError(
                    f"columns are for delimited text without a header, but {path} has its own column names: omit them"
                )
        self.states = {path: file_listing.file_state(path) for path in files if path.is_file()}
        self.folders = FolderColumns(files, text.text_columns)
        self._kind = kind_of(files[0])
        self.types: TextTypes | None = None
        if self._kind == "delimited text":
            self.types = TextTypes(text.text_columns)

    def chunks(
        self, limits: ChunkLimits, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows in chunks with the same columns, each with its file; text as String columns.

        Of Parquet and Arrow files only `columns` are read. A file that has changed meanwhile is an
        error.
        """
        try:
            if self._kind == "delimited text":
                yield from self._text_chunks(limits)
            elif self._kind == "libFM":
                yield from self._libfm_chunks(limits)
            else:
                yield from self._binary_chunks(limits, columns)
        except pl.exceptions.PolarsError:
            file_listing.check_unchanged(self.states)  # the likely cause
            raise
        file_listing.check_unchanged(self.states)

    def whole_chunks(self, limits: ChunkLimits) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The same for the first reading: every chunk is to be added to `types`, which warn of a header at the end."""
        yield from self.chunks(limits)
        if self.types is not None and self.text.columns is None:
            self.types.warn_of_header(self._files[0])

    def _text_chunks(self, limits: ChunkLimits) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows of delimited text, with the columns of the first file in its order."""
        first_file = self._files[0]
        columns: list[str] = []
        if self.text.done:  # the chunks that have the columns may be passed over
            whole_text = replace(self.text, done={})
            columns = next(whole_text.chunks(first_file, limits.chunk_bytes)).columns
        for path in self._files:
            for number, chunk in enumerate(self.text.chunks(path, limits.chunk_bytes)):
                names = chunk.columns
                columns = columns or names
                if number == 0 and path != first_file:
                    arrow_files.check_columns(path, names, first_file, columns)
                in_order = chunk if names == columns else chunk.select(columns)
                yield path, self.folders.add(in_order, path)

    def _libfm_chunks(self, limits: ChunkLimits) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows of libFM files, with a column per field if all rows have fields.

        All rows decide it: within bounds they are read twice, else held in memory.
        """
        chunks: Iterable[tuple[Path, pl.DataFrame]] = self._raw_libfm_chunks(limits)
        if not limits.bounded:
            chunks = list(chunks)
        fields = LibfmFields()
        for _, chunk in chunks:
            fields.add(chunk)
        if limits.bounded:
            chunks = self._raw_libfm_chunks(limits)
        for path, chunk in chunks:
            yield path, fields.table(chunk)

    def _raw_libfm_chunks(self, limits: ChunkLimits) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows of libFM files as lists of ids and values."""
        for path in self._files:
            for chunk in libfm_chunks(path, limits.chunk_bytes):
                yield path, chunk

    def _binary_chunks(
        self, limits: ChunkLimits, columns: Sequence[str] | None
    ) -> Iterator[tuple[Path, pl.DataFrame]]:
        """The rows of Parquet or Arrow files, all or some columns, with types that hold the values of all files."""
        check_kind(self._files[0])
        schema = arrow_files.common_schema(
            {path: arrow_files.binary_schema(path) for path in self._files}
        )
        read_schema = dict(schema)
        if columns is not None:
            read_schema = {name: dtype for name, dtype in schema.items() if name in columns}
        if not read_schema:
            # All columns are told by folders: one of the files' tells how many rows they have.
            read_schema = dict(list(schema.items())[:1])
        for path in self._files:
            for chunk in arrow_files.binary_chunks(path, limits, list(read_schema)):
                if chunk.schema != read_schema:
                    chunk = chunk.cast(pl.Schema(read_schema))
                whole = self.folders.typed(chunk, path)
                yield path, whole if columns is None else whole.select(columns)


def check_kind(path: Path) -> None:
    """Refuse a file whose name is no table file's."""
    if kind_of(path) is None:
        raise DataError(
            f"a table file must be one of {KINDS}, found the name {path.name!r}; convert or rename it"
        )
