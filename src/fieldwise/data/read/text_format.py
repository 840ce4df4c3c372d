"""How delimited text is written: its delimiter, which may be detected, its encoding and its columns."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import polars as pl

from fieldwise.data.read.delimited_text import delimited_chunks
from fieldwise.data.read.file_listing import TEXT, suffix_of
from fieldwise.data.read.text_stream import CHUNK_BYTES, ByteSource
from fieldwise.errors import DataError

SEPARATORS = ("\t", ";", "|", ",")
_SEPARATOR_LINE = re.compile(r"""\ufeff?"?sep=([^\w\s"'\\]|\t)"?[\r\n]*""", re.IGNORECASE)
"""A first line that names the delimiter, as Excel reads and writes it: `sep=;`."""

_PROBED_LINES = 1000
_PROBED_RECORDS = 50


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How delimited text is written; see `as_table`.

    Args:
        separator: the delimiter, if it is not to be detected.
        encoding: the encoding.
        columns: the column names, if there is no header line.
        text_columns: columns whose cells are read as they are written (`TextTypes`); None: all.
        done: by file, how many chunks an earlier reading has parsed, which are passed over.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None
    text_columns: Sequence[str] | None = ()
    done: Mapping[Path, int] = field(default_factory=dict)

    def source(self, path: Path) -> ByteSource:
        """The text of a file, without a first line that names the delimiter."""
        first_line = 1 if self._named_separator(path) is None else 2
        return ByteSource(path=path, encoding=self.encoding, first_line=first_line)

    def _named_separator(self, path: Path) -> str | None:
        """The delimiter that the first line of a file names (`sep=;`), or None."""
        whole_file = ByteSource(path=path, encoding=self.encoding)
        first_line = next(whole_file.lines(), b"").decode("utf-8", "replace")
        named = _SEPARATOR_LINE.fullmatch(first_line)
        return None if named is None else named[1]

    def separator_of(self, path: Path) -> str:
        """The delimiter of a file: the given one, else by its first line `sep=;`, the suffix, or the first records.

        It is the one of tab, semicolon, `|` and comma that divides the header and the next records,
        quoted cells respected, into the same number of fields. If none does, it is the one that
        divides the header into most.
        """
        if self.separator:
            return self.separator
        named = self._named_separator(path)
        if named is not None:
            return named
        if TEXT[suffix_of(path)[0]] == "\t":
            return "\t"
        lines = [
            line.decode("utf-8-sig", "replace")
            for line in islice(self.source(path).lines(), _PROBED_LINES)
        ]
        header_widths: dict[str, int] = {}
        for separator in SEPARATORS:
            widths = _record_widths(lines, separator)
            header_widths[separator] = widths[0] if widths else 0
            divides_evenly = len(set(widths)) == 1 and widths[0] > 1
            if divides_evenly and (self.columns is None or widths[0] == len(self.columns)):
                return separator
        return max(reversed(SEPARATORS), key=header_widths.__getitem__)

    def chunks(self, path: Path, size: int = CHUNK_BYTES) -> Iterator[pl.DataFrame]:
        """The rows of a file as `delimited_chunks`; a wrong delimiter and a superfluous `columns` are errors too."""
        separator = self.separator_of(path)
        chunks_done = self.done.get(path, 0)
        chunks = delimited_chunks(
            self.source(path), separator=separator, names=self.columns, size=size, skip=chunks_done
        )
        for number, chunk in enumerate(chunks, chunks_done):
            if number == 0:
                self._check_separator(chunk, path, separator)
                self._check_no_header(chunk, path)
            yield chunk

    def _check_separator(self, first_chunk: pl.DataFrame, path: Path, separator: str) -> None:
        """Refuse a single column with another delimiter in its name, unless the delimiter is given."""
        if self.separator is not None or first_chunk.width != 1:
            return
        name = first_chunk.columns[0]
        for other in SEPARATORS:
            if other in name and other != separator:
                raise DataError(
                    f"{path} was read as one column {name[:60]!r} with delimiter {separator!r}; give "
                    f"separator={other!r}"
                )

    def _check_no_header(self, first_chunk: pl.DataFrame, path: Path) -> None:
        """Refuse column names for a file whose first line has them."""
        if not self.columns or not first_chunk.height:
            return
        if [str(cell) for cell in first_chunk.row(0)] == list(self.columns):
            raise DataError(
                f"columns are for text without a header, but the first line of {path} is one: omit them"
            )


def _record_widths(lines: Sequence[str], separator: str) -> list[int]:
    """The numbers of fields of the first records that are whole."""
    records = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    widths: list[int] = []
    with suppress(csv.Error):  # a field that is too long
        widths.extend(len(record) for record in islice(records, _PROBED_RECORDS) if record)
    last_may_go_on = records.line_num == _PROBED_LINES and len(widths) > 1
    return widths[:-1] if last_may_go_on else widths
