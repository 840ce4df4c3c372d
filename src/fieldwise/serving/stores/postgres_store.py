"""Rows in a table of PostgreSQL, or in a view: one query for all ids of a lookup."""

import asyncio
import os
import re
import socket
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fieldwise.config import nearest
from fieldwise.errors import ConfigError, MissingExtraError
from fieldwise.serving.stores.base import Row, StoreError
from fieldwise.serving.stores.plain import plain_value
from fieldwise.serving.stores.url import StoreURL

try:
    import psycopg
    from psycopg import AsyncConnection, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import DictRow, dict_row
    from psycopg_pool import AsyncConnectionPool
except ImportError as e:
    raise MissingExtraError(f"features from PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'") from None

__all__ = ["PostgresStore", "table_name"]

START = 5  # seconds that the first connection may take
OPTIONS = "-c statement_timeout=1000 -c timezone=UTC -c default_transaction_read_only=on"  # given up here, ended there
UNIQUE = """
    SELECT c.relkind = 'v' OR EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = %s
    ) FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


class PostgresStore:
    """Rows in PostgreSQL.

    Args:
        address: where, and which table or view.
        column: which column names a user, or an item: of integers, text or UUIDs, with a unique index (of a view
            that is not asked).
        connections: how many at most; further lookups wait for one.
    """

    kind = "postgresql"

    def __init__(self, address: StoreURL, column: str, *, connections: int = 4) -> None:
        self.column = column
        self._address, self._connections = address, connections
        self._pool: AsyncConnectionPool[AsyncConnection[DictRow]] | None = None
        self._columns: list[str] = []
        self._ids = ""

    @property
    def columns(self) -> Sequence[str]:
        """As the table had them when it was last asked."""
        return self._columns

    async def open(self) -> None:
        """Connect, and look at the table.

        Errors:
            ConfigError: no connection, no entry, no such table or column, ids that cannot be looked up.
        """
        where, table = self._address.shown, table_name(self._address)
        try:
            async with await AsyncConnection.connect(self._address.url, connect_timeout=START) as connection:
                await self._look_at(connection, table)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise ConfigError(f"{where} holds no table of this name: write it with fieldwise store load") from None
        except psycopg.errors.InsufficientPrivilege as e:
            raise ConfigError(f"{where} must let its user read: {self._address.told(e)}") from None
        except (psycopg.Error, OSError) as e:
            raise ConfigError(
                f"{where} must answer: {self._address.told(e)}; check address, user and password"
            ) from None
        names = {"table": _escaped(table), "id": _escaped(sql.Identifier(self.column)), "type": sql.SQL(self._ids)}
        self._query = sql.SQL("SELECT * FROM {table} WHERE {id} = ANY(%s::{type}[])").format(**names)
        self._search = sql.SQL(
            'SELECT * FROM {table} WHERE starts_with({id}::text, %s) ORDER BY {id}::text COLLATE "C" LIMIT %s'
        ).format(**names)
        own = conninfo_to_dict(self._address.url).get("options") or ""
        self._pool = AsyncConnectionPool(
            self._address.url,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": None,  # a table that is replaced may have other columns
                "connect_timeout": 2,
                "options": f"{OPTIONS} {own}".strip(),
            },
            min_size=self._connections,
            max_size=self._connections,
            timeout=START,
            reconnect_timeout=1,  # then the next lookup makes it try anew
            open=False,
        )
        await self._pool.open()

    async def get(self, ids: Sequence[str]) -> list[Row | None]:
        """The rows of some ids.

        Errors:
            StoreError: no answer, or an id twice.
        """
        wanted = [value for one in ids if (value := self._value(one)) is not None]
        found: dict[str, Row] = {}
        for row in map(self._plain, await self._rows(self._query, (wanted,))):
            if row[self.column] in found:
                raise StoreError("damaged", f"{row[self.column]!r} stands twice in {self._address.shown}")
            found[row[self.column]] = row
        return [found.get(one) for one in ids]

    async def search(self, prefix: str, limit: int) -> list[Row]:
        """The first rows, by id, whose ids begin with a text.

        Errors:
            StoreError: no answer.
        """
        if "\0" in prefix:
            return []
        return [self._plain(row) for row in await self._rows(self._search, (prefix, limit))]

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        self._pool = None

    async def _look_at(self, connection: AsyncConnection[Any], table: sql.Identifier) -> None:
        where = self._address.shown
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise ConfigError(f"{where} must be a database of encoding UTF8, found {encoding}: move it")
        shape = await connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table))
        columns = {column.name: column.type_code for column in shape.description or ()}
        if self.column not in columns:
            raise ConfigError(
                f"{where} must have the column {self.column!r} of ids: {nearest(self.column, list(columns))}"
            )
        self._columns, self._ids = list(columns), IDS.get(columns[self.column], "")
        if not self._ids:
            raise ConfigError(
                f"{where} must name its rows by integers, text or UUIDs, found column {self.column!r} of another type: "
                "give a view that casts it to text"
            )
        unique = await connection.execute(UNIQUE, (self.column, table.as_string(connection)))
        if (await unique.fetchone()) != (True,):
            raise ConfigError(
                f"{where} must name each row once and find it quickly, found no unique index on {self.column!r}: "
                "create one"
            )

    def _plain(self, row: DictRow) -> Row:
        return {name: plain_value(value) for name, value in row.items()} | {self.column: str(row[self.column])}

    async def _rows(self, query: sql.Composed, values: Sequence[Any]) -> list[DictRow]:
        if self._pool is None:
            raise StoreError("gone", "not open")
        lost: psycopg.Error | None = None
        for _ in range(self._connections + 1):  # as many as may have been lost when the server started anew
            try:
                async with self._pool.connection() as connection:
                    return await self._asked(connection, query, values)
            except psycopg.OperationalError as e:
                lost = e
                if not connection.closed:
                    break
            except (psycopg.Error, OSError) as e:
                raise StoreError("gone", self._address.told(e)) from None
        raise StoreError("gone", self._address.told(lost or psycopg.Error())) from None

    async def _asked(
        self, connection: AsyncConnection[DictRow], query: sql.Composed, values: Sequence[Any]
    ) -> list[DictRow]:
        task = asyncio.create_task(self._fetched(connection, query, values))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, if nobody waits any more
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Cancelling a query asks the server, which may not answer: the connection is cut, and the query ends.
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({task})
            raise

    async def _fetched(
        self, connection: AsyncConnection[DictRow], query: sql.Composed, values: Sequence[Any]
    ) -> list[DictRow]:
        cursor = await connection.execute(query, values)
        self._columns = [column.name for column in cursor.description or ()]
        return await cursor.fetchall()

    def _value(self, one: str) -> Any:
        """An id as its column has it, None for what the column cannot hold."""
        if self._ids == "bigint":
            whole = re.fullmatch(r"0|-?[1-9][0-9]{0,18}", one)
            return int(one) if whole and -(2**63) <= int(one) < 2**63 else None
        if self._ids == "uuid":
            try:
                return one if str(UUID(one)) == one else None
            except ValueError:
                return None
        return None if "\0" in one else one


IDS = {20: "bigint", 21: "bigint", 23: "bigint", 25: "text", 1043: "text", 2950: "uuid"}  # by type's OID


def table_name(address: StoreURL) -> sql.Identifier:
    """`table` or `schema.table` as an identifier.

    Errors:
        ConfigError: more parts, or a name that PostgreSQL would cut.
    """
    parts = address.table.split(".")
    if len(parts) > 2 or not all(0 < len(part.encode()) <= 63 and "\0" not in part for part in parts):
        raise ConfigError(f"a table is TABLE or SCHEMA.TABLE, names of at most 63 bytes, found {address.table[:200]!r}")
    return sql.Identifier(*parts)


def _escaped(name: sql.Identifier) -> sql.SQL:
    """An identifier within a query that has parameters."""
    return sql.SQL(name.as_string(None).replace("%", "%%"))
