"""Columns that the names of files' folders tell, as Hive and Spark write tables: `day=2026-01-31/part-0.parquet`."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import polars as pl

from fieldwise.data.read.text_types import TextTypes
from fieldwise.errors import DataError

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def folder_values(path: Path) -> dict[str, str | None]:
    """The columns that the folders of a file tell.

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


class FolderColumns:
    """The columns that the names of files' folders tell (see `folder_values`), as they are added to the files' rows.

    A column that a file has itself stays as it is. Values of `text_columns` (None: all) stay as
    they are written.

    Errors:
        DataError: the folders of two files have other columns.
    """

    def __init__(self, files: Sequence[Path], text_columns: Sequence[str] | None = ()) -> None:
        self._values = {path: folder_values(path) for path in files}
        first = files[0]
        names = list(self._values[first])
        for path, values in self._values.items():
            if list(values) != names:
                raise DataError(
                    f"the folders of a table must tell the same columns, but those of {first} are "
                    f"{', '.join(names) or 'none'} and those of {path} {', '.join(values) or 'none'}: move the files"
                )
        self._types = TextTypes(text_columns)
        if names:
            rows = pl.DataFrame(
                list(self._values.values()), schema=dict.fromkeys(names, pl.String), orient="row"
            )
            self._types.add(rows)

    def add(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The rows of a file with these columns, as text."""
        columns = chunk.columns
        missing = {name: value for name, value in self._values[path].items() if name not in columns}
        if not missing:
            return chunk
        return chunk.with_columns(
            pl.lit(value, dtype=pl.String).alias(name) for name, value in missing.items()
        )

    def typed(self, chunk: pl.DataFrame, path: Path) -> pl.DataFrame:
        """The same with the types that hold the values of all files: see `TextTypes`."""
        folder_columns = self.add(chunk, path).drop(chunk.columns)
        return chunk.hstack(self._types.typed(folder_columns))
