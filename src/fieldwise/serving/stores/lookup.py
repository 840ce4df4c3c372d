"""Asking a store within a time limit, and leaving it alone for a moment after it failed."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fieldwise.serving.stores.base import FeatureStore, Reason, Row, SearchableStore, StoreError

__all__ = ["Lookup"]

T = TypeVar("T")
FAILURES = 3  # in a row, until a store is left alone
LATE = 0.002  # seconds
PAUSE = 1.0  # seconds that it is left alone; then one request tries it

log = logging.getLogger("fieldwise.serving")


class Lookup:
    """A store with a time limit and a circuit breaker.

    A lookup takes at most `timeout`, whatever the store does (and as long again where this process was busy). After
    three failures in a row the store is left alone: lookups fail at once, and one a second is let through, until one
    succeeds.

    Args:
        name: `users` or `items`.
        store: what is asked.
        timeout: seconds that an answer may take.

    After construction:
        state: `ok`, or the reason of the last failure.
    """

    def __init__(self, name: str, store: FeatureStore, *, timeout: float = 0.05) -> None:
        self.name, self.store, self.timeout = name, store, timeout
        self.state: Reason | str = "ok"
        self.observe: Callable[[str, str, float], None] | None = None  # name, state, seconds of each lookup
        self._failures, self._retry_at = 0, 0.0
        self._left: set[asyncio.Task[Any]] = set()

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
        await self.store.open()

    async def close(self) -> None:
        """Close the store."""
        await self.store.close()

    async def get(self, ids: Sequence[str]) -> list[Row | None]:
        """The store's rows of some ids.

        Errors:
            StoreError: the store fails, does not answer in time, or has failed just now.
        """
        return await self._guarded(lambda: self.store.get(ids))

    @property
    def can_search(self) -> bool:
        """Whether the store finds rows by the beginning of their ids."""
        return isinstance(self.store, SearchableStore)

    async def search(self, prefix: str, limit: int) -> list[Row]:
        """The store's first rows, by id, whose ids begin with a text; none where it cannot search.

        Errors:
            StoreError: as of `get`.
        """
        store = self.store
        return await self._guarded(lambda: store.search(prefix, limit)) if isinstance(store, SearchableStore) else []

    async def _guarded(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        began = time.perf_counter()
        try:
            found = await self._within_limit(ask)
        except StoreError as e:
            self._failed(e)
            self._observed(e.reason, began)
            raise
        self._succeeded()
        self._observed("ok", began)
        return found

    async def _within_limit(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = time.monotonic()
        if self._failures >= FAILURES:
            if now < self._retry_at:
                raise StoreError("paused", f"left alone for {PAUSE:g} s after {FAILURES} failures")
            self._retry_at = now + PAUSE  # this one tries; the others go on without
        task = asyncio.create_task(ask())
        self._left.add(task)
        task.add_done_callback(self._ended)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.timeout)
            late = time.monotonic() - now - self.timeout
            if not done and late > LATE:  # by the process's other work: no fault of the store's
                done, _ = await asyncio.wait({task}, timeout=min(late, self.timeout))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if done:
            return task.result()
        task.cancel()  # what it still does to end is not waited for
        raise StoreError("slow", f"no answer within {1000 * self.timeout:g} ms")

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # seen: who asked has left, or has it too

    def _failed(self, error: StoreError) -> None:
        if error.reason == "paused":
            return
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

    def _observed(self, state: str, began: float) -> None:
        if self.observe is not None:
            self.observe(self.name, state, time.perf_counter() - began)
