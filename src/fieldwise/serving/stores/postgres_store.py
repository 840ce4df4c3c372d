"""Feature store in a PostgreSQL table or view. A lookup is one query for all its ids and the requested columns."""

import asyncio
import math
import os
import re
import socket
import time
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from fieldwise.config import nearest
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.stores.base import UNREADABLE, Row, StoreError
from fieldwise.serving.stores.postgres_rows import plain_rows
from fieldwise.serving.stores.url import StoreURL

try:
    import psycopg
    from psycopg import AsyncConnection, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import TupleRow
    from psycopg_pool import AsyncConnectionPool
except ImportError as e:
    raise MissingExtraError(f"features from PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'") from None

__all__ = ["PostgresStore", "table_name"]

START = 5  # maximum seconds for the first connection
OPTIONS = "-c statement_timeout=1000 -c timezone=UTC -c default_transaction_read_only=on"  # also ends abandoned queries
FRESH = 1.0  # seconds after which the table's columns are read again
ATTEMPTS = 5  # attempts of a lookup while the table is replaced by one with other columns
UNIQUE = """
    SELECT c.relkind = 'v' OR EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = %s
    ) FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


class PostgresStore:
    """Feature store in PostgreSQL.

    Args:
        address: address of the server, with the table or view.
        column: column of the user or item ids: integers, text or UUIDs, with a unique index (not required of a view).
        connections: maximum number of connections; further lookups wait for a free one.
    """

    kind = "postgresql"

    def __init__(self, address: StoreURL, column: str, *, connections: int = 4) -> None:
        self.column = column
        self._address, self._connections = address, connections
        self._pool: AsyncConnectionPool[AsyncConnection[TupleRow]] | None = None
        self._columns: list[str] = []
        self._ids = ""
        self._checked = -math.inf

    @property
    def columns(self) -> Sequence[str]:
        """Columns of the table; while lookups run they are at most one second old."""
        return self._columns

    async def open(self) -> None:
        """Connect and check the table.

        Errors:
            ConfigError: there is no connection, no permission, no such table or column, or no usable index of the ids.
        """
        where, table = self._address.shown, table_name(self._address)
        try:
            async with await AsyncConnection.connect(self._address.url, connect_timeout=START) as connection:
                await self._read_columns(connection, table)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise ConfigError(f"{where} holds no table of this name: write it with fieldwise store load") from None
        except psycopg.errors.InsufficientPrivilege as e:
            raise ConfigError(f"{where} must give its user permission to read: {self._address.told(e)}") from None
        except (psycopg.Error, OSError) as e:
            raise ConfigError(
                f"{where} must answer: {self._address.told(e)}; check address, user and password"
            ) from None
        self._table = table.as_string(None)
        self._names = {"table": _escaped(table), "id": _escaped(sql.Identifier(self.column))}
        own = conninfo_to_dict(self._address.url).get("options") or ""
        self._pool = AsyncConnectionPool(
            self._address.url,
            kwargs={
                "autocommit": True,
                "prepare_threshold": None,  # a table that replaces this one may have other columns
                "connect_timeout": 2,
                "options": f"{OPTIONS} {own}".strip(),
            },
            min_size=self._connections,
            max_size=self._connections,
            timeout=START,
            reconnect_timeout=1,  # after that, the next lookup reconnects
            open=False,
        )
        await self._pool.open()

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of these ids with the requested columns; the values of a duplicate row are `UNREADABLE`.

        Errors:
            StoreError: the server does not answer, or fails at a row.
        """
        wanted = [value for one in ids if (value := self._value(one)) is not None]
        found: dict[str, Row] = {}
        for row in await self._found(wanted, columns):
            one = row[self.column]
            again = {**dict.fromkeys(self._columns if columns is None else columns, UNREADABLE), self.column: one}
            found[one] = again if one in found else row
        return [found.get(one) for one in ids]

    async def search(self, prefix: str, limit: int) -> list[str]:
        """The first ids that begin with a prefix, in text order.

        Errors:
            StoreError: the server does not answer.
        """
        if "\0" in prefix:
            return []
        try:
            return [one for (one,) in await self._rows(SEARCH.format(**self._names), (prefix, limit))]
        except psycopg.Error as e:
            raise StoreError("gone", self._address.told(e)) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        self._pool = None

    async def _read_columns(self, connection: AsyncConnection[Any], table: sql.Identifier) -> None:
        where = self._address.shown
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise ConfigError(
                f"{where} must be in a database with encoding UTF8, found {encoding}: move the table to another one"
            )
        shape = await connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table))
        columns = {column.name: column.type_code for column in shape.description or ()}
        if self.column not in columns:
            raise ConfigError(f"{where} must have the id column {self.column!r}: {nearest(self.column, list(columns))}")
        self._columns, self._ids = list(columns), IDS.get(columns[self.column], "")
        self._checked = time.monotonic()
        if not self._ids:
            raise ConfigError(
                f"the ids of {where} must be integers, text or UUIDs, found column {self.column!r} of another type: "
                "give a view that casts it to text"
            )
        unique = await connection.execute(UNIQUE, (self.column, table.as_string(connection)))
        if (await unique.fetchone()) != (True,):
            raise ConfigError(
                f"the ids of {where} must be unique and indexed, found no unique index on {self.column!r}: create one"
            )

    async def _found(self, wanted: Sequence[Any], columns: Collection[str] | None) -> list[Row]:
        for _ in range(ATTEMPTS):
            if time.monotonic() - self._checked > FRESH:
                await self._refresh_columns()
            asked = [name for name in self._columns if name != self.column and (columns is None or name in columns)]
            try:
                rows = await self._rows(self._query(asked), (wanted,))
                return [dict(zip([self.column, *asked], row, strict=True)) for row in rows]
            except psycopg.errors.UndefinedColumn:
                self._checked = -math.inf  # the table was replaced
            except psycopg.Error as e:
                raise StoreError("gone", self._address.told(e)) from None
        raise StoreError("damaged", f"{self._address.shown} was replaced {ATTEMPTS} times during a lookup")

    async def _refresh_columns(self) -> None:
        """Read the columns again: the table may have been replaced, or a column added or dropped."""
        try:
            self._columns = [name for (name,) in await self._rows(COLUMNS, (self._table,))] or self._columns
        except psycopg.Error as e:
            raise StoreError("gone", self._address.told(e)) from None
        self._checked = time.monotonic()

    def _query(self, asked: Sequence[str]) -> sql.Composed:
        more = [sql.SQL(", ") + _escaped(sql.Identifier(name)) for name in asked]
        return QUERY.format(**self._names, type=sql.SQL(self._ids), more=sql.Composed(more))

    async def _rows(self, query: sql.Composed, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._pool is None:
            raise StoreError("gone", "not open")
        lost: psycopg.Error | None = None
        for _ in range(self._connections + 1):  # a restart of the server breaks every connection of the pool
            try:
                async with self._pool.connection() as connection:
                    return await self._asked(connection, query, values)
            except psycopg.OperationalError as e:
                lost = e
                if not connection.closed:
                    break
            except OSError as e:
                raise StoreError("gone", self._address.told(e)) from None
        raise StoreError("gone", self._address.told(lost or psycopg.Error())) from None

    async def _asked(
        self, connection: AsyncConnection[TupleRow], query: sql.Composed, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        task = asyncio.create_task(self._fetched(connection, query, values))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieved even if not awaited
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # To cancel a query, psycopg asks the server, which may not answer. Shutting the socket always ends it.
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({task})
            raise

    async def _fetched(
        self, connection: AsyncConnection[TupleRow], query: sql.Composed, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        return await plain_rows(connection, await connection.execute(query, values))

    def _value(self, one: str) -> Any:
        """An id as a value of its column; None if the column cannot hold it."""
        if self._ids == "bigint":
            whole = re.fullmatch(r"0|-?[1-9][0-9]{0,18}", one)
            return int(one) if whole and -(2**63) <= int(one) < 2**63 else None
        if self._ids == "uuid":
            try:
                return one if str(UUID(one)) == one else None
            except ValueError:
                return None
        return None if "\0" in one else one


QUERY = sql.SQL("SELECT {id}::text{more} FROM {table} WHERE {id} = ANY(%s::{type}[])")
SEARCH = sql.SQL(
    'SELECT {id}::text FROM {table} WHERE starts_with({id}::text, %s) ORDER BY {id}::text COLLATE "C" LIMIT %s'
)
COLUMNS = sql.SQL(
    "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
    "ORDER BY attnum"
).format()
IDS = {20: "bigint", 21: "bigint", 23: "bigint", 25: "text", 1043: "text", 2950: "uuid"}  # by type's OID


def table_name(address: StoreURL) -> sql.Identifier:
    """`table` or `schema.table` as an identifier.

    Errors:
        ConfigError: the name has more parts, or PostgreSQL would truncate it.
    """
    parts = address.table.split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= 63 and "\0" not in part for part in parts):
        raise ConfigError(
            f"a table must be TABLE or SCHEMA.TABLE with names of at most 63 bytes, found {address.table[:200]!r}"
        )
    return sql.Identifier(*parts)


def _escaped(name: sql.Identifier) -> sql.SQL:
    """An identifier escaped for a query with parameters."""
    return sql.SQL(name.as_string(None).replace("%", "%%"))
