"""Lookups in feature stores, and requests enriched by them.

A lookup is joined into queries, with a time limit, a circuit breaker and a quarantine. Given values take precedence
over stored ones; missing ones are null and told, or an error.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from fieldwise.schema import Field
from fieldwise.serving.rows import FAULTS, RequestError, text_of, values_of
from fieldwise.serving.stores.feature_store import UNREADABLE, FeatureStore, Reason, Row, StoreError, TableStore

__all__ = ["WHY", "Lookup", "Missing", "OnFailure", "StoreRefusedError", "Stores"]

T = TypeVar("T")
Ask = Callable[..., Coroutine[Any, Any, T]]
Rows = dict[str, Row | None]
OnFailure = Literal["degrade", "refuse"]
Given = Mapping[str, Any]  # values of a request by column
WHY: Mapping[Reason, str] = {
    "slow": "did not answer in time",
    "gone": "cannot be reached",
    "paused": "failed a moment ago and will be retried soon",
    "damaged": "has unreadable data",
}
FAILURES, PAUSE_S = 3, 1.0  # consecutive failures after which a store is paused, and for how long
QUARANTINE_S, RETRIES = 10.0, 4  # how long a failing id is not asked for, and how many one lookup then asks for
QUERIES, MAX_IDS = 2, 5000  # maximum concurrent queries, and ids after which a query accepts no further lookup
ISOLATION = 20  # time limits in which the ids that make a query fail must be found
STEPS = 10  # a time limit is counted in steps, so that delays of a busy process are not blamed on the store

log = logging.getLogger("fieldwise.serving")


class Lookup:
    """A store with a time limit, a circuit breaker and a quarantine.

    Lookups that arrive while two queries are running are joined in the next one. After three consecutive failures the
    store is paused: lookups fail at once, and one query per second is tried until one succeeds.

    If a query fails while the store answers another one, each of its ids is asked for alone. The rows of ids that fail
    again are `UNREADABLE`: such an id is not asked for again for ten seconds, then alone. This pauses no store.

    Args:
        name: `users` or `items`.
        store: the store itself.
        timeout: maximum seconds of a query.

    Attributes:
        state: `ok`, or the reason of the last failure.
        observe: called with name, state and seconds of each query.

    >>> import polars as pl
    >>> from fieldwise.serving.stores import TableStore
    >>> users = Lookup("users", TableStore("user", pl.DataFrame({"user": [3], "country": ["FI"]})))
    >>> asyncio.run(users.get(["3", "4"]))
    [{'user': '3', 'country': 'FI'}, None]
    """

    def __init__(self, name: str, store: FeatureStore, *, timeout: float = 0.1) -> None:
        self.name, self.store, self.timeout = name, store, timeout
        self.kind, self.column, self.state = store.kind, store.column, "ok"
        self.observe: Callable[[str, str, float], object] = lambda *_: None
        self._failures, self._retry_at = 0, 0.0
        self._quarantine: dict[str, float] = {}  # when an id may be asked for again
        self._columns: set[str] = set()  # all that were asked for
        self._slots = asyncio.Semaphore(QUERIES)
        self._waiting: dict[str, None] = {}  # ids of the next query
        self._next: asyncio.Task[Rows] | None = None

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the store's rows."""
        return self.store.columns

    async def get(self, ids: Sequence[str], columns: Iterable[str] = ()) -> list[Row | None]:
        """The store's rows of some ids, with at least the given columns; None for an unknown id.

        Errors:
            StoreError: the store failed, did not answer in time, or is paused.
        """
        if self.kind == "memory":
            return await self.store.get(ids)
        self._columns.update(columns)
        now = time.monotonic()
        rows: Rows = {one: UNREADABLE for one in ids if one in self._quarantine}
        again = [one for one in rows if self._quarantine[one] <= now][:RETRIES]
        self._quarantine |= dict.fromkeys(again, now + QUARANTINE_S)  # other lookups do not ask for them meanwhile
        joined = self._joined([one for one in ids if one not in rows])
        alone = (self._answer({one: None}) for one in again)
        for found in await asyncio.gather(joined, *alone) if again else [await joined]:
            rows |= found
        return [rows[one] for one in ids]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As the store's; a StoreError as for `get`. A table in memory is searched without a time limit."""
        if isinstance(self.store, TableStore):
            return await self.store.search(prefix, offset, limit)
        return await self._guarded(self._in_time, self.store.search, prefix, offset, limit)

    async def _joined(self, ids: list[str]) -> Rows:
        """The rows of at least these ids, from a query that other lookups share."""
        if self._next is None or len(self._waiting) >= MAX_IDS:
            self._waiting = {}
            self._next = asyncio.create_task(self._answer(self._waiting))
        self._waiting |= dict.fromkeys(ids)
        return await asyncio.shield(self._next)  # others wait for it too

    async def _answer(self, waiting: dict[str, None]) -> Rows:
        async with self._slots:
            if waiting is self._waiting:
                self._next = None
            return await self._guarded(self._readable, list(waiting))

    async def _guarded(self, ask: Ask[T], *given: Any) -> T:
        """Ask the store, unless it is paused, and count failures."""
        began = time.monotonic()
        if self._failures >= FAILURES:
            if began < self._retry_at:
                self.observe(self.name, "paused", 0.0)
                raise StoreError("paused", f"not asked for {PAUSE_S:g} s after {FAILURES} failures")
            self._retry_at = began + PAUSE_S  # this query tries, others are refused
        try:
            found = await ask(*given)
        except StoreError as e:
            self.state = e.reason
            if e.reason != "damaged":  # else it answers
                self._failures, self._retry_at = self._failures + 1, time.monotonic() + PAUSE_S
                if self._failures == FAILURES:
                    log.warning("the %s' store (%s) fails and is tried once a second: %s", self.name, self.kind, e)
            raise
        else:
            if self._failures >= FAILURES:
                log.warning("the %s' store (%s) answers again", self.name, self.kind)
            self._failures, self.state = 0, "ok"
            return found
        finally:
            self.observe(self.name, self.state, time.monotonic() - began)

    async def _readable(self, ids: list[str], *, alone: bool = False) -> Rows:
        """The rows of ids that are asked for together; if the store fails at them alone, of each by itself."""
        try:
            rows = await self._in_time(self.store.get, ids, self._columns)
        except StoreError as e:
            await self._in_time(self.store.get, [])  # else the store fails, not some rows
            if alone:
                log.warning("the %s' store (%s) fails at the row of %.60r: %s", self.name, self.kind, ids[0], e)
                self._quarantine[ids[0]] = time.monotonic() + QUARANTINE_S
                return {ids[0]: UNREADABLE}
        else:
            for one in ids:
                self._quarantine.pop(one, None)
            return dict(zip(ids, rows, strict=True))
        found: Rows = {}
        try:
            async with asyncio.timeout(ISOLATION * self.timeout):
                for one in ids:
                    found |= await self._readable([one], alone=True)
        except TimeoutError:
            raise StoreError("damaged", f"failing rows among {len(ids):,} were not found in time") from None
        return found

    async def _in_time(self, ask: Ask[T], *given: Any) -> T:
        """The answer to one query."""
        task = asyncio.create_task(ask(*given))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved, also after the limit
        try:
            for _ in range(STEPS):
                if (await asyncio.wait({task}, timeout=self.timeout / STEPS))[0]:
                    return task.result()
            raise StoreError("slow", f"no answer within {1000 * self.timeout:g} ms")
        except StoreError:
            raise
        except FAULTS as e:
            raise StoreError("damaged", f"{type(e).__name__}: {e}") from None
        finally:
            if not task.done():
                task.cancel()  # it is not waited for; psycopg asks the server to end the query, for this time at most
                asyncio.get_running_loop().call_later(PAUSE_S, task.cancel)


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Values that were missing for a response: the `columns` of `ids` in a store (`users`, `items`), taken as null."""

    store: str
    ids: list[str]
    columns: list[str]
    reason: Reason
    message: str


Enriched = tuple[list[dict[str, Any]], list[Missing]]  # rows, and what they lack


class StoreRefusedError(RequestError):
    """A request that is rejected with 503 because a store failed."""

    def __init__(self, store: str, reason: Reason, place: str) -> None:
        super().__init__(f"the {store}' store {WHY[reason]}: retry later, or give the fields", place, 503)
        self.store, self.reason = store, reason


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of a server.

    Args:
        users: the store of users by id.
        items: the store of items by id; default: the items of the index.
        on_failure: what follows if a store fails: `refuse` the request with 503, or `degrade` the response.
    """

    users: Lookup | None = None
    items: Lookup | None = None
    on_failure: OnFailure = "refuse"

    @property
    def lookups(self) -> list[Lookup]:
        """The configured stores."""
        return [one for one in (self.users, self.items) if one is not None]

    async def open(self) -> None:
        """Connect to each store and check it."""
        for one in self.lookups:
            await one.store.open()

    async def close(self) -> None:
        """Close connections."""
        for one in self.lookups:
            await one.store.close()

    async def states(self) -> dict[str, dict[str, str]]:
        """Each store's kind and current state."""
        await asyncio.gather(*(one.get([]) for one in self.lookups), return_exceptions=True)
        return {one.name: {"kind": one.kind, "state": one.state} for one in self.lookups}

    async def context(self, user: Any, context: Given, fields: Iterable[Field]) -> tuple[dict[str, Any], list[Missing]]:
        """A context with the fields of a user; None for a context that names none.

        Errors:
            RequestError: an unknown user (404); no store of users (422); a store that fails (503).
        """
        if user is None:
            return dict(context), []
        if self.users is None:
            raise RequestError("this server has no users: give their fields as context", "user")
        row = {**context, self.users.column: user}
        (values,), missing = await self._stored("users", self.users, [row], fields, "user")
        return {self.users.column: user, **values, **context}, missing

    async def rows(self, rows: Sequence[Given], fields: Sequence[Field], items: FeatureStore | None = None) -> Enriched:
        """Rows with the stored values of their users and items; no store is asked for a complete row.

        Args:
            rows: given values by column.
            fields: a model's fields.
            items: used if there is no store of items.

        Errors:
            RequestError: as for `context`.
        """
        both = {"users": self.users, "items": self.items or items}
        added = await asyncio.gather(
            *(self._stored(name, store, rows, fields) for name, store in both.items() if store is not None)
        )
        whole = [dict(row) for row in rows]
        for values, _ in added:
            whole = [row | more | row for row, more in zip(whole, values, strict=True)]
        return whole, [one for _, missing in added for one in missing]

    async def _stored(
        self, name: str, store: Lookup | FeatureStore, rows: Sequence[Given], fields: Iterable[Field], place: str = ""
    ) -> Enriched:
        """The values that one store adds to each row; `place` is the part of the request with a single row's id."""
        held = set(store.columns) - {store.column}
        needed = [f for f in fields if f.column in held and (f.role == "item") == (name == "items")]
        columns = {field.column for field in needed}
        ids = [_id_of(row, store.column) if place or not columns <= row.keys() else None for row in rows]
        places: dict[str, str] = {}
        for number, one in enumerate(ids):
            if one is not None:
                places.setdefault(one, place or f"rows[{number}].{store.column}")
        lacking = {c for row, one in zip(rows, ids, strict=True) if one is not None for c in columns - row.keys()}
        values: dict[str | None, dict[str, Any]] = {None: {}}
        try:
            found = await store.get(list(places), columns) if places else []
        except StoreError as e:
            missing = self._missing(name, places, lacking, e.reason)
            return [dict.fromkeys(lacking) if one else {} for one in ids], missing
        missing = []
        for (one, where), row in zip(places.items(), found, strict=True):
            if row is None:
                who, how = ("an item", "") if name == "items" else ("a user", " as context" if place else "")
                raise RequestError(
                    f"{who} must be known to the server, found {one[:60]!r}: give its fields{how}", where, 404
                )
            values[one] = _readable(row, needed)
            damaged = lacking - values[one].keys()
            missing += self._missing(name, {one: where}, damaged, "damaged")
            values[one] |= dict.fromkeys(damaged)
        return [values[one] for one in ids], missing

    def _missing(self, store: str, places: Mapping[str, str], columns: set[str], reason: Reason) -> list[Missing]:
        """A report of missing columns, if there are any and degraded responses are allowed."""
        if not columns:
            return []
        if self.on_failure == "refuse":
            raise StoreRefusedError(store, reason, next(iter(places.values())))
        message = f"the {store}' store {WHY[reason]}: {', '.join(sorted(columns))} taken as null"
        return [Missing(store=store, ids=list(places), columns=sorted(columns), reason=reason, message=message)]


def _readable(row: Row, fields: Sequence[Field]) -> dict[str, Any]:
    """The values of fields in a stored row, without the unreadable ones."""
    values: dict[str, Any] = {}
    for field in fields if row is not UNREADABLE else ():
        value = row.get(field.column)
        if value != value:  # NaN
            value = None
        elif field.cell == "number" and isinstance(value, str):
            value = _number(value)
        with suppress(*FAULTS):
            values |= values_of({field.column: value}, [field], "stored")
    return values


def _number(text: str) -> Any:
    """A stored date or time as seconds, as numeric fields read it from tables; other text unchanged."""
    with suppress(ValueError):
        if text[2:3] == ":" or text[4:5] == "-":
            moment = datetime.fromisoformat(f"1970-01-01T{text}" if text[2] == ":" else text)
            return math.floor((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    return text


def _id_of(row: Given, column: str) -> str | None:
    with suppress(TypeError, ValueError):  # the error is raised when the row is read
        return text_of(row.get(column)) or None
    return None
