"""The files of a table: one file, those in a folder, or those that a pattern matches."""

import glob
from pathlib import Path

from fieldwise.data.read.formats import READ_SUFFIXES, format_of
from fieldwise.errors import DataError


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


def _of_one_kind(files: list[Path]) -> list[Path]:
    """The files, if they are tables of one format."""
    first = format_of(files[0])
    for path in files:
        file_format = format_of(path)
        if file_format is None and all(other.suffix == ".toml" for other in files):
            raise DataError(
                f"{path.parent} holds TOML files, recipes or schemas, and no table: give the table's file or folder"
            )
        if first is None or file_format is None:
            raise DataError(
                f"the files of a table must be one of {READ_SUFFIXES}, found {path}: remove it, or give a pattern such "
                f"as '{path.parent}/*.parquet'"
            )
        if file_format is not first:
            raise DataError(
                f"the files of a table must be of one kind, found {files[0]} ({first.name}) and {path} "
                f"({file_format.name}): give a pattern such as '{path.parent}/*{path.suffix}'"
            )
    return files
