"""Tables written into stores: whole or not at all, while servers read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.tables import SlicedTable
from fieldwise.errors import DataError
from fieldwise.serving.stores.plain import check_ids, plain_table
from fieldwise.serving.stores.url import StoreURL

__all__ = ["Loaded", "Source", "load_table"]

BATCH = 5000  # rows read and sent at once


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a load did.

    Args:
        rows: written.
        before: rows of the table that was replaced, None where there was none.
        columns: of the rows.
    """

    rows: int
    before: int | None
    columns: list[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A table's rows on their way to a store.

    Args:
        column: which column names a row; it comes as text.
        empty: names and plain types of the columns, without rows.
        rows: how many there are.
        table: where they are read from.
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
            DataError: no such file or column, an id twice, values that a request could not have.
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
            DataError: an infinity; the file breaks off.
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
    """Write a file's rows into a store; readers see the old table or the new one, never parts.

    Args:
        path: CSV, TSV, Parquet or Arrow, one row a user or an item.
        address: where to.
        column: which column names a row.
        separator: of delimited text.
        encoding: of delimited text.
        columns: of delimited text without a header.

    Errors:
        DataError: as of `Source`; a value that the store cannot hold.
        ConfigError: the store cannot be reached, lets nobody write, or has something else of this name.
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
