"""A table or view in PostgreSQL: a lookup is one query for all its ids and the requested columns."""

import math
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import polars as pl

from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.serving.rows import plain_value
from fieldwise.serving.stores.base import UNREADABLE, Row
from fieldwise.serving.stores.remote import NOT_OURS, RemoteStore

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import AsyncConnectionPool
except ImportError as e:
    raise MissingExtraError(
        f"features in PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'"
    ) from None

FIRST_CONNECTION_TIMEOUT_S = 5
RECONNECT_TIMEOUT_S = 2
CONNECTIONS = 4
SESSION_OPTIONS = "-c statement_timeout=1000 -c timezone=UTC -c default_transaction_read_only=on"
"""The time limit also ends abandoned queries."""
FRESH_S = 1.0
"""After which the table's columns are read again."""
LOCK_S = 5
"""For which a load waits for readers of the table."""
ROW_COUNT_COMMENT = "fieldwise store, rows: "
"""How the comment of a table that a load may replace begins."""
ID_TYPE_BY_OID = {
    20: "bigint",
    21: "bigint",
    23: "bigint",
    25: "text",
    1043: "text",
    2950: "uuid",
}
ID_PATTERNS = {
    "bigint": r"0|-?[1-9][0-9]{0,18}",
    "text": r"[^\0]*",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
COLUMNS_QUERY = "SELECT * FROM {table} LIMIT 0"
ROWS_QUERY = "SELECT {id}::text{columns} FROM {table} WHERE {id} = ANY({ids}::{type}[])"
IDS_QUERY = """
    SELECT {id}::text FROM {table} WHERE starts_with({id}::text, {prefix}) ORDER BY {id}::text COLLATE "C"
    LIMIT {limit} OFFSET {offset}
"""
UNIQUE_QUERY = """
    SELECT c.relkind = 'v' OR EXISTS (
        SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = %s
    ) FROM pg_class c WHERE c.oid = to_regclass(%s)
"""
COMMENT_QUERY = "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)"
GRANTS_QUERY = """
    SELECT r.rolname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner
"""


class PostgresStore(RemoteStore):
    """A table or view in PostgreSQL; ids are integers, text or UUIDs, with a unique index (not required of a view)."""

    kind = "postgresql"
    failures = (psycopg.Error, OSError)
    _id_type = ""
    _columns_read_at = -math.inf
    _pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]]

    async def connect(self) -> list[str] | None:
        """As in the base class; ConfigError if the ids have another type, or no usable index."""
        table = sql.Identifier(*self.table.rsplit(".", 1))
        try:
            async with await psycopg.AsyncConnection.connect(
                self.url, connect_timeout=FIRST_CONNECTION_TIMEOUT_S
            ) as connection:
                encoding = connection.info.parameter_status("server_encoding")
                cursor = await connection.execute(sql.SQL(COLUMNS_QUERY).format(table=table))
                types = {column.name: column.type_code for column in cursor.description or ()}
                cursor = await connection.execute(
                    UNIQUE_QUERY, (self.column, table.as_string(connection))
                )
                is_unique = await cursor.fetchone() == (True,)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None

        if encoding != "UTF8":
            raise ConfigError(
                f"{self.shown} must be in a database with encoding UTF8, found {encoding}: move the table to another "
                "one"
            )
        if self.column in types:
            self._id_type = ID_TYPE_BY_OID.get(types[self.column], "")
            self._check_ids(is_unique)
        await self._open_pool()
        self.columns = list(types)
        return self.columns

    def _check_ids(self, is_unique: bool) -> None:
        if not self._id_type:
            raise ConfigError(
                f"the ids of {self.shown} must be integers, text or UUIDs, found column {self.column!r} of another "
                "type: give a view that casts it to text"
            )
        if not is_unique:
            raise ConfigError(
                f"the ids of {self.shown} must be unique and indexed, found no unique index on {self.column!r}: "
                "create one"
            )

    async def _open_pool(self) -> None:
        connection_settings = {
            "autocommit": True,
            # no statement is prepared: a table that replaces this one may have other columns
            "prepare_threshold": None,
            "connect_timeout": RECONNECT_TIMEOUT_S,
            "options": f"{SESSION_OPTIONS} {conninfo_to_dict(self.url).get('options') or ''}",
        }
        self._pool = AsyncConnectionPool(
            self.url,
            kwargs=connection_settings,
            min_size=CONNECTIONS,
            timeout=FIRST_CONNECTION_TIMEOUT_S,
            reconnect_timeout=1,
            open=False,
        )
        await self._pool.open()
        self._connections.push_async_callback(self._pool.close, timeout=1)

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of these ids with the requested columns; one that occurs twice is `UNREADABLE`."""
        columns_are_fresh = ids and time.monotonic() < self._columns_read_at + FRESH_S
        if not columns_are_fresh:  # the table may have been replaced
            cursor = await self._query(COLUMNS_QUERY)
            self.columns = [column.name for column in cursor.description or ()]
            self._columns_read_at = time.monotonic()
        names = [
            name
            for name in self.columns
            if name != self.column and (columns is None or name in columns)
        ]
        try:
            cursor = await self._query(
                ROWS_QUERY,
                columns=sql.SQL("").join(
                    sql.SQL(", {}").format(sql.Identifier(name)) for name in names
                ),
                ids=[row_id for row_id in ids if self._may_exist(row_id)],
                type=sql.SQL(self._id_type),
            )
        except psycopg.errors.UndefinedColumn:  # the table was replaced by one without this column
            if not columns_are_fresh:
                raise
            self._columns_read_at = -math.inf
            return await self.get(ids, columns)

        rows: dict[str, Row] = {}
        for values in await cursor.fetchall():
            row_id = values[0]
            plain_values = map(plain_value, values[1:])
            row = {self.column: row_id, **dict(zip(names, plain_values, strict=True))}
            rows[row_id] = UNREADABLE if row_id in rows else row
        return [rows.get(row_id) for row_id in ids]

    def _may_exist(self, row_id: str) -> bool:
        """Whether PostgreSQL can read a text as an id of this table's type."""
        if not re.fullmatch(ID_PATTERNS[self._id_type], row_id):
            return False
        return self._id_type != "bigint" or -(2**63) <= int(row_id) < 2**63

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, in text order."""
        cursor = await self._query(
            IDS_QUERY, prefix=prefix.replace("\0", ""), limit=limit, offset=offset
        )
        return [row_id for (row_id,) in await cursor.fetchall()], None

    async def _query(self, query: str, **parts: Any) -> psycopg.AsyncCursor[Any]:
        statement = sql.SQL(query).format(
            table=sql.Identifier(*self.table.rsplit(".", 1)),
            id=sql.Identifier(self.column),
            **parts,
        )
        broken_connections = 0
        while True:
            try:
                async with self._pool.connection() as connection:
                    return await connection.execute(statement)
            except psycopg.OperationalError:
                # a restart of the server breaks every connection of the pool
                broken_connections += 1
                if broken_connections > CONNECTIONS:
                    raise

    def load(self, empty: pl.DataFrame, batches: Iterator[pl.DataFrame], count: int) -> int | None:
        """As in the base class, in one transaction; the new table keeps the old one's privileges."""
        for name in empty.columns:
            if not 0 < len(name.encode()) <= 63:
                raise DataError(
                    f"a column name in PostgreSQL must have 1 to 63 bytes, found {name!r}: rename it"
                )

        *schema, name = self.table.rsplit(".", 1)
        old = sql.Identifier(*schema, name)
        new = sql.Identifier(*schema, f"fieldwise_{secrets.token_hex(8)}")
        names = {
            "old": old,
            "new": new,
            "name": sql.Identifier(name),
            "id": sql.Identifier(self.column),
        }
        with psycopg.connect(self.url, connect_timeout=FIRST_CONNECTION_TIMEOUT_S) as connection:

            def run(command: str, *parts: sql.Composable) -> None:
                connection.execute(sql.SQL(command).format(*parts, **names))

            run(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            old_name = (old.as_string(connection),)
            comment = connection.execute(COMMENT_QUERY, old_name).fetchone()
            if comment is not None and not str(comment[0]).startswith(ROW_COUNT_COMMENT):
                raise ConfigError(f"{self.shown} {NOT_OURS}")

            columns = [f"{{}} {_type(dtype)}" for dtype in empty.dtypes]
            run(f"CREATE TABLE {{new}} ({', '.join(columns)})", *map(sql.Identifier, empty.columns))
            with connection.cursor().copy(sql.SQL("COPY {new} FROM STDIN").format(**names)) as copy:
                for batch in batches:
                    for row in batch.iter_rows():
                        copy.write_row(row)
            run("ALTER TABLE {new} ADD PRIMARY KEY ({id})")
            run("ANALYZE {new}")

            for grantee, privilege in connection.execute(GRANTS_QUERY, old_name).fetchall():
                role = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
                run(f"GRANT {privilege} ON {{new}} TO {{}}", role)
            run("DROP TABLE IF EXISTS {old}")
            run("ALTER TABLE {new} RENAME TO {name}")
            run("COMMENT ON TABLE {old} IS {}", sql.Literal(f"{ROW_COUNT_COMMENT}{count}"))

        if comment is None:
            return None
        return int(comment[0].removeprefix(ROW_COUNT_COMMENT))


def _type(dtype: Any) -> str:
    """The PostgreSQL type of a plain column."""
    if isinstance(dtype, pl.List):
        return f"{_type(dtype.inner)}[]"
    if dtype in (pl.UInt64, pl.Int128):
        return "numeric"
    if dtype.is_integer():
        return "bigint"
    if dtype.is_float():
        return "double precision"
    return "boolean" if dtype == pl.Boolean else "text"
