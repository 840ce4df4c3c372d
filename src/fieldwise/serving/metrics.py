"""Prometheus metrics of a server: requests, recommendations, replacements and feature stores."""

import os
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from fieldwise.serving.replacement import Live
from fieldwise.serving.stores import Stores

__all__ = ["Metrics"]

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client keeps the metrics of several processes
STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """Prometheus metrics of one application."""

    def __init__(self, live: Live, stores: Stores) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fieldwise_{name}_total", text, labels, registry=registry)

        self.requests = counter("requests", "Requests answered.", "method", "path", "status")
        self.recommended = counter("recommendations", "Recommendations made.", "ranked")
        self.seen = counter("seen_items", "Items excluded because of the user's rows.")
        self.degraded = counter("degraded", "Answers without a store's values.", "store", "reason")
        refused = "Requests refused because a store's values were missing."
        self.store_refused = counter("store_refused", refused, "store", "reason")
        self._store_failures = counter("store_failures", "Queries that failed.", "store", "reason")

        self.seconds = Histogram("fieldwise_seconds", "Seconds an answer took.", ("path",), registry=registry)
        self.stage = Histogram("fieldwise_stage_seconds", "Seconds a stage took.", ("stage",), registry=registry)
        self._store_seconds = Histogram(
            "fieldwise_store_seconds", "Duration of a query.", ("store",), buckets=STORE_BUCKETS, registry=registry
        )
        gauge = partial(Gauge, registry=registry)
        replaced = "Bundles or indexes replaced since start, by all workers."
        self._replaced = gauge("fieldwise_replacements", replaced, multiprocess_mode="livemin")
        refused = "1 while the newest on disk is refused."
        self._refused = gauge("fieldwise_replacement_refused", refused, multiprocess_mode="livemax")
        live.told = self._set_replacements
        self._set_replacements(live)
        for lookup in stores.lookups:
            lookup.observe = self._count_query

    def exposition(self) -> bytes:
        """All metrics in Prometheus' format: those of all workers together, if this process is one of several."""
        if not os.environ.get(SHARED_METRICS):
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def _set_replacements(self, live: Live) -> None:
        self._replaced.set(live.replaced)
        self._refused.set(live.refused is not None)

    def _count_query(self, store: str, state: str, seconds: float) -> None:
        if state != "ok":
            self._store_failures.labels(store, state).inc()
        if state != "paused":
            self._store_seconds.labels(store).observe(seconds)
