"""A feature store on a server: its address and errors without credentials, and how a table is written into it."""

import re
from abc import abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.errors import ConfigError, FieldwiseError, first_line
from fieldwise.scoring.items import checked_ids
from fieldwise.serving.rows import plain_table
from fieldwise.serving.stores.base import FeatureStore, StoreError

ROWS_PER_WRITE = 5000
NOT_OURS = (
    "is something that fieldwise store load did not write, and stays as it is: use another name"
)
NAMED_USER = re.compile(r'\b(user|role)( name)? "[^"]*"')


class RemoteStore(FeatureStore):
    """A table on a server; of its address only `shown` is displayed, without credentials and options."""

    failures: ClassVar[tuple[type[Exception], ...]]
    """Errors of the client, if the server does not answer, or refuses."""

    def __init__(self, url: str, table: str, column: str) -> None:
        self.url = url
        self.table = table
        self.column = column

        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self.shown = f"{parts.scheme}://{host}{unquote(parts.path)}#{table}"
        self._secrets = [secret for secret in (parts.password, parts.username) if secret]
        self._connections = AsyncExitStack()

    async def open(self) -> None:
        """Connect and check the table."""
        try:
            columns = await self.connect()
        except FieldwiseError:
            raise
        except self.failures as e:
            raise ConfigError(
                f"{self.shown} must answer and let its user read: {self.redacted(e)}; check address, user, password "
                "and permissions"
            ) from None

        if columns is None:
            raise ConfigError(
                f"{self.shown} holds no table of this name: write it with fieldwise store load"
            )
        if self.column not in columns:
            raise ConfigError(
                f"{self.shown} must have the id column {self.column!r}: {nearest(self.column, columns)}"
            )

    @abstractmethod
    async def connect(self) -> Collection[str] | None:
        """Connect, and return the columns that may have the ids; None if there is no table."""

    @abstractmethod
    def load(self, empty: pl.DataFrame, batches: Iterator[pl.DataFrame], count: int) -> int | None:
        """Replace the table, or leave it if killed; returns its former number of rows, None if there was none."""

    def redacted(self, error: BaseException) -> str:
        """The first line of a client's error message, without the user's name and the password."""
        # the address need not name the user: it may be the one of the operating system
        text = NAMED_USER.sub(r'\1\2 "***"', first_line(error))
        for secret in self._secrets:
            for form in (secret, unquote(secret)):
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
        return text

    def failure(self, error: BaseException) -> StoreError:
        """As in the base class; the server is gone if its client raised the error."""
        if isinstance(error, self.failures):
            return StoreError("gone", self.redacted(error))
        return super().failure(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.aclose()


def load_table(table: SlicedTable, store: RemoteStore) -> dict[str, Any]:
    """Write a table with one row per id into a store; readers see either the old or the new table, never a mixture.

    Returns:
        `rows`: their number; `before`: the number of those replaced, None if there was no table;
        `columns`.
    """
    column = store.column
    checked_ids(table.empty, column, "rows", "--id")
    id_slices = table.slices([column], ROWS_PER_WRITE)
    ids = checked_ids(pl.concat([table.empty.select(column), *id_slices]), column)
    empty = plain_table(table.empty).with_columns(pl.lit(None, pl.String).alias(column))

    def batches() -> Iterator[pl.DataFrame]:
        first_row = 0
        for rows in table.slices(empty.columns, ROWS_PER_WRITE):
            text_ids = as_text(rows.get_column(column))
            yield plain_table(rows, first_row=first_row).with_columns(text_ids)
            first_row += rows.height

    try:
        rows_before = store.load(empty, batches(), len(ids))
    except FieldwiseError:
        raise
    except store.failures as e:
        raise ConfigError(
            f"{store.shown} was not written: {store.redacted(e)}; the old table stays"
        ) from None
    return {"rows": len(ids), "before": rows_before, "columns": empty.columns}
