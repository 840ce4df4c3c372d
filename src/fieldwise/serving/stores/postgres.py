"""A table or view in PostgreSQL: a lookup is one query for all its ids and the requested columns."""

import math
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any

import polars as pl

from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.serving.rows import plain_value
from fieldwise.serving.stores import NOT_OURS, UNREADABLE, RemoteStore, Row

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict
    from psycopg_pool import AsyncConnectionPool
except ImportError as e:
    raise MissingExtraError(
        f"features in PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'"
    ) from None

# limits of the first connection, and of later ones
START_S = 5
RECONNECT_S = 2
CONNECTIONS = 4
# also ends abandoned queries
OPTIONS = "-c statement_timeout=1000 -c timezone=UTC -c default_transaction_read_only=on"
FRESH_S = 1.0  # after which the table's columns are read again
LOCK_S = 5  # for which a load waits for readers of the table
MARK = "fieldwise store, rows: "  # comment of a table that a load may replace
# by OID
ID_TYPES = {20: "bigint", 21: "bigint", 23: "bigint", 25: "text", 1043: "text", 2950: "uuid"}
ID_FORMS = {
    "bigint": r"0|-?[1-9][0-9]{0,18}",
    "text": r"[^\0]*",
    "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
COLUMNS = "SELECT * FROM {table} LIMIT 0"
ROWS = "SELECT {id}::text{columns} FROM {table} WHERE {id} = ANY({ids}::{type}[])"
FIRST_IDS = """
    SELECT {id}::text FROM {table} WHERE starts_with({id}::text, {prefix}) ORDER BY {id}::text COLLATE "C"
    LIMIT {limit} OFFSET {offset}
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
    _id_type = ""
    _read_at = -math.inf
    _pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]]

    async def connect(self) -> list[str] | None:
        """As in the base class; ConfigError if the ids have another type, or no usable index."""
        table = sql.Identifier(*self.table.rsplit(".", 1))
        where = self.shown
        try:
            async with await psycopg.AsyncConnection.connect(
                self.url, connect_timeout=START_S
            ) as connection:
                encoding = connection.info.parameter_status("server_encoding")
                result = await connection.execute(sql.SQL(COLUMNS).format(table=table))
                types = {column.name: column.type_code for column in result.description or ()}
                result = await connection.execute(
                    UNIQUE, (self.column, table.as_string(connection))
                )
                is_unique = await result.fetchone() == (True,)
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        if encoding != "UTF8":
            raise ConfigError(
                f"{where} must be in a database with encoding UTF8, found {encoding}: move the table to another one"
            )
        self._id_type = ID_TYPES.get(types.get(self.column, 0), "")
        if self.column in types and not self._id_type:
            raise ConfigError(
                f"the ids of {where} must be integers, text or UUIDs, found column {self.column!r} of another type: "
                "give a view that casts it to text"
            )
        if self.column in types and not is_unique:
            raise ConfigError(
                f"the ids of {where} must be unique and indexed, found no unique index on {self.column!r}: create one"
            )
        options = f"{OPTIONS} {conninfo_to_dict(self.url).get('options') or ''}"
        # No statement is prepared: a table that replaces this one may have other columns.
        more = {
            "autocommit": True,
            "prepare_threshold": None,
            "connect_timeout": RECONNECT_S,
            "options": options,
        }
        self._pool = AsyncConnectionPool(
            self.url,
            kwargs=more,
            min_size=CONNECTIONS,
            timeout=START_S,
            reconnect_timeout=1,
            open=False,
        )
        await self._pool.open()
        self._connections.push_async_callback(self._pool.close, timeout=1)
        self.columns = list(types)
        return self.columns

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of these ids with the requested columns; one that occurs twice is `UNREADABLE`."""
        is_known = ids and time.monotonic() < self._read_at + FRESH_S
        if not is_known:  # the table may have been replaced
            self.columns = [
                column.name for column in (await self._query(COLUMNS)).description or ()
            ]
            self._read_at = time.monotonic()
        names = [
            name
            for name in self.columns
            if name != self.column and (columns is None or name in columns)
        ]
        held = [one for one in ids if re.fullmatch(ID_FORMS[self._id_type], one)]
        if self._id_type == "bigint":
            held = [one for one in held if -(2**63) <= int(one) < 2**63]
        parts = {
            "columns": sql.SQL("").join(
                sql.SQL(", {}").format(sql.Identifier(name)) for name in names
            )
        }
        try:
            rows = await self._query(ROWS, **parts, ids=held, type=sql.SQL(self._id_type))
        except psycopg.errors.UndefinedColumn:  # the table was replaced by one without this column
            if not is_known:
                raise
            self._read_at = -math.inf
            return await self.get(ids, columns)
        results: dict[str, Row] = {}
        for one, *values in await rows.fetchall():
            row = {self.column: one, **dict(zip(names, map(plain_value, values), strict=True))}
            results[one] = UNREADABLE if one in results else row
        return [results.get(one) for one in ids]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, in text order."""
        result = await self._query(
            FIRST_IDS, prefix=prefix.replace("\0", ""), limit=limit, offset=offset
        )
        return [one for (one,) in await result.fetchall()], None

    async def _query(self, query: str, **parts: Any) -> psycopg.AsyncCursor[Any]:
        names = {
            "table": sql.Identifier(*self.table.rsplit(".", 1)),
            "id": sql.Identifier(self.column),
        }
        text = sql.SQL(query).format(**names, **parts)
        broken = 0
        while True:
            try:
                async with self._pool.connection() as connection:
                    return await connection.execute(text)
            except (
                psycopg.OperationalError
            ):  # a restart of the server breaks every connection of the pool
                broken += 1
                if broken > CONNECTIONS:
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
        with psycopg.connect(self.url, connect_timeout=START_S) as connection:

            def do(command: str, *more: sql.Composable) -> None:
                connection.execute(sql.SQL(command).format(*more, **names))

            do(f"SET LOCAL lock_timeout = '{LOCK_S}s'")
            place = (old.as_string(connection),)
            comment = connection.execute(COMMENT, place).fetchone()
            if comment is not None and not str(comment[0]).startswith(MARK):
                raise ConfigError(f"{self.shown} {NOT_OURS}")
            types = [f"{{}} {_type(kind)}" for kind in empty.dtypes]
            do(f"CREATE TABLE {{new}} ({', '.join(types)})", *map(sql.Identifier, empty.columns))
            with connection.cursor().copy(sql.SQL("COPY {new} FROM STDIN").format(**names)) as copy:
                for row in chain.from_iterable(map(pl.DataFrame.iter_rows, batches)):
                    copy.write_row(row)
            do("ALTER TABLE {new} ADD PRIMARY KEY ({id})")
            do("ANALYZE {new}")
            for grantee, privilege in connection.execute(GRANTS, place).fetchall():
                who = sql.SQL("PUBLIC") if grantee is None else sql.Identifier(grantee)
                do(f"GRANT {privilege} ON {{new}} TO {{}}", who)
            do("DROP TABLE IF EXISTS {old}")
            do("ALTER TABLE {new} RENAME TO {name}")
            do("COMMENT ON TABLE {old} IS {}", sql.Literal(f"{MARK}{count}"))
            return None if comment is None else int(comment[0].removeprefix(MARK))


def _type(kind: Any) -> str:
    """The PostgreSQL type of a plain column."""
    if isinstance(kind, pl.List):
        return f"{_type(kind.inner)}[]"
    if kind.is_integer():
        return "numeric" if kind in (pl.UInt64, pl.Int128) else "bigint"
    return "double precision" if kind.is_float() else "boolean" if kind == pl.Boolean else "text"
