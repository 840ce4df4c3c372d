"""Lookups in a store: batched, with a time limit, a circuit breaker, and a quarantine of rows that fail."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from fieldwise.serving.faults import FAULTS
from fieldwise.serving.stores.base import UNREADABLE, FeatureStore, Row, SearchableStore, StoreError
from fieldwise.serving.stores.quarantine import Quarantine

__all__ = ["Lookup"]

T = TypeVar("T")
FAILURES = 3  # consecutive failures until a store is paused
PAUSE = 1.0  # seconds of the pause; then one query tries again
STEPS = 10  # a time limit is split into steps, so that delays of a busy process are not blamed on the store
QUESTIONS = 2  # maximum concurrent queries to a store
MOST = 5000  # a query with at least this number of ids accepts no further ones
PARTS = 4  # of a query that fails, each of which is asked for alone
SEARCH = 20  # time limits after which the rows that make a query fail are not searched for any longer
LARGEST = 1 << 20  # maximum characters of the texts of a row

log = logging.getLogger("fieldwise.serving")


class Lookup:
    """A store with a time limit and a circuit breaker.

    Lookups that arrive while two queries are running are combined in the next one. A query takes at most `timeout`, so
    a lookup takes at most twice that. After three consecutive failures the store is paused: lookups fail at once, and
    one query per second is tried until one succeeds.

    Unreadable data does not pause the store: only the lookups of that data fail. If a query fails, or takes too long,
    while the store answers another one, the rows that are the reason are searched for; the lookups in it wait, at most
    20 times as long. Such a row, and one with over a million characters, is `UNREADABLE`. It is not asked for again for
    two seconds, then alone, while no lookup waits, and after a pause that doubles each time, up to two minutes.

    Args:
        name: `users` or `items`.
        store: the store itself.
        timeout: maximum seconds of a query.

    After construction:
        state: `ok`, or the reason of the last failure.

    >>> import polars as pl
    >>> from fieldwise.serving.stores import TableStore
    >>> users = Lookup("users", TableStore("user", pl.DataFrame({"user": [3], "country": ["FI"]})))
    >>> asyncio.run(users.get(["3", "4"]))
    [{'user': '3', 'country': 'FI'}, None]
    """

    def __init__(self, name: str, store: FeatureStore, *, timeout: float = 0.1) -> None:
        self.name, self.store, self.timeout = name, store, timeout
        self.state = "ok"
        self.observe: Callable[[str, str, float], None] | None = None  # name, state, seconds of each lookup
        self._failures, self._retry_at = 0, 0.0
        self._quarantine = Quarantine()
        self._next: _Question | None = None
        self._slots = asyncio.Semaphore(QUESTIONS)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def kind(self) -> str:
        """The store's."""
        return self.store.kind

    @property
    def column(self) -> str:
        """The store's."""
        return self.store.column

    @property
    def columns(self) -> Sequence[str]:
        """The store's."""
        return self.store.columns

    async def open(self) -> None:
        """Open the store."""
        self._slots = asyncio.Semaphore(QUESTIONS)  # of this event loop
        await self.store.open()

    async def close(self) -> None:
        """Close the store; pending lookups fail."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    async def get(self, ids: Sequence[str], columns: Collection[str] | None = None) -> list[Row | None]:
        """The store's rows of some ids, with at least the given columns; default: all columns.

        Errors:
            StoreError: the store failed, did not answer in time, or is paused.
        """
        return await self._observed(self._joined(ids, columns))

    async def search(self, prefix: str, limit: int) -> list[str]:
        """The store's first ids, sorted as text, that start with a prefix; none if it cannot search.

        Errors:
            StoreError: as for `get`.
        """
        store = self.store
        if not isinstance(store, SearchableStore):
            return []
        return await self._observed(self._counted(lambda: self._in_time(lambda: store.search(prefix, limit))))

    async def _joined(self, ids: Sequence[str], columns: Collection[str] | None) -> list[Row | None]:
        if self.kind == "memory":
            return await self.store.get(ids, columns)
        self._check_pause()
        question = self._next
        if question is None or len(question.ids) >= MOST:
            question = self._next = _Question()
            question.answer = self._started(self._answer(question))
        question.add(ids, columns)
        assert question.answer is not None, "started above"
        rows = await asyncio.shield(question.answer)  # others wait for it too
        return [rows[one] for one in ids]

    async def _answer(self, question: "_Question") -> dict[str, Row | None]:
        async with self._slots:
            if self._next is question:
                self._next = None
            columns = question.columns
            usual, again, left = self._quarantine.split(list(question.ids), _kind(columns))
            for one in again:
                self._started(self._tried_again(one, columns))
            # Something is always asked: an answer is what tells that the store works.
            rows = await self._counted(lambda: self._found(usual, columns))
            return rows | {one: self._unreadable(one, columns) for one in (*again, *left)}

    async def _tried_again(self, one: str, columns: Collection[str] | None) -> None:
        async with self._slots:
            await self._counted(lambda: self._found([one], columns))

    async def _found(self, ids: list[str], columns: Collection[str] | None) -> dict[str, Row | None]:
        """Rows by id; those at which the store fails, although it answers otherwise, are unreadable."""
        found: dict[str, Row | None] = {}
        parts, until = [(ids, False)], time.monotonic() + SEARCH * self.timeout
        while parts:
            part, is_divided = parts.pop()
            try:
                rows = await self._in_time(lambda part=part: self.store.get(part, columns))  # type: ignore[misc]
            except StoreError as e:
                if not part or time.monotonic() > until:
                    raise
                try:
                    await self._in_time(lambda: self.store.get([], columns))
                except StoreError:
                    raise e from None
                if len(part) == 1 and is_divided:  # also a single one is asked for twice
                    found[part[0]] = self._quarantined(part[0], columns, str(e))
                else:
                    step = -(-len(part) // PARTS)
                    parts += [(part[start : start + step], True) for start in range(0, len(part), step)]
                continue
            for one, row in zip(part, rows, strict=True):
                if row is not None and (size := _characters(row)) > LARGEST:
                    row = self._quarantined(one, columns, f"{size:,} characters, at most {LARGEST:,} are read")
                else:
                    self._quarantine.remove(one, _kind(columns))
                found[one] = row
        return found

    def _quarantined(self, one: str, columns: Collection[str] | None, why: str) -> Row:
        pause = self._quarantine.add(one, _kind(columns))
        log.warning(
            "the %s' store (%s) fails at the row of %.60r, which is not asked for again for %g s: %s",
            self.name, self.kind, one, pause, why,
        )  # fmt: skip
        return self._unreadable(one, columns)

    def _unreadable(self, one: str, columns: Collection[str] | None) -> Row:
        return {**dict.fromkeys(self.columns if columns is None else columns, UNREADABLE), self.column: one}

    async def _counted(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the store, unless it is paused, and count whether it failed."""
        self._check_pause()
        if self._failures >= FAILURES:
            self._retry_at = time.monotonic() + PAUSE  # this one tries; the others go on without
        try:
            found = await ask()
        except StoreError as e:
            self._failed(e)
            raise
        self._succeeded()
        return found

    async def _in_time(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one query to the store."""
        task = self._started(ask())
        try:
            for _ in range(STEPS):
                if (await asyncio.wait({task}, timeout=self.timeout / STEPS))[0]:
                    break
            else:
                raise StoreError("slow", f"no answer within {1000 * self.timeout:g} ms")
            return task.result()
        except StoreError:
            raise
        except FAULTS as e:
            log.exception("the %s' store (%s) answers with what cannot be read", self.name, self.kind)
            raise StoreError("damaged", f"{type(e).__name__}: {e}") from None
        finally:
            task.cancel()  # what it still does to end is not waited for

    def _started(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: who asked has left, or has it too

    def _check_pause(self) -> None:
        if self._failures >= FAILURES and time.monotonic() < self._retry_at:
            raise StoreError("paused", f"left alone for {PAUSE:g} s after {FAILURES} failures")

    def _failed(self, error: StoreError) -> None:
        self.state = error.reason
        if error.reason == "damaged":
            return  # it answers
        self._failures += 1
        if self._failures == FAILURES:
            self._retry_at = time.monotonic() + PAUSE
            log.warning("the %s' store (%s) fails and is tried once a second: %s", self.name, self.kind, error)

    def _succeeded(self) -> None:
        if self._failures >= FAILURES:
            log.warning("the %s' store (%s) answers again", self.name, self.kind)
        self._failures, self.state = 0, "ok"

    async def _observed(self, lookup: Coroutine[Any, Any, T]) -> T:
        began, state = time.perf_counter(), "ok"
        try:
            return await lookup
        except StoreError as e:
            state = e.reason
            raise
        finally:
            if self.observe is not None:
                self.observe(self.name, state, time.perf_counter() - began)


def _kind(columns: Collection[str] | None) -> frozenset[str] | None:
    """Requested columns as a key: with others, a row that fails may not."""
    return None if columns is None else frozenset(columns)


def _characters(row: Row) -> int:
    """Characters of a row's texts, also those in lists."""
    texts = (text for cell in row.values() for text in (cell if isinstance(cell, list) else (cell,)))
    return sum(len(text) for text in texts if isinstance(text, str))


class _Question:
    """Ids of several lookups that are asked for together, and their answer by id."""

    def __init__(self) -> None:
        self.ids: dict[str, None] = {}
        self.columns: set[str] | None = set()
        self.answer: asyncio.Task[dict[str, Row | None]] | None = None

    def add(self, ids: Sequence[str], columns: Collection[str] | None) -> None:
        """Take another lookup in."""
        self.ids |= dict.fromkeys(ids)
        self.columns = None if self.columns is None or columns is None else self.columns.union(columns)
