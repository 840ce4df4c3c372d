"""What the routes of one server share: the service, limits, stores, the worker that computes, and what is counted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fieldwise.schema import Field
from fieldwise.serving.answers import Predicted
from fieldwise.serving.asked import Asked
from fieldwise.serving.batching import Batcher, BatchLimits, BusyError
from fieldwise.serving.bodies import BodyLimits, body_route
from fieldwise.serving.forms import Cell, Id
from fieldwise.serving.gate import Metrics, ServerSettings
from fieldwise.serving.page.known_users import KnownUsers
from fieldwise.serving.replacement import Live
from fieldwise.serving.request_checks import id_text
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service
from fieldwise.serving.stores.complete import Missing, Stores
from fieldwise.serving.stores.metrics import StoreMetrics

__all__ = ["Served"]

T = TypeVar("T")
BATCH_ROWS = 10_000  # that requests answered together may rank or score


class Served:
    """What every route of an application is given.

    Args:
        live: who holds what answers now; the work runs in one thread, so that requests do not fight for the cores.
        limits: of requests and answers.
        stores: fields of known users and items.
        title: the item column that the page names items by; chosen by rule where left out.
    """

    def __init__(self, live: Live, limits: ServerSettings, stores: Stores, title: str | None = None) -> None:
        self.live, self.limits, self.stores, self.title = live, limits, stores, title
        self.metrics = Metrics(live)
        self.body_route = body_route(BodyLimits(rows=limits.max_rows, ids=limits.max_ids))
        self.users = KnownUsers(stores) if stores.users else None
        self._store_metrics = StoreMetrics(stores, self.metrics.registry)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise")
        self._working = 0
        batches = BatchLimits(
            most=limits.max_batch, budget=BATCH_ROWS, window=limits.batch_window, waiting=limits.max_waiting
        )
        self._predictions = Batcher(self._worker, self._predict_all, batches, cost=len)
        self._recommendations = Batcher(self._worker, self._recommend_all, batches, cost=self._cost)

    @property
    def service(self) -> Service:
        """What answers now; asked for anew by every request, so that it may be replaced."""
        return self.live.service

    async def predict(self, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
        """Score and prediction of rows, computed together with those of other requests.

        Errors:
            RequestError: as of `Service.predict`; it took too long, or too many requests wait.
        """
        return await self._in_time(self._predictions.ask(rows))

    async def recommend(self, asked: Asked) -> dict[str, Any]:
        """The best items, computed together with those of other requests.

        Errors:
            RequestError: as of `Service.recommend`; it took too long, or too many requests wait.
        """
        return await self._in_time(self._recommendations.ask(asked))

    async def work(self, call: Callable[[], T]) -> T:
        """What a call returns that takes long; it runs in the worker.

        Errors:
            RequestError: it took too long, or too many requests wait.
        """
        return await self._in_time(self._queued(call))

    async def complete(self, rows: list[dict[str, Cell]]) -> tuple[list[dict[str, Any]], list[Missing]]:
        """Rows with the fields that stores and the catalogue hold of their users and items, and what could not be had.

        Errors:
            RequestError: an unknown user or item, or a store fails.
        """
        now = self.service
        items = now.item_rows if now.cascade else None
        return await self._store_metrics.counted(self.stores.rows(rows, now.bundle.schema.fields, items))

    async def context(
        self, user: Id | None, given: dict[str, Cell], fields: list[Field]
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A request's context with a known user's own fields, and what could not be had.

        Errors:
            RequestError: an unknown user, or the store fails.
        """
        return await self._store_metrics.counted(self.stores.context(id_text(user), given, fields))

    def _predict_all(self, requests: Sequence[list[dict[str, Any]]]) -> Sequence[Predicted | BaseException]:
        return self.service.predict_all(requests)

    def _recommend_all(self, requests: Sequence[Asked]) -> Sequence[dict[str, Any] | BaseException]:
        return self.service.recommend_all(requests)

    def _cost(self, asked: Asked) -> int:
        return self.service.cost(asked)

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await answer
        except TimeoutError:
            late = f"an answer may take {self.limits.timeout:g} s, and this one took longer"
            raise RequestError(late, "server", 503) from None
        except BusyError:
            full = f"{self.limits.max_waiting:,} requests may wait, and so many do: ask again later"
            raise RequestError(full, "server", 503) from None

    async def _queued(self, call: Callable[[], T]) -> T:
        if self._working >= self.limits.max_waiting:
            raise BusyError
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, call)
        finally:
            self._working -= 1
