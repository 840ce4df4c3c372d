"""Atomic loading of tables into stores, while servers read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.sliced import SlicedTable
from fieldwise.errors import DataError
from fieldwise.serving.stores.plain import check_ids, plain_table
from fieldwise.serving.stores.url import StoreURL

__all__ = ["Loaded", "Source", "load_table"]

BATCH = 5000  # rows per batch


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The result of a load.

    Args:
        rows: number of rows written.
        before: number of rows of the replaced table, None if there was none.
        columns: the columns of the rows.
    """

    rows: int
    before: int | None
    columns: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A table's rows on their way to a store.

    Args:
        column: the column of row ids, converted to text.
        empty: an empty table with the names and plain types of the columns.
        rows: number of rows.
        table: the table to read them from.
    """

    column: str
    empty: pl.DataFrame
    rows: int
    table: SlicedTable

    @classmethod
    def of(
        cls, path: Path, column: str, separator: str | None, encoding: str, columns: Sequence[str] | None = None
    ) -> "Source":
        """The rows of a file.

        Errors:
            DataError: no such file or column, a duplicate id, values that are invalid in requests.
        """
        table = SlicedTable(path, separator=separator, encoding=encoding, columns=columns)
        if column not in table.empty.columns:
            raise DataError(
                f"the rows must have the column {column!r} of ids: {nearest(column, table.empty.columns)} (--id names "
                "another)"
            )
        ids = check_ids(pl.concat([part.get_column(column) for part in _slices(table, [column])]))
        empty = plain_table(table.empty).with_columns(pl.lit(None, pl.String).alias(column))
        return cls(column=column, empty=empty, rows=len(ids), table=table)

    def batches(self) -> Iterator[pl.DataFrame]:
        """The rows with plain values.

        Errors:
            DataError: an infinite value; a truncated file.
        """
        first = 0
        for part in _slices(self.table, self.empty.columns):
            ids = as_text(part.get_column(self.column))
            yield plain_table(part, first_row=first).with_columns(ids)
            first += part.height


def load_table(
    path: Path,
    address: StoreURL,
    column: str,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
) -> Loaded:
    """Write a file's rows into a store; readers see either the old or the new table, never a mixture.

    Args:
        path: CSV, TSV, Parquet or Arrow, one row per user or item.
        address: address of the store.
        column: the column of row ids.
        separator: delimiter of a text file.
        encoding: encoding of a text file.
        columns: column names of a text file without a header.

    Errors:
        DataError: as for `Source`; a value that the store cannot represent.
        ConfigError: no connection, no permission to write, or another object of this name in the store.
        MissingExtraError: the store's client is not installed.
    """
    source = Source.of(path, column, separator, encoding, columns)
    if address.kind == "redis":
        from fieldwise.serving.stores.redis_load import load_redis

        before = load_redis(source, address)
    else:
        from fieldwise.serving.stores.postgres_load import load_postgres

        before = load_postgres(source, address)
    return Loaded(rows=source.rows, before=before, columns=source.empty.columns)


def _slices(table: SlicedTable, columns: list[str]) -> Iterator[pl.DataFrame]:
    parts = table.slices(columns, BATCH)
    first = next(parts, None)
    yield table.empty.select(columns) if first is None else first
    yield from parts
