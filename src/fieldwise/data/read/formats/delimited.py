"""Delimited text, such as CSV and TSV: its delimiter, which may be detected, and its columns."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

import polars as pl

from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.delimited_text import delimited_chunks
from fieldwise.data.read.formats.table_files import (
    Chunks,
    RowsWriting,
    TableFiles,
    check_columns,
    unpacked_bytes,
)
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import ByteSource, suffix_of
from fieldwise.data.read.text_types import TextTypes
from fieldwise.errors import Argument, DataError, Row

_SEPARATORS = ("\t", ";", "|", ",")
_SEPARATOR_BY_SUFFIX = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
"""Of the files that are written."""
_SEPARATOR_LINE = re.compile(r"""\ufeff?"?sep=([^\w\s"'\\]|\t)"?[\r\n]*""", re.IGNORECASE)
"""A first line that names the delimiter, as Excel reads and writes it: `sep=;`."""

_PROBED_LINES = 1000
_PROBED_RECORDS = 50
_PROBED_BYTES = 1 << 20
"""Of a text, to learn how much memory its rows take."""
_FORMULA = r"^[=+@\t\r\-]"
_SIGNED_NUMBER = r"^[+-][0-9.]+([eE][-+]?[0-9]+)?$"


class DelimitedWriting(RowsWriting):
    """Writes delimited text, with a header before the first rows."""

    def __init__(self, path: Path, folder: Path, *, raw: bool) -> None:
        super().__init__(path, folder, raw=raw)
        self._separator = _SEPARATOR_BY_SUFFIX[suffix_of(path)[0]]
        self._has_header = False

    def add(self, frame: pl.DataFrame, file: IO[bytes]) -> None:
        for name, dtype in frame.schema.items():
            if dtype.is_nested():
                raise DataError(
                    f"delimited text holds one value per cell, but column {name!r} holds {dtype}; write "
                    f"{self.path.name} as parquet, or join the column's values into text"
                )
            if not self.raw and dtype in (pl.String, pl.Categorical, pl.Enum):
                frame = self._without_formulas(frame, name)
        frame.write_csv(file, separator=self._separator, include_header=not self._has_header)
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


class DelimitedFiles(TableFiles):
    """Files of delimited text, whose cells are text: all values of a column decide its type."""

    name = "delimited text"
    suffixes = (*_SEPARATOR_BY_SUFFIX, ".txt")
    written_suffixes = tuple(_SEPARATOR_BY_SUFFIX)
    writing = DelimitedWriting
    is_text = True
    takes_text_options = True
    types: TextTypes

    def __init__(self, files: Sequence[Path], text: TextFormat) -> None:
        super().__init__(files, text)
        self.types = TextTypes(text.text_columns)
        self._typed_empty: pl.DataFrame | None = None
        self._row_counts = dict.fromkeys(files, 0)

    def probed_bytes(self) -> float:
        text_bytes = sum(map(unpacked_bytes, self.files))
        limits = ChunkLimits(memory=text_bytes, chunk_bytes=_PROBED_BYTES)
        _, chunk = next(self.chunks(limits), (None, pl.DataFrame()))
        letters = sum(int(column.str.len_bytes().sum()) for column in chunk.iter_columns())
        separators = chunk.height * chunk.width
        probed_bytes = letters + separators
        if probed_bytes == 0:
            return 0.0
        typed_bytes = TextTypes(self.text.text_columns).add(chunk).estimated_size()
        return min(self.estimated_bytes(), typed_bytes / probed_bytes * text_bytes)

    def _chunks(self, limits: ChunkLimits, columns: Sequence[str] | None) -> Chunks:
        """The rows with the columns of the first file in its order."""
        first_file = self.files[0]
        names: list[str] = []
        if self.chunks_done:  # the chunk that has the names may be passed over
            names = next(self._file_chunks(first_file, limits.chunk_bytes, 0)).columns
        for path in self.files:
            chunks_done = self.chunks_done.get(path, 0)
            for chunk in self._file_chunks(path, limits.chunk_bytes, chunks_done):
                names = names or chunk.columns
                if chunk.columns != names:
                    check_columns(path, chunk.columns, first_file, names)
                    chunk = chunk.select(names)
                yield path, chunk

    def _file_chunks(self, path: Path, size: int, chunks_done: int) -> Iterator[pl.DataFrame]:
        """The rows of a file behind some chunks; a wrong delimiter and superfluous names of columns are errors too."""
        separator = self.separator_of(path)
        chunks = delimited_chunks(
            self.source(path),
            separator=separator,
            names=self.text.columns,
            size=size,
            skip=chunks_done,
        )
        for number, chunk in enumerate(chunks, chunks_done):
            if number == 0:
                self._check_separator(chunk, path, separator)
                self._check_no_header(chunk, path)
            yield chunk

    def _check_separator(self, first_chunk: pl.DataFrame, path: Path, separator: str) -> None:
        """Refuse a single column with another delimiter in its name, unless the delimiter is given."""
        if self.text.separator is not None or first_chunk.width != 1:
            return
        name = first_chunk.columns[0]
        for other in _SEPARATORS:
            if other in name and other != separator:
                raise DataError(
                    f"{path} was read as one column {name[:60]!r} with delimiter {separator!r}; give ",
                    Argument("separator", other),
                )

    def _check_no_header(self, first_chunk: pl.DataFrame, path: Path) -> None:
        """Refuse column names for a file whose first line has them."""
        if not self.text.columns or not first_chunk.height:
            return
        if [str(cell) for cell in first_chunk.row(0)] == list(self.text.columns):
            raise DataError(
                f"columns are for text without a header, but the first line of {path} is one: omit them"
            )

    def _empty(self) -> pl.DataFrame:
        if self._typed_empty is None:
            for path, chunk in self.whole_chunks(ChunkLimits()):
                self._row_counts[path] += chunk.height
                self._typed_empty = self.types.add(chunk, path).clear()
        assert self._typed_empty is not None, "text has a chunk, be it empty"
        return self._typed_empty

    def _rows_by_file(self) -> Mapping[Path, int]:
        self._empty()
        return self._row_counts

    def place(self, row: int) -> Row | None:
        for path in self.files:
            line, rows = self._line_of(row, path)
            if line is not None:
                return Row(row, file=str(path), line=line)
            row -= rows
        return None

    def _line_of(self, row: int, file: Path) -> tuple[int | None, int]:
        """The line at which a row of a file begins, or None if it has fewer rows; and the rows before it."""
        source = self.source(file)
        lines = (line.decode("utf-8-sig", "replace") for line in source.lines())
        records = csv.reader(lines, delimiter=self.separator_of(file), skipinitialspace=True)
        line = source.first_line
        width = 0
        rows = 0
        is_header = self.text.columns is None
        for record in records:
            width = width or len(record)
            # Blank lines at the start and end are no rows, but in a single column.
            if record or width == 1:
                if rows == row and not is_header:
                    return line, rows
                if not is_header:
                    rows += 1
                is_header = False
            # Quoted line ends are counted, so that an editor finds the place.
            line = source.first_line + records.line_num
        return None, rows

    def source(self, path: Path) -> ByteSource:
        """The text of a file, without a first line that names the delimiter."""
        first_line = 1 if self._named_separator(path) is None else 2
        return ByteSource(path=path, encoding=self.text.encoding, first_line=first_line)

    def _named_separator(self, path: Path) -> str | None:
        """The delimiter that the first line of a file names (`sep=;`), or None."""
        whole_file = ByteSource(path=path, encoding=self.text.encoding)
        first_line = next(whole_file.lines(), b"").decode("utf-8", "replace")
        named = _SEPARATOR_LINE.fullmatch(first_line)
        return None if named is None else named[1]

    def separator_of(self, path: Path) -> str:
        """The delimiter of a file: the given one, or the one that is detected."""
        return self.text.separator or self._detected(path)

    def _detected(self, path: Path) -> str:
        """The delimiter of a file by its first line `sep=;`, its suffix, or its first records.

        It is the one of tab, semicolon, `|` and comma that divides the header and the next records,
        quoted cells respected, into the same number of fields. If none does, it is the one that
        divides the header into most.
        """
        named = self._named_separator(path)
        if named is not None:
            return named
        if _tells_tab(path):
            return "\t"
        lines = [
            line.decode("utf-8-sig", "replace")
            for line in islice(self.source(path).lines(), _PROBED_LINES)
        ]
        header_widths: dict[str, int] = {}
        for separator in _SEPARATORS:
            widths = _record_widths(lines, separator)
            header_widths[separator] = widths[0] if widths else 0
            divides_evenly = len(set(widths)) == 1 and widths[0] > 1
            columns = self.text.columns
            if divides_evenly and (columns is None or widths[0] == len(columns)):
                return separator
        return max(reversed(_SEPARATORS), key=header_widths.__getitem__)

    def detected_separator(self) -> str | None:
        if self.text.separator or _tells_tab(self.files[0]):
            return None
        separator = self._detected(self.files[0])
        return None if separator == "," else separator

    def better_separator(self) -> tuple[str, str] | None:
        given = self.text.separator
        if given is None or self.text.columns is not None:
            return None
        lines = self.source(self.files[0]).lines()
        header = next((line for line in lines if line.strip()), b"").decode("utf-8-sig", "replace")
        detected = self._detected(self.files[0])
        if given in header or detected not in header:
            return None
        return detected, header


def _tells_tab(path: Path) -> bool:
    """Whether a file's suffix tells that a tab is the delimiter."""
    return _SEPARATOR_BY_SUFFIX.get(suffix_of(path)[0]) == "\t"


def _record_widths(lines: Sequence[str], separator: str) -> list[int]:
    """The numbers of fields of the first records that are whole."""
    records = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    widths: list[int] = []
    with suppress(csv.Error):  # a field that is too long
        widths.extend(len(record) for record in islice(records, _PROBED_RECORDS) if record)
    last_may_go_on = records.line_num == _PROBED_LINES and len(widths) > 1
    return widths[:-1] if last_may_go_on else widths
