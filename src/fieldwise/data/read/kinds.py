"""Types of table files, by their names."""

from pathlib import Path

__all__ = ["ARROW", "PARQUET", "TEXT", "suffix_of"]

TEXT = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": None}
"""Suffixes of delimited text with their delimiter; None if it must be detected from the file."""

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")


def suffix_of(path: Path) -> tuple[str, bool]:
    """A name's suffix in lower case, without `.gz`, and whether it ends in `.gz`.

    >>> suffix_of(Path("clicks.CSV.gz"))
    ('.csv', True)
    """
    packed = path.suffix.lower() == ".gz"
    return (Path(path.stem) if packed else path).suffix.lower(), packed
