"""Feature stores: rows by the id of a user or an item, from memory, Redis or PostgreSQL; opened, or loaded by a table.

A store on a server has an address, `redis://HOST/0#users` or `postgresql://HOST/DATABASE#users`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.chunked_table import SlicedTable
from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.scoring.items import checked_ids
from fieldwise.serving.plain_values import plain_table

__all__ = ["UNREADABLE", "FeatureStore", "Reason", "RemoteStore", "Row", "StoreError", "StoreURL", "TableStore"]
__all__ += ["load_table", "open_store"]

Reason = Literal["slow", "gone", "paused", "damaged"]
Row = Mapping[str, Any]
UNREADABLE: Row = MappingProxyType({})  # stands for a row that exists and cannot be read
KINDS = {"redis": "redis", "rediss": "redis", "postgresql": "postgresql", "postgres": "postgresql"}
BATCH = 5000  # rows


class StoreError(Exception):
    """A store did not answer in time (`slow`), or at all (`gone`), is not asked (`paused`), or is `damaged`.

    The message is for the server's log only, and has no credentials.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FeatureStore(ABC):
    """Rows by the id of a user or an item, with plain values: text, numbers, booleans, null, and lists of these.

    Attributes:
        kind: the kind of store, such as `redis`.
        column: the column of ids.
        columns: the columns of its rows, known after `open`.
        count: the number of its rows; None if they are not counted.
    """

    kind: str
    column: str
    columns: Sequence[str] = ()
    count: int | None = None

    async def open(self) -> None:  # noqa: B027  # memory has nothing to connect
        """Connect and check the table; ConfigError, without credentials, if it cannot be read."""

    @abstractmethod
    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of some ids, in order, with at least these columns; None for an unknown id.

        Without ids, a health check. A StoreError if the store fails.
        """

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """The ids that begin with a text, from position `offset` on, and their number (None if not counted).

        No ids if the store cannot search.
        """
        return [], None

    def position(self, one: str) -> int | None:
        """The position of an id among all, if they are counted."""
        return None

    async def close(self) -> None:  # noqa: B027
        """Close the connections."""


class TableStore(FeatureStore):
    """Rows of a table in memory.

    Args:
        column: the column of user or item ids.
        rows: one row per user or item.
        positions: the row of each id, if it is known: the ids are then text and not checked.

    Errors:
        DataError: no such column, a duplicate id, values that are invalid in requests.

    >>> import asyncio
    >>> store = TableStore("user", pl.DataFrame({"user": [3, 4], "country": ["FI", None]}))
    >>> asyncio.run(store.get(["4", "5"]))
    [{'user': '4', 'country': None}, None]
    """

    kind = "memory"

    def __init__(self, column: str, rows: pl.DataFrame, positions: Mapping[str, int] | None = None) -> None:
        if positions is None:
            ids = checked_ids(rows, column, "rows", "--user-id or --item-id")
            rows, positions = rows.with_columns(ids), {name: row for row, name in enumerate(ids)}
        self.column, self.columns = column, rows.columns
        self._rows, self._positions = plain_table(rows), positions
        self.count = len(positions)

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The rows of some ids with all columns, None for an unknown one."""
        rows = map(self._positions.get, ids)
        return [None if row is None else self._rows.row(row, named=True) for row in rows]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, without regard to case, in the table's order."""
        found = self._rows.get_column(self.column).filter(self._lower_case.str.starts_with(prefix.lower()))
        return found.slice(offset, limit).to_list(), len(found)

    @cached_property
    def _lower_case(self) -> pl.Series:
        return self._rows.get_column(self.column).str.to_lowercase()

    def position(self, one: str) -> int | None:
        """The row of an id."""
        return self._positions.get(one)


@dataclass(frozen=True, kw_only=True)
class StoreURL:
    """A parsed address: the client's `url`, never displayed, and what is `shown`, without credentials and options."""

    kind: str
    url: str = field(repr=False)
    table: str
    shown: str

    @classmethod
    def parse(cls, text: str, default: str | None = None) -> "StoreURL":
        """The parts of `SCHEME://[USER:PASSWORD@]HOST[:PORT]/DATABASE[?OPTIONS][#TABLE]`; `default` is the table.

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
            host = (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
            if "@" in parts.path + parts.query + parts.fragment:
                raise ValueError
        except ValueError:  # never show the text: it holds a password
            raise ConfigError(
                f"a store's address must be {scheme}://USER:PASSWORD@HOST:PORT/DATABASE#TABLE: write the characters "
                "/ # ? @ : % of a password as %2F %23 %3F %40 %3A %25"
            ) from None
        table = unquote(parts.fragment) or default
        if not table:
            raise ConfigError(f"a store's address must name the table, as in {scheme}://HOST/DATABASE#users")
        shown = f"{scheme}://{host}{unquote(parts.path)}#{table}"
        return cls(kind=KINDS[scheme], url=parts._replace(fragment="").geturl(), table=table, shown=shown)

    @property
    def store(self) -> "type[RemoteStore]":
        """The class of stores of this kind; a MissingExtraError if its client is not installed."""
        if self.kind == "redis":
            from fieldwise.serving.stores.redis import RedisStore

            return RedisStore
        from fieldwise.serving.stores.postgres import PostgresStore

        return PostgresStore

    def redacted(self, error: Exception) -> str:
        """The first line of a client's error message, without the user's name and the password."""
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        text = re.sub(r'\b(user|role)( name)? "[^"]*"', r'\1\2 "***"', text)  # also the system's, if none is given
        parts = urlsplit(self.url)
        for secret in filter(None, (parts.password, parts.username)):
            for form in (secret, unquote(secret)):
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
        return text


class RemoteStore(FeatureStore):
    """A table on a server; `column` has the ids.

    Attributes:
        failures: what its client raises if the server does not answer, or refuses.
    """

    failures: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, address: StoreURL, column: str) -> None:
        self.address, self.column = address, column

    async def open(self) -> None:
        """Connect and check the table."""
        try:
            await self.connect()
        except FieldwiseError:
            raise
        except self.failures as e:
            raise ConfigError(
                f"{self.address.shown} must answer: {self.address.redacted(e)}; check address, user and password"
            ) from None

    @abstractmethod
    async def connect(self) -> None:
        """`open`, whose `failures` become a ConfigError."""

    @staticmethod
    @abstractmethod
    def load(address: StoreURL, column: str, empty: pl.DataFrame, batches: Iterator[pl.DataFrame]) -> int | None:
        """Write rows and replace the table by them; returns its former number of rows, None if there was none.

        A load that is killed leaves the old table.
        """


def open_store(address: str, column: str, default: str) -> FeatureStore:
    """The store at an address, not connected yet; `column` has the ids, and `default` is the table if none is named.

    Errors:
        ConfigError: an invalid address.
        MissingExtraError: the store's client is not installed.
    """
    url = StoreURL.parse(address, default)
    return url.store(url, column)


class Loaded(NamedTuple):
    """The number of rows written and of those replaced (None: there was no table), and the columns."""

    rows: int
    before: int | None
    columns: list[str]


def load_table(table: SlicedTable, address: StoreURL, column: str) -> Loaded:
    """Write a table with one row per id into a store; readers see either the old or the new table, never a mixture.

    Errors:
        DataError: no such column, a duplicate id, a value that is invalid in requests or in the store.
        ConfigError: no connection, no permission to write, or another object of this name in the store.
        MissingExtraError: the store's client is not installed.
    """
    checked_ids(table.empty, column, "rows", "--id")
    ids = checked_ids(pl.concat([table.empty.select(column), *table.slices([column], BATCH)]), column, "rows", "--id")
    empty = plain_table(table.empty).with_columns(pl.lit(None, pl.String).alias(column))

    def batches() -> Iterator[pl.DataFrame]:
        first = 0
        for part in table.slices(empty.columns, BATCH):
            yield plain_table(part, first_row=first).with_columns(as_text(part.get_column(column)))
            first += part.height

    try:
        before = address.store.load(address, column, empty, batches())
    except FieldwiseError:
        raise
    except address.store.failures as e:
        raise ConfigError(f"{address.shown} was not written: {address.redacted(e)}; the old table stays") from None
    return Loaded(len(ids), before, empty.columns)
