"""A table from a file, a folder or a pattern, in memory where it fits, else in mapped scratch files."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import stream_source
from fieldwise.data.read.found import check_unchanged, file_state, find_files
from fieldwise.data.read.headers import names_among_values, warn_of_names
from fieldwise.data.read.kinds import kind_of
from fieldwise.data.read.libfm import LibfmFields
from fieldwise.data.read.mapped import GATHERED, MappedRows, RowsWriter, arrow_library, map_rows
from fieldwise.data.read.one_file import (
    TextFormat,
    check_first_row,
    check_one_column,
    read_file,
    text_separator,
)
from fieldwise.data.read.pieces import Bounds, binary_pieces, binary_schema, estimated_bytes
from fieldwise.data.read.schemas import check_columns, common_schema
from fieldwise.data.read.text_pieces import delimited_pieces, libfm_pieces
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.read.vectors import VectorLengths, as_lists, has_vectors, position_columns, with_positions
from fieldwise.data.reports import NO_REPORTS, Reports

_FILES = 8  # of the memory; a file's rows are in memory twice while it is written

__all__ = ["file_states", "open_files", "open_table", "raw_pieces"]


def open_table(
    data: str | Path,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    folder: Path | None = None,
    memory: int | None = None,
) -> pl.DataFrame:
    r"""The table of a file, a folder or a pattern: the same as `as_table`, also where it is larger than memory.

    Rows stand in the order of the files' names. A table that takes more than `memory` is written piece by piece to
    Arrow files in `folder` and mapped (see `map_rows`), so that a few pieces of it are in memory at a time.

    Args:
        data: a file, a folder of files, or a pattern such as `logs/*.parquet`; files of one kind (see `as_table`).
        separator: as for `as_table`.
        encoding: as for `as_table`.
        columns: as for `as_table`.
        folder: an empty folder for scratch files, which the caller removes; not used if the table fits in memory.
        memory: bytes that the table may take in memory; None: any number.

    Errors:
        DataError: as `as_table`; no file, files of different kinds, columns or types; a file that changes while it is
            read; a full disk.
        MissingExtraError: the table does not fit in `memory`, and pyarrow is not installed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("b.csv", "a.csv"):
    ...         _ = (Path(place) / name).write_text(f"file,n\n{name[0]},1\n")
    ...     open_table(place).rows()
    [('a', 1), ('b', 1)]
    """
    files = find_files(Path(data))
    text = TextFormat(separator=separator, encoding=encoding, columns=columns)
    if memory is not None and folder is None:
        raise ValueError("open_table needs a folder for scratch files where memory is bounded")
    small = memory is None or sum(estimated_bytes(path) for path in files) <= memory
    if small and len(files) == 1:
        states = file_states(files)
        frame = read_file(files[0], text)
        check_unchanged(states)
        return with_positions(frame)
    return open_files(files, text, Bounds() if small else Bounds.within(memory), folder).frame


def open_files(
    files: Sequence[Path],
    text: TextFormat,
    bounds: Bounds,
    folder: Path | None,
    reports: Reports = NO_REPORTS,
) -> MappedRows:
    """The table of these files of one kind, within bounds; see `open_table`. `reports` is told the rows."""
    states = file_states(files)
    reports.begin("reading rows")
    types = TextTypes() if kind_of(files[0]) == "delimited text" else None
    rows, lengths, names = _Rows(folder, bounds, "rows"), VectorLengths(), dict[str, Path]()
    for path, piece in raw_pieces(files, text, bounds):
        reports.add(piece.height)
        bounds.check(piece, path)
        lengths.add(piece)
        if types is None:
            rows.add(as_lists(piece))
        else:
            names |= {name: path for name in names_among_values(piece) if name not in names}
            rows.add(types.add(piece))
    if types is not None and rows.differ:  # a later value has changed a type
        reports.begin("reading rows again", rows.read)
        rows.remove()
        rows = _Rows(folder, bounds, "typed")
        for _, piece in raw_pieces(files, text, bounds):
            reports.add(piece.height)
            rows.add(types.typed(piece))
    check_unchanged(states)
    found = rows.finish()
    if types is not None and text.columns is None:
        warn_of_names(found.frame.clear(), files[0], names)
    schema = found.frame.schema
    return rows.with_columns(found, position_columns(schema, lengths.common)) if has_vectors(schema) else found


def raw_pieces(
    files: Sequence[Path], text: TextFormat, bounds: Bounds, columns: Sequence[str] | None = None
) -> Iterator[tuple[Path, pl.DataFrame]]:
    """The rows of files of one kind in pieces with the same columns, each with its file; text as String columns.

    Args:
        files: the files.
        text: how delimited text is written.
        bounds: the size of pieces.
        columns: the columns to read of Parquet and Arrow files; None means all.

    Errors:
        DataError: as `open_table`.
    """
    for path in files:
        text.check_applies(path)
    kind = kind_of(files[0])
    if kind == "delimited text":
        yield from _text_pieces(files, text, bounds)
    elif kind == "libFM":
        fields = LibfmFields()
        for path in files:
            for piece in libfm_pieces(path, bounds.piece_bytes):
                fields.add(piece)
        for path in files:
            yield from ((path, fields.table(piece)) for piece in libfm_pieces(path, bounds.piece_bytes))
    else:
        schema = common_schema({path: binary_schema(path) for path in files})
        schema = schema if columns is None else pl.Schema({name: schema[name] for name in columns})
        for path in files:
            pieces = binary_pieces(path, bounds, schema.names()) if bounds.bounded else iter([read_file(path, text)])
            for piece in pieces:
                yield path, piece if piece.schema == schema else piece.select(schema.names()).cast(schema)


def _text_pieces(files: Sequence[Path], text: TextFormat, bounds: Bounds) -> Iterator[tuple[Path, pl.DataFrame]]:
    wanted: list[str] | None = None
    for path in files:
        source = stream_source(path, text.encoding)
        separator = text.separator or text_separator(path, source, text.columns)
        first = True
        for piece in delimited_pieces(source, separator=separator, names=text.columns, size=bounds.piece_bytes):
            if first:
                wanted = wanted or piece.columns
                if text.separator is None:
                    check_one_column(path, piece.columns, separator)
                check_columns(path, piece.columns, files[0], wanted)
                if text.columns is not None:
                    check_first_row(path, piece, text.columns)
            first = False
            yield path, piece.select(wanted)


class _Rows:
    """Rows that are held in memory while they fit, else written to a folder."""

    def __init__(self, folder: Path | None, bounds: Bounds, name: str) -> None:
        self._folder, self._bounds, self._name = folder, bounds, name
        self._held: list[pl.DataFrame] = []
        self._size, self.read = 0, 0
        self._empty: pl.DataFrame | None = None
        self._writer: RowsWriter | None = None
        self._schemas: list[pl.Schema] = []

    def add(self, piece: pl.DataFrame) -> None:
        if self._empty is None:
            self._empty = piece.clear()
        self.read += piece.height
        if not piece.height:
            return
        if piece.schema not in self._schemas:
            self._schemas.append(piece.schema)
        if self.differ:  # all will be read again
            self._held = []
        elif self._writer is not None:
            self._writer.add(piece)
        else:
            self._held.append(piece)
            self._size += int(piece.estimated_size())
            if self._size > self._bounds.memory / 2:  # they will be copied into one
                self._spill()

    def _spill(self) -> None:
        assert self._folder is not None
        arrow_library()
        gather = max(self._bounds.piece_bytes, min(GATHERED, int(self._bounds.memory // _FILES)))
        self._writer = RowsWriter(self._folder / self._name, gather=gather)
        for piece in self._held:
            self._writer.add(piece)
        self._held = []

    @property
    def differ(self) -> bool:
        """Whether the pieces have different types."""
        return len(self._schemas) > 1

    def remove(self) -> None:
        """Remove what has been written."""
        if self._folder is not None:
            shutil.rmtree(self._folder / self._name, ignore_errors=True)

    def finish(self) -> MappedRows:
        assert self._empty is not None
        if self._writer is not None:
            return MappedRows.of(self._writer.finish())
        return MappedRows(frame=pl.concat(self._held, rechunk=True) if self._held else self._empty)

    def with_columns(self, found: MappedRows, made: Mapping[str, pl.Expr]) -> MappedRows:
        """The finished table with more columns, which are mapped if it is."""
        if not made:
            return found
        if self._writer is None or self._folder is None:
            return MappedRows(frame=found.frame.with_columns(made.values()))
        writer = RowsWriter(self._folder / "positions", gather=0)  # a chunk for every chunk of the table
        for path in self._writer.paths:
            writer.add(map_rows([path]).select(made.values()))
        return MappedRows(frame=found.frame.hstack(map_rows(writer.finish())))


def file_states(files: Sequence[Path]) -> dict[Path, tuple[int, int, int]]:
    """The state of each file that exists, for `check_unchanged`."""
    return {path: file_state(path) for path in files if path.is_file()}
