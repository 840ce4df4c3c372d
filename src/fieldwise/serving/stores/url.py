"""Addresses of stores: `redis://HOST/0#users`, `postgresql://HOST/DATABASE#users`, or a file."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.serving.stores.base import FeatureStore
from fieldwise.serving.stores.table import TableStore

__all__ = ["StoreURL", "open_store"]

KINDS: dict[str, Literal["redis", "postgresql"]] = {
    "redis": "redis",
    "rediss": "redis",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}


@dataclass(frozen=True, kw_only=True)
class StoreURL:
    """A parsed store address.

    Args:
        kind: the kind of store.
        url: the client's connection address, with credentials and options; never displayed.
        table: PostgreSQL's table (`users`, `schema.users`), or the prefix of Redis keys.
        shown: the address without credentials and options, for messages.
    """

    kind: Literal["redis", "postgresql"]
    url: str = field(repr=False)
    table: str
    shown: str

    def told(self, error: Exception) -> str:
        """The first line of a client's error message, without the user's name and the password."""
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        parts = urlsplit(self.url)
        for secret in {parts.password, unquote(parts.password)} if parts.password else ():
            text = text.replace(secret, "***")
        text = re.sub(r'\b(user|role)( name)? "[^"]*"', r'\1\2 "***"', text)  # also the system's, if none is given
        for secret in {parts.username, unquote(parts.username)} if parts.username else ():
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
        return text

    @classmethod
    def parse(cls, text: str, default: str | None = None) -> "StoreURL":
        """The parts of an address.

        Args:
            text: `SCHEME://[USER:PASSWORD@]HOST[:PORT]/DATABASE[?OPTIONS][#TABLE]`.
            default: the table if the address has none.

        Errors:
            ConfigError: an invalid address, or no table in it.

        >>> StoreURL.parse("redis://me:secret@localhost:6379/0#users")
        StoreURL(kind='redis', table='users', shown='redis://localhost:6379/0#users')
        """
        scheme = text.partition("://")[0].lower()
        if "://" not in text or scheme not in KINDS:
            raise ConfigError("a store's address begins with redis://, rediss://, postgresql:// or postgres://")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = None, None
        if (
            parts is None or "@" in parts.path + parts.query + parts.fragment
        ):  # never show the text: it holds a password
            raise ConfigError(
                f"a store's address must be {scheme}://USER:PASSWORD@HOST:PORT/DATABASE#TABLE: write the characters "
                "/ # ? @ : % of a password as %2F %23 %3F %40 %3A %25"
            )
        table = unquote(parts.fragment) or default
        if not table:
            raise ConfigError(f"a store's address must name the table, as in {scheme}://HOST/DATABASE#users")
        where = (parts.hostname or "") + (f":{port}" if port else "") + unquote(parts.path)
        return cls(
            kind=KINDS[scheme],
            url=parts._replace(fragment="").geturl(),
            table=table,
            shown=f"{scheme}://{where}#{table}",
        )


def open_store(source: str, column: str, default: str) -> FeatureStore:
    """The store that an address or a file names; it is not connected yet.

    Args:
        source: an address, or the path of a table, which is read into memory.
        column: which column names a user, or an item.
        default: the table where the address names none.

    Errors:
        ConfigError: no such address.
        DataError: the file cannot be read, or names an id twice.
        MissingExtraError: the store's client is not installed.
    """
    if "://" not in source:
        try:
            return TableStore(column, as_table(Path(source)))
        except DataError as e:
            raise DataError(f"{source}: {e}") from None
    address = StoreURL.parse(source, default)
    if address.kind == "redis":
        from fieldwise.serving.stores.redis_store import RedisStore

        return RedisStore(address, column)
    from fieldwise.serving.stores.postgres_store import PostgresStore

    return PostgresStore(address, column)
