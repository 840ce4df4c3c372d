"""Lookups in a feature store, guarded by a time limit, a circuit breaker and a quarantine."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from fieldwise.serving.rows import FAULTS
from fieldwise.serving.stores.base import UNREADABLE, FeatureStore, Row, StoreError

T = TypeVar("T")
Rows = dict[str, Row | None]

FAILURES_BEFORE_PAUSE = 3
"""Consecutive failures after which a store is paused."""
PAUSE_S = 1.0
QUARANTINE_S = 10.0
"""For which an id whose row cannot be read is not asked for."""
MAX_RETRIED_IDS = 4
"""Ids whose quarantine has ended that one lookup asks for again."""
MAX_CONCURRENT_QUERIES = 2
MAX_IDS_PER_QUERY = 5000
"""After which a query accepts no further lookup."""
ISOLATION_TIME_LIMITS = 20
"""Time limits in which the ids that make a query fail must be found."""
STEPS_PER_TIME_LIMIT = 10
"""A time limit is counted in steps, so that delays of a busy process are not blamed on the store."""

log = logging.getLogger("fieldwise.serving")


class Lookup:
    """A store with a time limit, a circuit breaker and a quarantine.

    Lookups that arrive while two queries are running are joined in the next one. After three
    consecutive failures the store is paused: lookups fail at once, and one query per second is
    tried until one succeeds.

    If a query fails while the store answers another one, each of its ids is asked for alone. The
    rows of ids that fail again are `UNREADABLE`: such an id is not asked for again for ten seconds,
    then alone. This pauses no store.

    Args:
        name: `users` or `items`.
        store: the guarded store.
        timeout: maximum seconds of a query.

    Attributes:
        state: `ok`, or the reason of the last failure.
        observe: called with the name, the state and the seconds of each query.
    """

    def __init__(self, name: str, store: FeatureStore, *, timeout: float = 0.1) -> None:
        self.name = name
        self.store = store
        self.timeout = timeout
        self.kind = store.kind
        self.column = store.column
        self.state = "ok"
        self.observe: Callable[[str, str, float], object] = lambda *_: None
        self._failures = 0
        self._retry_at = 0.0
        self._quarantine: dict[str, float] = {}
        """When an id may be asked for again."""
        self._columns: set[str] = set()
        """All that were asked for."""
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_QUERIES)
        self._next_ids: dict[str, None] = {}
        self._next_query: asyncio.Task[Rows] | None = None

    async def get(self, ids: Sequence[str], columns: Iterable[str] = ()) -> list[Row | None]:
        """The store's rows of some ids, with at least the given columns, None for an unknown id; or a StoreError."""
        if self.kind == "memory":
            return await self.store.get(ids)
        self._columns.update(columns)

        now = time.monotonic()
        rows: Rows = {row_id: UNREADABLE for row_id in ids if row_id in self._quarantine}
        released = [row_id for row_id in rows if self._quarantine[row_id] <= now]
        retried = released[:MAX_RETRIED_IDS]
        for row_id in retried:  # other lookups do not ask for it meanwhile
            self._quarantine[row_id] = now + QUARANTINE_S

        query = self._join_next_query([row_id for row_id in ids if row_id not in rows])
        retries = [self._query({row_id: None}) for row_id in retried]
        # shielded: others wait for the query too
        for answer in await asyncio.gather(asyncio.shield(query), *retries):
            rows |= answer
        return [rows[row_id] for row_id in ids]

    async def search(self, prefix: str, offset: int, limit: int) -> tuple[list[str], int | None]:
        """As the store's; a StoreError as for `get`. A table in memory is searched without a time limit."""
        if self.kind == "memory":
            return await self.store.search(prefix, offset, limit)
        return await self._guarded(self._in_time, self.store.search, prefix, offset, limit)

    def _join_next_query(self, ids: Iterable[str]) -> "asyncio.Task[Rows]":
        """Add ids to the query that waits for a slot, or begin another one."""
        if self._next_query is None or len(self._next_ids) >= MAX_IDS_PER_QUERY:
            self._next_ids = {}
            self._next_query = asyncio.create_task(self._query(self._next_ids))
        self._next_ids |= dict.fromkeys(ids)
        return self._next_query

    async def _query(self, ids: dict[str, None]) -> Rows:
        async with self._slots:
            if ids is self._next_ids:
                self._next_query = None
            return await self._guarded(self._readable_rows, list(ids))

    async def _guarded(self, ask: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Ask the store, unless it is paused, and count failures."""
        began = time.monotonic()
        if self._failures >= FAILURES_BEFORE_PAUSE and began < self._retry_at:
            self.observe(self.name, "paused", 0.0)
            raise StoreError(
                "paused", f"not asked for {PAUSE_S:g} s after {FAILURES_BEFORE_PAUSE} failures"
            )
        # if it is paused, this query tries, and others are refused
        self._retry_at = began + PAUSE_S

        try:
            answer = await ask(*arguments)
        except StoreError as e:
            self.state = e.reason
            if e.reason != "damaged":  # else it answers
                self._count_failure(e)
            raise
        else:
            if self._failures >= FAILURES_BEFORE_PAUSE:
                log.warning("the %s' store (%s) answers again", self.name, self.kind)
            self._failures = 0
            self.state = "ok"
            return answer
        finally:
            self.observe(self.name, self.state, time.monotonic() - began)

    def _count_failure(self, error: StoreError) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + PAUSE_S
        if self._failures == FAILURES_BEFORE_PAUSE:
            log.warning(
                "the %s' store (%s) fails and is tried once a second: %s",
                self.name,
                self.kind,
                error,
            )

    async def _readable_rows(self, ids: list[str]) -> Rows:
        """The rows of ids that are asked for together; if the store fails at them only, of each by itself."""
        try:
            return await self._rows(ids)
        except StoreError:
            await self._check_health()
        rows: Rows = {}
        try:
            async with asyncio.timeout(ISOLATION_TIME_LIMITS * self.timeout):
                for row_id in ids:
                    rows |= await self._row_or_quarantine(row_id)
        except TimeoutError:
            raise StoreError(
                "damaged", f"failing rows among {len(ids):,} were not found in time"
            ) from None
        return rows

    async def _row_or_quarantine(self, row_id: str) -> Rows:
        """The row of an id; `UNREADABLE` and in quarantine if the store fails at it only."""
        try:
            return await self._rows([row_id])
        except StoreError as e:
            await self._check_health()
            log.warning(
                "the %s' store (%s) fails at the row of %.60r: %s", self.name, self.kind, row_id, e
            )
        self._quarantine[row_id] = time.monotonic() + QUARANTINE_S
        return {row_id: UNREADABLE}

    async def _rows(self, ids: list[str]) -> Rows:
        """The rows of ids in one query, after which they are in no quarantine."""
        rows = await self._in_time(self.store.get, ids, self._columns)
        for row_id in ids:
            self._quarantine.pop(row_id, None)
        return dict(zip(ids, rows, strict=True))

    async def _check_health(self) -> None:
        """A StoreError if the store fails, and not only some rows."""
        await self._in_time(self.store.get, [])

    async def _in_time(self, ask: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """The answer to one query; a StoreError if it fails or exceeds the time limit."""
        task = asyncio.create_task(ask(*arguments))
        # retrieved, also after the limit
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            for _ in range(STEPS_PER_TIME_LIMIT):
                done, _pending = await asyncio.wait(
                    {task}, timeout=self.timeout / STEPS_PER_TIME_LIMIT
                )
                if done:
                    return task.result()
            raise StoreError("slow", f"no answer within {1000 * self.timeout:g} ms")
        except StoreError:
            raise
        except FAULTS as e:
            raise self.store.failure(e) from None
        finally:
            if not task.done():
                # It is not waited for; psycopg asks the server to end the query, for this time at
                # most.
                task.cancel()
                asyncio.get_running_loop().call_later(PAUSE_S, task.cancel)
