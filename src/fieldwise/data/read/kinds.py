"""Types of table files, by their names."""

from pathlib import Path
from typing import Literal

__all__ = ["ARROW", "KINDS", "LIBFM", "PARQUET", "TEXT", "Kind", "kind_of", "suffix_of"]

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
    packing = path.suffix.lower() if path.suffix.lower() in (".gz", ".zst") else ""
    return (Path(path.stem) if packing else path).suffix.lower(), packing


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
    return "Parquet" if suffix in PARQUET else "Arrow IPC" if suffix in ARROW else None
