"""The shared state of a server's routes: the service, limits, stores, the worker thread, and metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fieldwise.explain.effects import shown_fields, widest_first
from fieldwise.schema import Field
from fieldwise.serving.answers import Predicted, explanations, measures_pairs
from fieldwise.serving.asked import Asked, Explained
from fieldwise.serving.batching import Batcher, BatchLimits, BusyError, deadline
from fieldwise.serving.bodies import BodyLimits, body_route
from fieldwise.serving.forms import Cell, Id
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.middleware import ServerSettings
from fieldwise.serving.page.known_users import KnownUsers
from fieldwise.serving.pieces import Pieces
from fieldwise.serving.replacement import Live
from fieldwise.serving.request_checks import id_text
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service
from fieldwise.serving.stores.complete import Missing, Stores
from fieldwise.serving.stores.metrics import StoreMetrics

__all__ = ["Served"]

T = TypeVar("T")
ROWS_OF_A_PIECE = 10  # rows explained at once
BATCH_ROWS = 10_000  # maximum rows to rank in a batch of requests
SCORED_ROWS = 1_000  # maximum rows to score in a batch of requests: other requests wait until they are done


class Served:
    """The shared state of an application's routes.

    Args:
        live: the holder of the service; it computes in one thread, so that requests do not compete for the cores.
        limits: limits of requests and responses.
        stores: features of known users and items.
        title: the item column that the page shows as the item's name; chosen by a rule if omitted.
    """

    def __init__(self, live: Live, limits: ServerSettings, stores: Stores, title: str | None = None) -> None:
        self.live, self.limits, self.stores, self.title = live, limits, stores, title
        self.metrics = Metrics(live)
        self.body_route = body_route(BodyLimits(rows=limits.max_rows, ids=limits.max_ids), self._answers)
        self.users = KnownUsers(stores) if stores.users else None
        self._store_metrics = StoreMetrics(stores, self.metrics.registry)
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise")
        self._working = 0
        batches = BatchLimits(
            most=limits.max_batch, budget=BATCH_ROWS, window=limits.batch_window, waiting=limits.max_waiting
        )
        scored = replace(batches, budget=SCORED_ROWS)
        self._predictions = Batcher(self.worker, self._predict_all, scored, cost=len)
        self._recommendations = Batcher(self.worker, self._recommend_all, batches, cost=self._cost)
        self._explanations = Pieces(self.worker, limits.max_waiting, self._answers)

    @property
    def service(self) -> Service:
        """The current service; read once per request, so that it can be replaced."""
        return self.live.service

    async def predict(self, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
        """Score and prediction of rows, computed together with those of other requests.

        Errors:
            RequestError: as for `Service.predict`; a timeout, or too many waiting requests.
        """
        return await self._in_time(self._predictions.ask(rows))

    async def recommend(self, asked: Asked) -> dict[str, Any]:
        """The best items, computed together with those of other requests.

        Errors:
            RequestError: as for `Service.recommend`; a timeout, or too many waiting requests.
        """
        return await self._in_time(self._recommendations.ask(asked))

    async def explain(self, asked: Explained, pairs: bool) -> list[dict[str, Any]]:
        """Explain the scores of rows, a few rows at a time, with other requests answered in between.

        Errors:
            RequestError: as for `Service.explain`; a timeout, or too many waiting requests.
        """
        now = self.service
        step = 1 if pairs and measures_pairs(now.bundle) else ROWS_OF_A_PIECE

        def pieces() -> list[Callable[[], list[dict[str, Any]]]]:
            frame = now.explained_rows(asked)
            parts = [frame[start : start + step] for start in range(0, frame.height, step)]
            return [partial(explanations, now.bundle, part, pairs=pairs) for part in parts]

        return await self._in_time(self._explanations.run(pieces))

    async def effects(self) -> list[dict[str, Any]]:
        """The directions of the fields, computed at the first call, a field at a time like `explain`.

        Errors:
            RequestError: a timeout, or too many waiting requests.
            DataError: the bundle has no sample rows.
        """
        now = self.service
        fields = shown_fields(now.bundle.schema)
        return widest_first(
            await self._in_time(self._explanations.run(lambda: [partial(now.effect, one) for one in fields]))
        )

    async def work(self, call: Callable[[], T]) -> T:
        """Run a long call in the worker thread and return its result.

        Errors:
            RequestError: a timeout, or too many waiting requests.
        """
        return await self._in_time(self._queued(call))

    async def complete(self, rows: list[dict[str, Cell]]) -> tuple[list[dict[str, Any]], list[Missing]]:
        """Rows completed with the stored fields of their users and items, and the values that were missing.

        Errors:
            RequestError: an unknown user or item, or a store fails.
        """
        now = self.service
        items = now.item_rows if now.cascade else None
        return await self._store_metrics.counted(self.stores.rows(rows, now.bundle.schema.fields, items))

    async def context(
        self, user: Id | None, given: dict[str, Cell], fields: list[Field]
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A request's context completed with a known user's fields, and the values that were missing.

        Errors:
            RequestError: an unknown user, or the store fails.
        """
        return await self._store_metrics.counted(self.stores.context(id_text(user), given, fields))

    def _answers(self) -> bool:
        """Whether predictions or recommendations are being computed, or are waiting."""
        return self._predictions.at_work or self._recommendations.at_work

    def _predict_all(self, requests: Sequence[list[dict[str, Any]]]) -> Sequence[Predicted | BaseException]:
        return self.service.predict_all(requests)

    def _recommend_all(self, requests: Sequence[Asked]) -> Sequence[dict[str, Any] | BaseException]:
        return self.service.recommend_all(requests)

    def _cost(self, asked: Asked) -> int:
        return self.service.cost(asked)

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(deadline(self.limits.timeout)):
                return await answer
        except TimeoutError:
            late = f"an answer may take {self.limits.timeout:g} s, and this one took longer"
            raise RequestError(late, "server", 503) from None
        except BusyError:
            full = f"{self.limits.max_waiting:,} requests may wait, and the queue is full: try again later"
            raise RequestError(full, "server", 503) from None

    async def _queued(self, call: Callable[[], T]) -> T:
        if self._working >= self.limits.max_waiting:
            raise BusyError
        self._working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.worker, call)
        finally:
            self._working -= 1
