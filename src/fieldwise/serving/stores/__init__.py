"""Where features of users and items come from when a request does not bring them: memory, Redis, PostgreSQL.

A `FeatureStore` has rows by id. A `Lookup` guards one: queries that are joined, a time limit, a
circuit breaker and a quarantine. `Stores` completes requests: given values take precedence, missing
ones are null and reported, or an error.
"""

import asyncio
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import polars as pl

from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.chunked_table import SlicedTable
from fieldwise.errors import ConfigError, FieldwiseError, first_line
from fieldwise.schema import MISSING_MARKS, Field
from fieldwise.scoring.items import checked_ids
from fieldwise.serving.rows import FAULTS, RequestError, plain_table, text_of, values_of

T = TypeVar("T")
Reason = Literal["slow", "gone", "paused", "damaged"]
OnFailure = Literal["degrade", "refuse"]
Row = Mapping[str, Any]
Rows = dict[str, Row | None]

UNREADABLE: Row = MappingProxyType({})  # stands for a row that exists and cannot be read
NOT_OURS = (
    "is something that fieldwise store load did not write, and stays as it is: use another name"
)
BATCH = 5000  # rows of a load that are written at once
WHY: Mapping[Reason, str] = {
    "slow": "did not answer in time",
    "gone": "cannot be reached",
    "paused": "failed a moment ago and will be retried soon",
    "damaged": "has unreadable data",
}
# consecutive failures after which a store is paused, and for how long
FAILURES = 3
PAUSE_S = 1.0
# how long a failing id is not asked for, and how many one lookup then asks for
QUARANTINE_S = 10.0
RETRIES = 4
# maximum concurrent queries, and ids after which a query accepts no further lookup
QUERIES = 2
MAX_IDS = 5000
ISOLATION = 20  # time limits in which the ids that make a query fail must be found
# a time limit is counted in steps, so that delays of a busy process are not blamed on the store
STEPS = 10
log = logging.getLogger("fieldwise.serving")


class StoreError(Exception):
    """A store's failure: a `Reason`, and a message for the server's log only, without credentials."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class FeatureStore(ABC):
    """Rows by the id of a user or an item, with plain values: text, numbers, booleans, null, and lists of these."""

    kind: str  # such as `redis`
    column: str  # of ids
    columns: Sequence[str] = ()  # of its rows, known after `open`
    count: int | None = None  # of its rows; None if they are not counted

    async def open(self) -> None:  # noqa: B027  # memory has nothing to connect
        """Connect and check the table; ConfigError, without credentials, if it cannot be read."""

    @abstractmethod
    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """The rows of some ids, in order, with at least these columns; None for an unknown id.

        Without ids, a health check. If the store fails, a StoreError, or one of its client's
        `failures`.
        """

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """The ids that begin with a text, sorted, from `offset` on (none if it cannot search), and their number."""
        return [], None

    def position(self, one: str) -> int | None:
        """The position of an id among all, if they are counted."""
        return None

    async def close(self) -> None:  # noqa: B027
        """Close the connections."""


class TableStore(FeatureStore):
    """Rows of a table in memory, one per id, sorted by id; with `positions` of text ids, neither checked nor sorted.

    >>> import asyncio
    >>> store = TableStore("user", pl.DataFrame({"user": [3, 4], "country": ["FI", None]}))
    >>> asyncio.run(store.get(["4", "5"]))
    [{'user': '4', 'country': None}, None]
    """

    kind = "memory"

    def __init__(
        self, column: str, rows: pl.DataFrame, positions: Mapping[str, int] | None = None
    ) -> None:
        if positions is None:
            ids = checked_ids(rows, column, "rows", "--user-id or --item-id")
            rows = plain_table(rows.with_columns(ids))[rows.get_column(column).arg_sort()]
            positions = {name: row for row, name in enumerate(rows.get_column(column))}
        else:
            rows = plain_table(rows)
        self.column = column
        self.columns = rows.columns
        self.count = len(positions)
        self._rows = rows
        self._positions = positions

    async def get(
        self, ids: Sequence[str], columns: Collection[str] | None = None
    ) -> list[Row | None]:
        """As in the base class, with all columns."""
        rows = map(self._positions.get, ids)
        return [None if row is None else self._rows.row(row, named=True) for row in rows]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As in the base class, without regard to case."""
        result = self._rows.get_column(self.column).filter(
            self._lower_case.str.starts_with(prefix.lower())
        )
        return result.slice(offset, limit).to_list(), len(result)

    @cached_property
    def _lower_case(self) -> pl.Series:  # kept: a million ids take 30 ms
        return self._rows.get_column(self.column).str.to_lowercase()

    def position(self, one: str) -> int | None:
        """As in the base class."""
        return self._positions.get(one)


class RemoteStore(FeatureStore):
    """A table on a server; of its address only `shown` is displayed, without credentials and options."""

    # of the client, if the server does not answer, or refuses
    failures: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, url: str, table: str, column: str) -> None:
        self.url = url
        self.table = table
        self.column = column
        parts = urlsplit(url)
        self.shown = (
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}#{table}"
        )
        self._secrets = [secret for secret in (parts.password, parts.username) if secret]
        self._connections = AsyncExitStack()

    async def open(self) -> None:
        """Connect and check the table."""
        try:
            known = await self.connect()
        except FieldwiseError:
            raise
        except self.failures as e:
            raise ConfigError(
                f"{self.shown} must answer and let its user read: {self.redacted(e)}; check address, user, password "
                "and permissions"
            ) from None
        if known is None:
            raise ConfigError(
                f"{self.shown} holds no table of this name: write it with fieldwise store load"
            )
        if self.column not in known:
            raise ConfigError(
                f"{self.shown} must have the id column {self.column!r}: {nearest(self.column, known)}"
            )

    @abstractmethod
    async def connect(self) -> Collection[str] | None:
        """Connect, and return the columns that may have the ids; None if there is no table."""

    @abstractmethod
    def load(self, empty: pl.DataFrame, batches: Iterator[pl.DataFrame], count: int) -> int | None:
        """Replace the table, or leave it if killed; returns its former number of rows, None if there was none."""

    def redacted(self, error: BaseException) -> str:
        """The first line of a client's error message, without the user's name and the password."""
        text = re.sub(
            r'\b(user|role)( name)? "[^"]*"', r'\1\2 "***"', first_line(error)
        )  # also the system's user
        for secret in self._secrets:
            for form in (secret, unquote(secret)):
                text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", text)
        return text

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.aclose()


def open_store(address: str, column: str, default: str | None = None) -> RemoteStore:
    """The store at `SCHEME://[USER:PASSWORD@]HOST[:PORT]/DATABASE[?OPTIONS][#TABLE]`, not connected yet.

    >>> open_store("redis://me:secret@localhost:6379/0#users", "user_id").shown
    'redis://localhost:6379/0#users'
    """
    scheme = address.partition("://")[0].lower()
    if "://" not in address or scheme not in ("redis", "rediss", "postgresql", "postgres"):
        raise ConfigError(
            "a store's address begins with redis://, rediss://, postgresql:// or postgres://"
        )
    try:
        parts = urlsplit(address)
        # an invalid `port` raises a ValueError
        if "@" in f"{parts.path}{parts.query}{parts.fragment}{parts.port}":
            raise ValueError
    except ValueError:  # never show the address: it holds a password
        raise ConfigError(
            f"a store's address must be {scheme}://USER:PASSWORD@HOST:PORT/DATABASE#TABLE: write the characters "
            "/ # ? @ : % of a password as %2F %23 %3F %40 %3A %25"
        ) from None
    table = unquote(parts.fragment) or default
    if not table:
        raise ConfigError(
            f"a store's address must name the table, as in {scheme}://HOST/DATABASE#users"
        )
    url = parts._replace(fragment="").geturl()
    if scheme in ("redis", "rediss"):
        from fieldwise.serving.stores.redis import RedisStore

        return RedisStore(url, table, column)
    from fieldwise.serving.stores.postgres import PostgresStore

    return PostgresStore(url, table, column)


def load_table(table: SlicedTable, store: RemoteStore) -> dict[str, Any]:
    """Write a table with one row per id into a store; readers see either the old or the new table, never a mixture.

    Returns:
        `rows`: their number; `before`: the number of those replaced, None if there was no table;
        `columns`.
    """
    column = store.column
    checked_ids(table.empty, column, "rows", "--id")
    ids = checked_ids(
        pl.concat([table.empty.select(column), *table.slices([column], BATCH)]), column
    )
    empty = plain_table(table.empty).with_columns(pl.lit(None, pl.String).alias(column))

    def batches() -> Iterator[pl.DataFrame]:
        first = 0
        for part in table.slices(empty.columns, BATCH):
            yield plain_table(part, first_row=first).with_columns(as_text(part.get_column(column)))
            first += part.height

    try:
        before = store.load(empty, batches(), len(ids))
    except FieldwiseError:
        raise
    except store.failures as e:
        raise ConfigError(
            f"{store.shown} was not written: {store.redacted(e)}; the old table stays"
        ) from None
    return {"rows": len(ids), "before": before, "columns": empty.columns}


class Lookup:
    """A store with a time limit, a circuit breaker and a quarantine.

    Lookups that arrive while two queries are running are joined in the next one. After three
    consecutive failures the store is paused: lookups fail at once, and one query per second is
    tried until one succeeds.

    If a query fails while the store answers another one, each of its ids is asked for alone. The
    rows of ids that fail again are `UNREADABLE`: such an id is not asked for again for ten seconds,
    then alone. This pauses no store.
    """

    def __init__(self, name: str, store: FeatureStore, *, timeout: float = 0.1) -> None:
        # `users` or `items`; seconds of a query
        self.name = name
        self.store = store
        self.timeout = timeout
        # or the reason of the last failure
        self.kind = store.kind
        self.column = store.column
        self.state = "ok"
        # name, state and seconds of each query
        self.observe: Callable[[str, str, float], object] = lambda *_: None
        self._failures = 0
        self._retry_at = 0.0
        self._quarantine: dict[str, float] = {}  # when an id may be asked for again
        self._columns: set[str] = set()  # all that were asked for
        self._slots = asyncio.Semaphore(QUERIES)
        self._waiting: dict[str, None] = {}  # ids of the next query
        self._next: asyncio.Task[Rows] | None = None

    async def get(self, ids: Sequence[str], columns: Iterable[str] = ()) -> list[Row | None]:
        """The store's rows of some ids, with at least the given columns, None for an unknown id; or a StoreError."""
        if self.kind == "memory":
            return await self.store.get(ids)
        self._columns.update(columns)
        now = time.monotonic()
        rows: Rows = {one: UNREADABLE for one in ids if one in self._quarantine}
        again = [one for one in rows if self._quarantine[one] <= now][:RETRIES]
        # other lookups do not ask for them meanwhile
        self._quarantine |= dict.fromkeys(again, now + QUARANTINE_S)
        if self._next is None or len(self._waiting) >= MAX_IDS:
            self._waiting = {}
            self._next = asyncio.create_task(self._answer(self._waiting))
        self._waiting |= dict.fromkeys(one for one in ids if one not in rows)
        joined = asyncio.shield(self._next)  # others wait for it too
        for result in await asyncio.gather(joined, *(self._answer({one: None}) for one in again)):
            rows |= result
        return [rows[one] for one in ids]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As the store's; a StoreError as for `get`. A table in memory is searched without a time limit."""
        if self.kind == "memory":
            return await self.store.search(prefix, offset, limit)
        return await self._guarded(self._in_time, self.store.search, prefix, offset, limit)

    async def _answer(self, waiting: dict[str, None]) -> Rows:
        async with self._slots:
            if waiting is self._waiting:
                self._next = None
            return await self._guarded(self._readable, list(waiting))

    async def _guarded(self, ask: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
        """Ask the store, unless it is paused, and count failures."""
        began = time.monotonic()
        if self._failures >= FAILURES and began < self._retry_at:
            self.observe(self.name, "paused", 0.0)
            raise StoreError("paused", f"not asked for {PAUSE_S:g} s after {FAILURES} failures")
        # if it is paused, this query tries, and others are refused
        self._retry_at = began + PAUSE_S
        try:
            result = await ask(*given)
        except StoreError as e:
            self.state = e.reason
            if e.reason != "damaged":  # else it answers
                self._failures = self._failures + 1
                self._retry_at = time.monotonic() + PAUSE_S
                if self._failures == FAILURES:
                    log.warning(
                        "the %s' store (%s) fails and is tried once a second: %s",
                        self.name,
                        self.kind,
                        e,
                    )
            raise
        else:
            if self._failures >= FAILURES:
                log.warning("the %s' store (%s) answers again", self.name, self.kind)
            self._failures = 0
            self.state = "ok"
            return result
        finally:
            self.observe(self.name, self.state, time.monotonic() - began)

    async def _readable(self, ids: list[str], *, alone: bool = False) -> Rows:
        """The rows of ids that are asked for together; if the store fails at them alone, of each by itself."""
        try:
            rows = await self._in_time(self.store.get, ids, self._columns)
        except StoreError as e:
            await self._in_time(self.store.get, [])  # else the store fails, not some rows
            if alone:
                log.warning(
                    "the %s' store (%s) fails at the row of %.60r: %s",
                    self.name,
                    self.kind,
                    ids[0],
                    e,
                )
                self._quarantine[ids[0]] = time.monotonic() + QUARANTINE_S
                return {ids[0]: UNREADABLE}
        else:
            for one in ids:
                self._quarantine.pop(one, None)
            return dict(zip(ids, rows, strict=True))
        results: Rows = {}
        try:
            async with asyncio.timeout(ISOLATION * self.timeout):
                for one in ids:
                    results |= await self._readable([one], alone=True)
        except TimeoutError:
            raise StoreError(
                "damaged", f"failing rows among {len(ids):,} were not found in time"
            ) from None
        return results

    async def _in_time(self, ask: Callable[..., Coroutine[Any, Any, T]], *given: Any) -> T:
        """The answer to one query."""
        task = asyncio.create_task(ask(*given))
        # retrieved, also after the limit
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            for _ in range(STEPS):
                if (await asyncio.wait({task}, timeout=self.timeout / STEPS))[0]:
                    return task.result()
            raise StoreError("slow", f"no answer within {1000 * self.timeout:g} ms")
        except StoreError:
            raise
        except FAULTS as e:
            if isinstance(self.store, RemoteStore) and isinstance(e, self.store.failures):
                raise StoreError("gone", self.store.redacted(e)) from None
            raise StoreError("damaged", f"{type(e).__name__}: {e}") from None
        finally:
            if not task.done():
                # it is not waited for; psycopg asks the server to end the query, for this time at
                # most
                task.cancel()
                asyncio.get_running_loop().call_later(PAUSE_S, task.cancel)


@dataclass(frozen=True)
class Missing:
    """Values that were missing for a response: the `columns` of `ids` in a store (`users`, `items`), taken as null."""

    store: str
    ids: list[str]
    columns: list[str]
    reason: Reason
    message: str


Enriched = tuple[list[dict[str, Any]], list[Missing]]  # rows, and what they lack


class StoreRefusedError(RequestError):
    """A request that is refused because a store failed."""

    def __init__(self, store: str, reason: Reason, place: str) -> None:
        super().__init__(
            f"the {store}' store {WHY[reason]}: retry later, or give the fields", place, 503
        )
        self.store = store
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of a server."""

    users: Lookup | None = None
    items: Lookup | None = None  # default: the items of the index
    on_failure: OnFailure = "refuse"  # the request with 503, or `degrade` the response

    @property
    def lookups(self) -> list[Lookup]:
        """Those that there are."""
        return [one for one in (self.users, self.items) if one is not None]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to each store and check it, then close the connections."""
        try:
            for one in self.lookups:
                await one.store.open()
            yield
        finally:
            for one in self.lookups:
                await one.store.close()

    async def states(self) -> dict[str, dict[str, str]]:
        """Each store's kind and current state."""
        await asyncio.gather(*(one.get([]) for one in self.lookups), return_exceptions=True)
        return {one.name: {"kind": one.kind, "state": one.state} for one in self.lookups}

    async def context(
        self,
        user: Any,
        context: Row,
        fields: Iterable[Field],
        *,
        missing: Sequence[str] = MISSING_MARKS,
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A context with the stored fields of a user (None: as it is given), and what the store lacks.

        `missing` has the marks of missing numbers, as `frame_of`.
        """
        if user is None:
            return dict(context), []
        if self.users is None:
            raise RequestError("this server has no users: give their fields as context", "user")
        column = self.users.column
        is_theirs = True
        with suppress(TypeError, ValueError):  # the error is raised when the row is read
            is_theirs = text_of(context.get(column, user)) == text_of(user)
        if not is_theirs:
            result = f"{str(user)[:60]!r}, found {str(context[column])[:60]!r}"
            raise RequestError(f"a context must be that of the user {result}", f"context.{column}")
        rows = [{**context, column: user}]
        (values,), lacks = await self._stored(self.users, rows, fields, missing, "user")
        return {column: user, **values, **context}, lacks

    async def rows(
        self,
        rows: Sequence[Row],
        fields: Sequence[Field],
        items: Lookup | None = None,
        *,
        missing: Sequence[str] = MISSING_MARKS,
    ) -> Enriched:
        """Rows with the stored values of their users and items (of `items`, if there is no store of them).

        No store is asked for a complete row. `missing` has the marks of missing numbers, as
        `frame_of`.
        """
        both = filter(None, (self.users, self.items or items))
        added = await asyncio.gather(*(self._stored(one, rows, fields, missing) for one in both))
        whole = [dict(row) for row in rows]
        for values, _ in added:
            whole = [row | more | row for row, more in zip(whole, values, strict=True)]
        return whole, [one for _, lacks in added for one in lacks]

    async def _stored(
        self,
        lookup: Lookup,
        rows: Sequence[Row],
        fields: Iterable[Field],
        marks: Sequence[str],
        place: str = "",
    ) -> Enriched:
        """The values that a store adds to each row; `place` is the part of the request with a single row's id."""
        name = lookup.name
        held = set(lookup.store.columns) - {lookup.column}
        needed = [f for f in fields if f.column in held and (f.role == "item") == (name == "items")]
        columns = {field.column for field in needed}
        ids: list[str | None] = [None] * len(rows)
        places: dict[str, str] = {}
        lacking: set[str] = set()
        for number, given in enumerate(rows):
            with suppress(TypeError, ValueError):  # the error is raised when the row is read
                if (place or not columns <= given.keys()) and (
                    one := text_of(given.get(lookup.column))
                ):
                    ids[number] = one
                    places.setdefault(one, place or f"rows[{number}].{lookup.column}")
                    lacking |= columns - given.keys()
        values: dict[str | None, dict[str, Any]] = {None: {}}
        lost: dict[tuple[str, ...], list[str]] = {}  # ids by the columns that they lack
        reason: Reason = "damaged"
        try:
            result = await lookup.get(list(places), columns) if places else []
        except StoreError as e:
            result = [UNREADABLE] * len(places)
            reason = e.reason
        for (one, where), row in zip(places.items(), result, strict=True):
            if row is None:
                who, how = (
                    ("an item", "")
                    if name == "items"
                    else ("a user", " as context" if place else "")
                )
                raise RequestError(
                    f"{who} must be known to the server, found {one[:60]!r}: give its fields{how}",
                    where,
                    404,
                )
            values[one] = _readable(row, needed, marks)
            if lacks := tuple(sorted(lacking - values[one].keys())):
                if self.on_failure == "refuse":
                    raise StoreRefusedError(name, reason, where)
                lost.setdefault(lacks, []).append(one)
                values[one] |= dict.fromkeys(lacks)
        missing = []
        for lacks, some in lost.items():
            message = f"the {name}' store {WHY[reason]}: {', '.join(lacks)} taken as null"
            missing.append(Missing(name, some, list(lacks), reason, message))
        return [values[one] for one in ids], missing


def _readable(row: Row, fields: Sequence[Field], marks: Sequence[str]) -> dict[str, Any]:
    """The values of fields in a stored row, without the unreadable ones; dates and times of numbers are seconds."""
    values: dict[str, Any] = {}
    for field in fields if row is not UNREADABLE else ():
        value = row.get(field.column)
        with suppress(*FAULTS):
            if (
                field.cell == "number"
                and isinstance(value, str)
                and re.match(r"\d\d:|\d{4}-", value)
            ):
                moment = datetime.fromisoformat(value if value[2] != ":" else f"1970-01-01T{value}")
                value = math.floor(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())
            present = None if value != value else value  # NaN: null
            values |= values_of({field.column: present}, [field], "stored", missing=marks)
    return values
