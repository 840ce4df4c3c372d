"""The formats of table files: one class each, registered here."""

from collections.abc import Sequence
from pathlib import Path

from fieldwise.data.read.formats.arrow_ipc import ArrowIpcFiles
from fieldwise.data.read.formats.delimited import DelimitedFiles
from fieldwise.data.read.formats.json_lines import JsonLinesFiles
from fieldwise.data.read.formats.libfm import LibfmFiles
from fieldwise.data.read.formats.parquet import ParquetFiles
from fieldwise.data.read.formats.table_files import TableFiles
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.text_stream import suffix_of
from fieldwise.errors import DataError

FORMATS: tuple[type[TableFiles], ...] = (
    DelimitedFiles,
    LibfmFiles,
    JsonLinesFiles,
    ParquetFiles,
    ArrowIpcFiles,
)


def _listed(file_format: type[TableFiles], suffixes: Sequence[str], packings: str) -> str:
    """The suffixes of a format as errors list them."""
    names = ", ".join(suffix[1:] for suffix in suffixes)
    return f"{names} (also {packings})" if file_format.is_text else names


READ_SUFFIXES = ", ".join(_listed(files, files.suffixes, ".gz, .zst") for files in FORMATS)
_WRITTEN_SUFFIXES = ", ".join(
    _listed(files, files.written_suffixes, ".gz") for files in FORMATS if files.written_suffixes
)


def format_of(path: Path) -> type[TableFiles] | None:
    """The format of a table file by its name, or None if that is no table file's.

    >>> format_of(Path("clicks.csv.zst")), format_of(Path("clicks.parquet.gz"))
    (<class 'fieldwise.data.read.formats.delimited.DelimitedFiles'>, None)
    """
    return next((files for files in FORMATS if files.owns(path)), None)


def stem_of(path: Path) -> str:
    """A file's name without the suffixes of its format and packing; whole if it is no table file's.

    >>> stem_of(Path("logs/clicks.csv.gz")), stem_of(Path("clicks.2026"))
    ('clicks', 'clicks.2026')
    """
    if format_of(path) is None:
        return path.name
    suffix, packing = suffix_of(path)
    return path.name[: -len(suffix + packing)]


def table_files_of(files: Sequence[Path], text: TextFormat | None = None) -> TableFiles:
    """The files of a table, which are of one format (see `find_files`).

    Errors:
        DataError: the name of the first is no table file's.
    """
    file_format = format_of(files[0])
    if file_format is None:
        raise DataError(
            f"a table file must be one of {READ_SUFFIXES}, found the name {files[0].name!r}; convert or rename it"
        )
    return file_format(files, text or TextFormat())


def format_written(path: Path) -> type[TableFiles]:
    """The format in which a file of this name is written; a DataError if there is none."""
    for file_format in FORMATS:
        if file_format.writes(path):
            return file_format
    raise DataError(
        f"a table is written as one of {_WRITTEN_SUFFIXES}, found the name {path.name!r}; change its suffix"
    )
