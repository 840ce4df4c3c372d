"""What the routes of an application share: service, stores, metrics, and the queues of the worker."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from fieldwise.config import nearest
from fieldwise.serving.batching import Batcher, ChunkQueue
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.replacement import Live
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import tried
from fieldwise.serving.settings import ServerSettings
from fieldwise.serving.stores import StoreFacts, Stores

MAX_RANKED_ROWS_PER_BATCH = 10_000
MAX_SCORED_ROWS_PER_BATCH = 1_000
"""Other requests wait until they are done."""


class AppState:
    """What an application's routes share.

    Attributes:
        predictions: the queue of rows to score.
        recommendations: the queue of requests for items.
        calls: the queue of short functions without arguments.
        explanations: the queue of long work, which leaves the worker to the others.
    """

    def __init__(self, live: Live, limits: ServerSettings, stores: Stores) -> None:
        self.live = live
        self.limits = limits
        self.stores = stores
        self.metrics = Metrics(live, stores)
        worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise")

        # a service can be replaced: a batch reads it once
        self.predictions: Batcher[Sequence[Mapping[str, Any]], list[dict[str, Any]]] = Batcher(
            worker,
            lambda requests: live.service.predict_all(requests),
            most=limits.max_batch,
            waiting=limits.max_waiting,
            budget=MAX_SCORED_ROWS_PER_BATCH,
            cost=len,
        )
        self.recommendations: Batcher[RecommendRequest, dict[str, Any]] = Batcher(
            worker,
            lambda requests: live.service.recommend_all(requests),
            most=limits.max_batch,
            waiting=limits.max_waiting,
            budget=MAX_RANKED_ROWS_PER_BATCH,
            cost=lambda request: live.service.cost(request),
        )
        self.calls: Batcher[Callable[[], Any], Any] = Batcher(
            worker, _call_each, most=limits.max_batch, waiting=limits.max_waiting
        )
        self.explanations = ChunkQueue(worker, limits.max_waiting, self._serves_requests)

    def _serves_requests(self) -> bool:
        return self.predictions.at_work or self.recommendations.at_work

    def check_context(self, context: Mapping[str, Any]) -> None:
        """Check that a context has no column that nothing here has: it may be a wrong spelling."""
        service_columns = self.live.service.known_columns
        if context.keys() <= service_columns:
            return
        lookups = self.stores.lookups
        named = service_columns.union(lookup.column for lookup in lookups)
        # other columns of a store stay private
        known = named.union(*(lookup.store.columns for lookup in lookups))
        for column in context:
            if column not in known:
                name = column[:60]
                raise RequestError(
                    "a context must have columns that the server knows, found "
                    f"{name!r}: {nearest(name, named)}",
                    f"context.{name}",
                )

    def is_trusted(self, request: Request) -> bool:
        """Whether a request has the token, or none is required."""
        return self.limits.bears_token(request.headers.get("authorization", "").encode())

    def answer(self, content: dict[str, Any], facts: StoreFacts) -> Response:
        """A response of a known form, which is not validated against the OpenAPI document again; NaN becomes null."""
        self.metrics.count_stored(facts)
        of_stores: dict[str, Any] = {"degraded": facts.degraded}
        if facts.features_age:
            of_stores["features_age"] = facts.features_age
        return Response(
            to_json(content | of_stores, inf_nan_mode="null"),
            media_type="application/json",
        )


def _call_each(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result or the exception of each call."""
    return [tried(lambda call: call(), call) for call in calls]
