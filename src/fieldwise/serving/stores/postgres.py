"""A table or view in PostgreSQL: a lookup is one query for all its ids and the requested columns."""

import math
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import polars as pl

from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.serving.plain_values import plain_value
from fieldwise.serving.stores.feature_store import UNREADABLE, RemoteStore, Row, StoreError, StoreURL

try:
    import psycopg
    from psycopg import AsyncConnection, sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.rows import TupleRow
    from psycopg_pool import AsyncConnectionPool
except ImportError as e:
    raise MissingExtraError(f"features in PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'") from None

__all__ = ["PostgresStore"]

START_S, RECONNECT_S = 5, 2  # limits of the first connection, and of later ones
CONNECTIONS = 4
OPTIONS = "-c statement_timeout=1000 -c timezone=UTC -c default_transaction_read_only=on"  # also ends abandoned queries
FRESH_S = 1.0  # after which the table's columns are read again
LOCK_S = 5  # for which a load waits for readers of the table
MARK = "fieldwise store, rows: "  # comment of a table that a load may replace
ID_TYPES = {20: "bigint", 21: "bigint", 23: "bigint", 25: "text", 1043: "text", 2950: "uuid"}  # by OID
ID_FORMS = {"bigint": r"0|-?[1-9][0-9]{0,18}", "text": r"[^\0]*", "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"}
FIRST_IDS = """
    SELECT {id}::text FROM {table} WHERE starts_with({id}::text, %s) ORDER BY {id}::text COLLATE "C" LIMIT %s OFFSET %s
"""
UNIQUE = """
    SELECT c.relkind = 'v' OR EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = %s
    ) FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
COMMENT = "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)"
GRANTS = """
    SELECT r.rolname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner
"""


class PostgresStore(RemoteStore):
    """A table or view in PostgreSQL; ids are integers, text or UUIDs, with a unique index (not required of a view)."""

    kind = "postgresql"
    failures = (psycopg.Error, OSError)
    _id_type, _read_at = "", -math.inf
    _pool: AsyncConnectionPool[AsyncConnection[TupleRow]] | None = None

    async def connect(self) -> None:
        """Connect and check the table; ConfigError if there is no such table or column, or no usable index of ids."""
        where, url = self.address.shown, self.address.url
        try:
            async with await AsyncConnection.connect(url, connect_timeout=START_S) as connection:
                await self._check(connection)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            raise ConfigError(f"{where} holds no table of this name: write it with fieldwise store load") from None
        except psycopg.errors.InsufficientPrivilege as e:
            raise ConfigError(f"{where} must give its user permission to read: {self.address.redacted(e)}") from None
        options = f"{OPTIONS} {conninfo_to_dict(url).get('options') or ''}"
        # No statement is prepared: a table that replaces this one may have other columns.
        more = {"autocommit": True, "prepare_threshold": None, "connect_timeout": RECONNECT_S, "options": options}
        self._pool = AsyncConnectionPool(
            url, kwargs=more, min_size=CONNECTIONS, timeout=START_S, reconnect_timeout=1, open=False
        )
        await self._pool.open()

    async def _check(self, connection: AsyncConnection[TupleRow]) -> None:
        where, encoding = self.address.shown, connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise ConfigError(
                f"{where} must be in a database with encoding UTF8, found {encoding}: move the table to another one"
            )
        table = sql.Identifier(*self.address.table.rsplit(".", 1))
        shape = await connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(table))
        types = {column.name: column.type_code for column in shape.description or ()}
        if self.column not in types:
            raise ConfigError(f"{where} must have the id column {self.column!r}: {nearest(self.column, list(types))}")
        self._id_type = ID_TYPES.get(types[self.column], "")
        if not self._id_type:
            raise ConfigError(
                f"the ids of {where} must be integers, text or UUIDs, found column {self.column!r} of another type: "
                "give a view that casts it to text"
            )
        unique = await connection.execute(UNIQUE, (self.column, table.as_string(connection)))
        if await unique.fetchone() != (True,):
            raise ConfigError(
                f"the ids of {where} must be unique and indexed, found no unique index on {self.column!r}: create one"
            )
        self.columns = list(types)

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of these ids with the requested columns; one that occurs twice is `UNREADABLE`."""
        try:
            return await self._rows(ids, columns)
        except psycopg.errors.UndefinedColumn:  # the table was replaced by one without this column
            self._read_at = -math.inf
            return await self._rows(ids, columns)

    async def _rows(self, ids: Sequence[str], columns: Collection[str] | None) -> list[Row | None]:
        if not ids or time.monotonic() > self._read_at + FRESH_S:  # the table may have been replaced
            self.columns, _ = await self._query("SELECT * FROM {table} LIMIT 0")
            self._read_at = time.monotonic()
        wanted = [_name(c) for c in self.columns if c != self.column and (columns is None or c in columns)]
        query = f"SELECT {{id}}::text{', {}' * len(wanted)} FROM {{table}} WHERE {{id}} = ANY(%s::{self._id_type}[])"
        held = [one for one in ids if self._can_hold(one)]
        names, rows = await self._query(query, held, more=wanted) if held else ([], [])
        found: dict[str, Row] = {}
        for one, *values in rows:
            row = dict(zip(names, (one, *map(plain_value, values)), strict=True))
            found[one] = UNREADABLE if one in found else row
        return [found.get(one) for one in ids]

    def _can_hold(self, one: str) -> bool:
        """Whether the id column could have this id."""
        if not re.fullmatch(ID_FORMS[self._id_type], one):
            return False
        return self._id_type != "bigint" or -(2**63) <= int(one) < 2**63

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, in text order."""
        _, rows = await self._query(FIRST_IDS, prefix.replace("\0", ""), limit, offset)
        return [one for (one,) in rows], None

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.close(timeout=1)
        self._pool = None

    async def _query(
        self, query: str, *values: Any, more: Sequence[sql.Identifier] = ()
    ) -> tuple[list[str], list[TupleRow]]:
        """The names of the columns, and the rows."""
        if self._pool is None:
            raise StoreError("gone", "not open")
        text = sql.SQL(query).format(*more, table=_name(*self.address.table.rsplit(".", 1)), id=_name(self.column))
        for _ in range(CONNECTIONS + 1):  # a restart of the server breaks every connection of the pool
            try:
                async with self._pool.connection() as connection:
                    cursor = await connection.execute(text, values)
                    return [column.name for column in cursor.description or ()], await cursor.fetchall()
            except psycopg.errors.UndefinedColumn:
                raise
            except psycopg.OperationalError as e:
                error: Exception = e
            except (psycopg.Error, OSError) as e:
                raise StoreError("gone", self.address.redacted(e)) from None
        raise StoreError("gone", self.address.redacted(error))

    @staticmethod
    def load(address: StoreURL, column: str, empty: pl.DataFrame, batches: Iterator[pl.DataFrame]) -> int | None:
        """As in the base class, in one transaction; the new table keeps the old one's privileges.

        Errors:
            ConfigError: another program's table has this name.
            DataError: PostgreSQL would truncate a column name.
        """
        for name in empty.columns:
            if not 0 < len(name.encode()) <= 63:
                raise DataError(f"a column name in PostgreSQL must have 1 to 63 bytes, found {name!r}: rename it")
        *schema, name = address.table.rsplit(".", 1)
        names = {
            "old": sql.Identifier(*schema, name),
            "new": sql.Identifier(*schema, f"fieldwise_{secrets.token_hex(8)}"),
            "name": sql.Identifier(name),
            "id": sql.Identifier(column),
        }
        with psycopg.connect(address.url, connect_timeout=START_S) as connection:

            def do(command: str, *more: sql.Composable) -> None:
                connection.execute(sql.SQL(command).format(*more, **names))

            do(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            place = (names["old"].as_string(connection),)
            old = connection.execute(COMMENT, place).fetchone()
            if old is not None and not str(old[0]).startswith(MARK):
                raise ConfigError(
                    f"{address.shown} is a table that fieldwise store load did not write, and stays as it is: use "
                    "another name"
                )
            types = [f"{{}} {_type(kind)}" for kind in empty.dtypes]
            do(f"CREATE TABLE {{new}} ({', '.join(types)})", *map(sql.Identifier, empty.columns))
            rows = 0
            with connection.cursor().copy(sql.SQL("COPY {new} FROM STDIN").format(**names)) as copy:
                for batch in batches:
                    for row in batch.iter_rows():
                        copy.write_row(row)
                    rows += batch.height
            do("ALTER TABLE {new} ADD PRIMARY KEY ({id})")
            do("ANALYZE {new}")
            for grantee, privilege in connection.execute(GRANTS, place).fetchall():
                who = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
                do(f"GRANT {privilege} ON {{new}} TO {{}}", who)
            do("DROP TABLE IF EXISTS {old}")
            do("ALTER TABLE {new} RENAME TO {name}")
            do("COMMENT ON TABLE {old} IS {}", sql.Literal(f"{MARK}{rows}"))
            return None if old is None else int(old[0].removeprefix(MARK))


def _type(kind: Any) -> str:
    """The PostgreSQL type of a plain column."""
    if isinstance(kind, pl.List):
        return f"{_type(kind.inner)}[]"
    if kind.is_integer():
        return "numeric" if kind in (pl.UInt64, pl.Int128) else "bigint"
    return "double precision" if kind.is_float() else "boolean" if kind == pl.Boolean else "text"


def _name(*parts: str) -> sql.Identifier:
    """An identifier in a query with parameters."""
    return sql.Identifier(*(part.replace("%", "%%") for part in parts))
