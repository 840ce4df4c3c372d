"""A table that commands read as a whole: in memory if it is small beside what is available, else mapped."""

from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.read.found import find_files
from fieldwise.data.read.mapped import arrow_library
from fieldwise.data.read.pieces import estimated_bytes
from fieldwise.data.read.source import open_table
from fieldwise.data.read.tables import as_table
from fieldwise.errors import MissingExtraError
from fieldwise.storage.folders import scratch_folder
from fieldwise.storage.memory import available_memory

__all__ = ["whole_table"]

SHARE = 6  # of the available memory; rows are copied and encoded besides


def whole_table(data: str | Path, *, memory: int | None = None, **text: Any) -> pl.DataFrame:
    """The table of a file, a folder or a pattern, as of `as_table`.

    With pyarrow (extra `large`) a table that takes more than its share of memory is mapped from files in the folder of
    temporary files, which have no names any more; without it, it is read into memory.

    Args:
        data: see `as_table`.
        memory: bytes that it may take in memory; a sixth of what is available if omitted.
        text: `separator`, `encoding` and `columns`, see `as_table`.

    Errors:
        DataError: as `as_table`; the disk is full.
    """
    memory = available_memory() // SHARE if memory is None else memory
    if sum(map(estimated_bytes, find_files(Path(data)))) <= memory or not _maps():
        return as_table(data, **text)
    with scratch_folder() as folder:
        return open_table(data, folder=folder, memory=memory, **text)


def _maps() -> bool:
    try:
        arrow_library()
    except MissingExtraError:
        return False
    return True
