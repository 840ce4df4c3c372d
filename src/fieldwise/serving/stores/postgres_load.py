"""Writes tables into PostgreSQL: copies the rows into a new table and renames it, in one transaction."""

import secrets
from typing import Any

import polars as pl

from fieldwise.errors import ConfigError, DataError, MissingExtraError
from fieldwise.serving.stores.load import Source
from fieldwise.serving.stores.postgres_store import table_name
from fieldwise.serving.stores.url import StoreURL

try:
    import psycopg
    from psycopg import Connection, sql
except ImportError as e:
    raise MissingExtraError(f"features for PostgreSQL need {e.name}: pip install 'fieldwise[postgresql]'") from None

__all__ = ["load_postgres"]

MARK = "fieldwise store, rows: "  # comment of a table that fieldwise may replace
LOCK = 5  # maximum seconds to wait for other readers of the table
OLD = """
    SELECT c.oid, obj_description(c.oid, 'pg_class') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s
"""
GRANTS = """
    SELECT coalesce(r.rolname, 'public'), a.grantee = 0, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a
    LEFT JOIN pg_roles r ON r.oid = a.grantee WHERE c.oid = %s AND a.grantee <> c.relowner
"""


def load_postgres(source: Source, address: StoreURL) -> int | None:
    """Write the rows into a new table and replace the old one with it; returns the old table's number of rows.

    The new table keeps the old table's privileges. Readers see the old table until the end; a load that is killed
    leaves it unchanged.

    Errors:
        ConfigError: there is no connection or no write permission, another load is running, or a table of this name
            was not written by fieldwise.
        DataError: PostgreSQL cannot hold a text, or would truncate a column name.
    """
    table_name(address)
    for column in source.empty.columns:
        if len(column.encode()) > 63 or "\0" in column or not column:
            raise DataError(f"a column name in PostgreSQL must have 1 to 63 bytes, found {column!r}: rename it")
    try:
        with psycopg.connect(address.url, connect_timeout=5) as connection:
            return _replace(connection, source, address)
    except psycopg.errors.LockNotAvailable:
        raise ConfigError(
            f"{address.shown} was in use for more than {LOCK} s: nothing was changed, try again later"
        ) from None
    except psycopg.DataError as e:
        raise DataError(f"PostgreSQL cannot hold a value of the table: {address.told(e)}; correct it") from None
    except (psycopg.Error, OSError) as e:
        raise ConfigError(f"{address.shown} was not written: {address.told(e)}") from None


def _replace(connection: Connection[Any], source: Source, address: StoreURL) -> int | None:
    *given, name = address.table.split(".")
    connection.execute(f"SET LOCAL lock_timeout = '{LOCK}s'")
    schema = given[0] if given else _one(connection, "SELECT current_schema()")[0]
    if not _one(connection, "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", f"{schema}.{name}")[0]:
        raise ConfigError(f"only one load may run at a time, and another one writes {address.shown}: wait for its end")
    old, comment = _one(connection, OLD, schema, name) or (None, None)
    if old is not None and not str(comment).startswith(MARK):
        raise ConfigError(
            f"{address.shown} is a table that fieldwise store load did not write, and stays as it is: use another name"
        )
    place, new = sql.Identifier(schema, name), sql.Identifier(schema, f"fieldwise_{secrets.token_hex(8)}")
    _fill(connection, source, new)
    if old is not None:
        for grantee, everyone, privilege in connection.execute(GRANTS, (old,)).fetchall():
            to = sql.SQL("PUBLIC") if everyone else sql.Identifier(grantee)
            connection.execute(sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privilege), new, to))
        connection.execute(sql.SQL("DROP TABLE {}").format(place))
    connection.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(new, sql.Identifier(name)))
    connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(place, sql.Literal(f"{MARK}{source.rows}")))
    return None if old is None else int(str(comment).removeprefix(MARK))


def _fill(connection: Connection[Any], source: Source, new: sql.Identifier) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_type(kind)))
        for name, kind in source.empty.schema.items()
    )
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(new, columns))
    names = sql.SQL(", ").join(map(sql.Identifier, source.empty.columns))
    with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN").format(new, names)) as copy:
        for batch in source.batches():
            for row in batch.select(source.empty.columns).iter_rows():
                copy.write_row(row)
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({})").format(new, sql.Identifier(source.column)))
    connection.execute(sql.SQL("ANALYZE {}").format(new))


def _type(kind: Any) -> str:
    """The PostgreSQL type of a plain column."""
    if isinstance(kind, pl.List):
        return f"{_type(kind.inner)}[]"
    if kind.is_integer():
        return "numeric" if kind in (pl.UInt64, pl.Int128) else "bigint"
    return "double precision" if kind.is_float() else "boolean" if kind == pl.Boolean else "text"


def _one(connection: Connection[Any], query: str, *parameters: Any) -> Any:
    return connection.execute(query, parameters or None).fetchone()
