"""Definition of public data sets: source, licence terms and reader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import read_content
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = [
    "AbsentFileError",
    "Member",
    "PublicSet",
    "RemoteFile",
    "check_content",
    "check_described",
    "find",
    "need",
    "read_checked",
]


class AbsentFileError(DataError):
    """A file of a public set is not in its folder; `PublicSet.read` adds how to get it."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file to unpack from a zip archive.

    Args:
        path: its name inside the archive.
        name: its path below the set's folder.
        checksum: checksum of its bytes, if known.
    """

    path: str
    name: str
    checksum: Checksum | None = None


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file at its official source.

    Args:
        url: its address.
        name: its path below the set's folder.
        bytes: its size, if known.
        checksum: checksum of its bytes, if known.
        unpack: members to unpack from a zip archive, which itself is not kept.
    """

    url: str
    name: str
    bytes: int | None = None
    checksum: Checksum | None = None
    unpack: tuple[Member, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public data set.

    Args:
        name: its name in commands and recipes.
        folder: its folder below the data folder.
        title: its full name.
        rows: number of rows in its official files.
        licence: the licence terms, in a sentence.
        homepage: address of its description.
        load: reads the set from its own folder into one table.
        needs: for each file that `load` needs, its possible names below the set's folder, plain or `.gz`.
        files: files that `fieldwise data fetch` downloads; empty if a person must accept terms.
        by_hand: if `files` is empty, a sentence that says where to get the set and where to put it.
    """

    name: str
    folder: str
    title: str
    rows: int
    licence: str
    homepage: str
    load: Callable[[Path], pl.DataFrame]
    needs: tuple[tuple[str, ...], ...]
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""

    def present(self, data_dir: str | Path) -> bool:
        """Whether every file that the set needs is in its folder below `data_dir`; their contents are not checked."""
        return all(find(Path(data_dir) / self.folder, *names) is not None for names in self.needs)

    def read(self, data_dir: str | Path) -> pl.DataFrame:
        """Read the set from its folder below `data_dir`.

        Errors:
            DataError: a file is absent (the message says how to get it), or is not the official one.
        """
        try:
            return self.load(Path(data_dir) / self.folder)
        except AbsentFileError as e:
            get = self.by_hand or f"run `fieldwise data fetch {self.name}`"
            raise DataError(
                f"{self.name} is not complete: {e}; {get}, or give the folder above {self.folder!r} as --data-dir"
            ) from None


def find(folder: Path, *names: str) -> Path | None:
    """The first of `names` that is in `folder`, plain or with `.gz`."""
    options = (folder / (name + end) for name in names for end in ("", ".gz"))
    return next((path for path in options if path.is_file()), None)


def need(folder: Path, *names: str) -> Path:
    """Like `find`, but raises if there is no such file.

    Errors:
        AbsentFileError: there is none.
    """
    path = find(folder, *names)
    if path is None:
        raise AbsentFileError(f"{' or '.join(names)} (plain or .gz) is not in the folder {folder}")
    return path


def read_checked(path: Path, checksum: Checksum | None) -> bytes:
    """The bytes of a file, plain or inside its `.gz`, after verifying `checksum` if given.

    Errors:
        DataError: the checksum is different.
    """
    content = read_content(path)
    check_content(path, content, checksum)
    return content


def check_described(ratings: pl.DataFrame, folder: Path, **columns: str) -> None:
    """Raise a DataError if a rating's user or item is not described: its column, which is always filled, is null."""
    for key, column in columns.items():
        unknown = ratings.get_column(column).is_null()
        if unknown.any():
            found = ratings.get_column(key)[int(unknown.arg_max() or 0)]
            raise DataError(f"every rating's {key} must be listed: {folder} does not describe {key} {found}")


def check_content(path: Path, content: bytes, checksum: Checksum | None) -> None:
    """Raise a DataError if `content`, read from `path`, does not match `checksum`, if given."""
    if checksum is not None and (found := checksum.of_bytes(content)) != checksum.value:
        raise DataError(
            f"{path} is not the official file: its {checksum.kind} is {found}, expected {checksum.value}; "
            "remove it and fetch it again"
        )
