"""Prometheus metrics of feature stores."""

from collections.abc import Awaitable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from fieldwise.serving.stores.complete import Missing, StoreRefusedError, Stores

__all__ = ["StoreMetrics"]

T = TypeVar("T")
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class StoreMetrics:
    """Metrics of lookups: their duration and failures, degraded answers, and requests refused because of a store.

    Args:
        stores: the stores to measure.
        registry: the registry of the metrics.
    """

    def __init__(self, stores: Stores, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "fieldwise_store_seconds", "Duration of a lookup.", ("store",), buckets=BUCKETS, registry=registry
        )
        self.failures = Counter(
            "fieldwise_store_failures_total", "Lookups that failed.", ("store", "reason"), registry=registry
        )
        self.degraded = Counter(
            "fieldwise_degraded_total", "Answers without a store's values.", ("store", "reason"), registry=registry
        )
        self.refused = Counter(
            "fieldwise_store_refused_total",
            "Requests refused because a store's values were missing.",
            ("store", "reason"),
            registry=registry,
        )
        for one in stores.lookups:
            one.observe = self._observe

    async def counted(self, completing: Awaitable[tuple[T, list[Missing]]]) -> tuple[T, list[Missing]]:
        """The awaited result; counts what was missing from it, or the store that made the request fail."""
        try:
            answer = await completing
        except StoreRefusedError as e:
            self.refused.labels(e.store, e.reason).inc()
            raise
        for store, reason in {(one.store, one.reason) for one in answer[1]}:
            self.degraded.labels(store, reason).inc()
        return answer

    def _observe(self, store: str, state: str, seconds: float) -> None:
        if state != "ok":
            self.failures.labels(store, state).inc()
        if state != "paused":
            self.seconds.labels(store).observe(seconds)
