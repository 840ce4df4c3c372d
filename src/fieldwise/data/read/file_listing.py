"""The files of a table, their kinds by name: one file, those in a folder, or those that a pattern matches."""

import glob
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from fieldwise.errors import DataError

Kind = Literal["delimited text", "libFM", "Parquet", "Arrow IPC"]

TEXT = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": None}
"""Suffixes of delimited text with the delimiter that is written; tables are not written as `.txt`."""

LIBFM = (".libfm", ".libsvm", ".svm")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
KINDS = "csv, tsv, tab, txt, libfm, libsvm and svm (each also .gz and .zst), parquet, arrow, feather, ipc"
"""The suffixes that are read, as errors list them."""


def suffix_of(path: Path) -> tuple[str, str]:
    """A name's suffix in lower case without the packing's, and the packing: `.gz`, `.zst` or empty.

    >>> suffix_of(Path("clicks.CSV.gz"))
    ('.csv', '.gz')
    """
    suffix = path.suffix.lower()
    if suffix in (".gz", ".zst"):
        return Path(path.stem).suffix.lower(), suffix
    return suffix, ""


def kind_of(path: Path) -> Kind | None:
    """The kind of a table file, or None if its name is no such file's.

    >>> kind_of(Path("clicks.csv.zst")), kind_of(Path("clicks.parquet.gz"))
    ('delimited text', None)
    """
    suffix, packing = suffix_of(path)
    if suffix in TEXT:
        return "delimited text"
    if suffix in LIBFM:
        return "libFM"
    if packing:
        return None
    if suffix in PARQUET:
        return "Parquet"
    if suffix in ARROW:
        return "Arrow IPC"
    return None


def is_many(data: Path) -> bool:
    """Whether a path is a folder or a pattern such as `logs/*.parquet`; a file of that very name comes first."""
    return not data.is_file() and (data.is_dir() or glob.has_magic(str(data)))


def find_files(data: Path) -> list[Path]:
    """The files of a table in the order of their names: the file itself, or the files in a folder or of a pattern.

    In a folder, names that begin with a dot or an underscore are passed over (such as Spark's
    `_SUCCESS`); folders in it are part of the table if all are named `column=value`, as Hive's (see
    `folder_values`). `**` in a pattern stands for any folders. A single file need not exist:
    reading it says so.

    Errors:
        DataError: no file, files of different kinds, or a folder with folders in it.
    """
    if not is_many(data):
        return [data]
    if data.is_dir():
        return _of_one_kind(_files_in(data))
    matches = [Path(name) for name in glob.glob(str(data), recursive=True)]
    files = sorted((path for path in matches if path.is_file()), key=str)
    if not files:
        raise DataError(
            f"no file matches the pattern {data}; check it, and quote it on the command line"
        )
    return _of_one_kind(files)


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder, or of the folders `column=value` in it."""
    entries = [path for path in folder.iterdir() if not path.name.startswith((".", "_"))]
    subfolders = sorted(path for path in entries if path.is_dir())
    has_folders_alone = len(subfolders) == len(entries)
    if subfolders and has_folders_alone and all("=" in path.name for path in subfolders):
        files = []
        for subfolder in subfolders:
            files += find_files(subfolder)
        return files
    if subfolders:
        suffixes = (
            "".join(path.suffixes) for path in subfolders[0].rglob("[!._]*.*") if path.is_file()
        )
        raise DataError(
            f"a table's folder must hold files alone, but {subfolders[0]} is a folder: give a pattern such as "
            f"'{folder}/**/*{next(suffixes, '.parquet')}'"
        )
    if not entries:
        raise DataError(f"the folder {folder} holds no file to read; check the path")
    return sorted(entries, key=str)


_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def folder_values(path: Path) -> dict[str, str | None]:
    """The columns that the folders of a file tell, as Hive and Spark write tables: `day=2026-01-31/part-0.parquet`.

    They are the folders named `column=value` directly above the file, which may stand below each
    other.

    >>> folder_values(Path("logs/day=2026-01-31/hour=7/part-0.parquet"))
    {'day': '2026-01-31', 'hour': '7'}
    """
    values: dict[str, str | None] = {}
    for folder in path.absolute().parents:
        column, equals, value = folder.name.partition("=")
        if not (column and equals):
            break
        values[unquote(column)] = None if value == _NULL_FOLDER else unquote(value)
    return dict(reversed(values.items()))


def _of_one_kind(files: list[Path]) -> list[Path]:
    """The files, if they are tables of one kind."""
    first = kind_of(files[0])
    for path in files:
        kind = kind_of(path)
        if kind is None and all(other.suffix == ".toml" for other in files):
            raise DataError(
                f"{path.parent} holds TOML files, recipes or schemas, and no table: give the table's file or folder"
            )
        if kind is None:
            raise DataError(
                f"the files of a table must be one of {KINDS}, found {path}: remove it, or give a pattern such as "
                f"'{path.parent}/*.parquet'"
            )
        if kind != first:
            raise DataError(
                f"the files of a table must be of one kind, found {files[0]} ({first}) and {path} ({kind}): give a "
                f"pattern such as '{path.parent}/*{path.suffix}'"
            )
    return files


def file_state(path: Path) -> tuple[int, int, int]:
    """Size, modification time and inode of a file, which tell cheaply whether its content has changed.

    The time of the last change of its entry (ctime) is another one after a new hard link or other
    permissions.
    """
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def check_unchanged(states: Mapping[Path, tuple[int, int, int]]) -> None:
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
