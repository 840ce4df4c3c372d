"""Tables that are read in slices, a few of which are in memory at a time."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from fieldwise.data.read.found import check_unchanged, find_files
from fieldwise.data.read.headers import names_among_values, warn_of_names
from fieldwise.data.read.kinds import kind_of
from fieldwise.data.read.one_file import TextFormat
from fieldwise.data.read.pieces import Bounds, binary_schema, count_rows, estimated_bytes
from fieldwise.data.read.schemas import common_schema
from fieldwise.data.read.source import file_states, open_table, raw_pieces
from fieldwise.data.read.text_types import TextTypes
from fieldwise.data.read.vectors import VectorLengths, as_lists, has_vectors, is_position, position_columns
from fieldwise.errors import DataError

__all__ = ["SlicedTable"]

_WHOLE = 1 << 28  # bytes of text that are read at once
_PROBE = 100  # rows


class SlicedTable:
    """A table of one file or several that is read in slices, in order.

    Of Parquet and Arrow files only the requested columns are read. Text of more than about 256 MiB is read twice: all
    of a column's values determine its type.

    Args:
        path: a file, a folder or a pattern, as for `as_table`.
        separator: delimiter of text.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header.

    After construction:
        path: see the arguments.
        files: the files, in order.
        empty: the table without its rows: names and types of all columns.

    Errors:
        DataError: as `as_table`.
    """

    def __init__(
        self,
        path: Path,
        *,
        separator: str | None = None,
        encoding: str = "utf-8",
        columns: Sequence[str] | None = None,
    ) -> None:
        self.path, self.files = path, find_files(path)
        self._text = TextFormat(separator=separator, encoding=encoding, columns=columns)
        self._rows: pl.DataFrame | None = None
        self._types: TextTypes | None = None
        self._counted: int | None = None
        self._lengths: dict[str, int] = {}
        self._text.check_applies(self.files[0])
        kind = kind_of(self.files[0])
        binary = kind in ("Parquet", "Arrow IPC")
        if not binary and sum(estimated_bytes(file) for file in self.files) <= _WHOLE:
            self._rows = open_table(path, separator=separator, encoding=encoding, columns=columns)
            self.empty = self._rows.clear()
            return
        self._states = file_states(self.files)
        if binary:
            schema = common_schema({file: binary_schema(file) for file in self.files})
            self._lengths = self._probed(schema)
            self.empty = self._with_positions(schema.to_frame(), {})
        elif kind == "libFM":
            self.empty = next(iter(raw_pieces(self.files, self._text, _bounds(1))))[1].clear()
        else:
            self._types, self.empty = self._read_types()

    def count(self) -> int:
        """Number of rows, from the files' metadata where they have them.

        Errors:
            DataError: a file is damaged.
        """
        if self._rows is not None:
            return self._rows.height
        return sum(map(count_rows, self.files)) if self._counted is None else self._counted

    def slices(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """All rows with these columns, in slices of at most `rows` rows.

        Errors:
            DataError: a file is truncated, or has changed.
        """
        if self._rows is not None:
            yield from (self._rows.select(columns).iter_slices(rows) if self._rows.height else ())
            return
        made = {name: vector for name in columns if (vector := is_position(name, self._lengths)) is not None}
        needed = list(dict.fromkeys(made.get(name, name) for name in columns))
        try:
            for path, piece in raw_pieces(self.files, self._text, _bounds(rows), needed):
                if self._types is not None:
                    piece = self._types.typed(piece.select(needed))
                self._check_lengths(piece, path, set(made.values()))
                yield from self._with_positions(piece, made).select(columns).iter_slices(rows)
        except pl.exceptions.PolarsError:
            check_unchanged(self._states)  # the likely cause
            raise
        check_unchanged(self._states)

    def _read_types(self) -> tuple[TextTypes, pl.DataFrame]:
        """The types that all values decide, and the table without its rows."""
        types, names, empty = TextTypes(), dict[str, Path](), pl.DataFrame()
        self._counted = 0
        for path, piece in raw_pieces(self.files, self._text, _bounds(1 << 20)):
            types.add(piece)
            self._counted += piece.height
            names |= {name: path for name in names_among_values(piece) if name not in names}
            empty = piece.clear()
        check_unchanged(self._states)
        empty = types.typed(empty)
        if self._text.columns is None:
            warn_of_names(empty, self.files[0], names)
        return types, empty

    def _probed(self, schema: pl.Schema) -> dict[str, int]:
        """The lengths of vectors, found from the first rows."""
        nested = [name for name, kind in schema.items() if isinstance(kind, (pl.List, pl.Array))]
        lengths = VectorLengths()
        if nested and has_vectors(schema):
            for _, piece in raw_pieces(self.files, self._text, _bounds(_PROBE), nested):
                lengths.add(piece.head(_PROBE))
                if piece.height:
                    break
        return lengths.common

    def _check_lengths(self, piece: pl.DataFrame, path: Path, vectors: set[str]) -> None:
        for name in vectors:
            lengths = VectorLengths()
            lengths.add(piece.select(name))
            found = lengths.common.get(name)
            if found != self._lengths[name] and piece.get_column(name).null_count() < piece.height:
                raise DataError(
                    f"vectors must have one length: column {name!r} begins with {self._lengths[name]} numbers a cell, "
                    f"and {path} has cells with another number; correct them"
                )

    def _with_positions(self, piece: pl.DataFrame, made: dict[str, str]) -> pl.DataFrame:
        """The rows with the wanted positions of vectors, or with all of them for a table without rows."""
        lengths = {name: n for name, n in self._lengths.items() if name in (made.values() if made else piece.columns)}
        found = position_columns(piece.schema, lengths)
        wanted = [column for name, column in found.items() if name in made or not piece.height]
        return as_lists(piece.with_columns(wanted))


def _bounds(rows: int) -> Bounds:
    return Bounds(memory=sys.maxsize, piece_rows=rows)
