"""Prometheus metrics of a server."""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from fieldwise.serving.replacement import Live
from fieldwise.serving.settings import METRICS_FOLDER_VARIABLE
from fieldwise.serving.stores import StoreFacts, Stores

STORE_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
FEATURES_AGE_BUCKETS = (1, 10, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400)


class Metrics:
    """Prometheus metrics of one application."""

    def __init__(self, live: Live, stores: Stores) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests answered.", "method", "path", "status")
        self._recommended = self._counter("recommendations", "Recommendations made.", "ranked")
        self._seen = self._counter("seen_items", "Items excluded because of the user's rows.")
        self._degraded = self._counter(
            "degraded", "Answers without a store's values.", "store", "reason"
        )
        self.store_refused = self._counter(
            "store_refused",
            "Requests refused because a store's values were missing.",
            "store",
            "reason",
        )
        self._store_failures = self._counter(
            "store_failures", "Queries that failed.", "store", "reason"
        )

        self.seconds = Histogram(
            "fieldwise_seconds", "Seconds an answer took.", ("path",), registry=self.registry
        )
        self._stage = Histogram(
            "fieldwise_stage_seconds", "Seconds a stage took.", ("stage",), registry=self.registry
        )
        self._store_seconds = Histogram(
            "fieldwise_store_seconds",
            "Duration of a query.",
            ("store",),
            buckets=STORE_SECONDS_BUCKETS,
            registry=self.registry,
        )

        self._features_age = Histogram(
            "fieldwise_features_age_seconds",
            "Age of the oldest stored features of an answer.",
            ("store",),
            buckets=FEATURES_AGE_BUCKETS,
            registry=self.registry,
        )

        self._replacements = Gauge(
            "fieldwise_replacements",
            "Bundles or indexes replaced since start, by all workers.",
            multiprocess_mode="livemin",
            registry=self.registry,
        )
        self._replacement_refused = Gauge(
            "fieldwise_replacement_refused",
            "1 while the newest on disk is refused.",
            multiprocess_mode="livemax",
            registry=self.registry,
        )

        live.on_change = self._set_replacements
        self._set_replacements(live)
        for lookup in stores.lookups:
            lookup.observe = self._count_query

    def count_recommendation(self, answer: Mapping[str, Any]) -> None:
        """Count an answer of `/v1/recommend`, and the seconds of its stages."""
        self._recommended.labels(answer["ranked"]).inc()
        self._seen.inc(answer["seen"])
        for stage, milliseconds in answer["milliseconds"].items():
            self._stage.labels(stage).observe(milliseconds / 1000)

    def count_stored(self, facts: StoreFacts) -> None:
        """Count an answer with missing values of a store, and the age of its features."""
        for store, reason in {(missing.store, missing.reason) for missing in facts.degraded}:
            self._degraded.labels(store, reason).inc()
        for store, age in facts.features_age.items():
            self._features_age.labels(store).observe(age)

    def exposition(self) -> bytes:
        """The metrics in the text format; those of all processes together, if they share a folder."""
        if not os.environ.get(METRICS_FOLDER_VARIABLE):
            return generate_latest(self.registry)
        all_processes = CollectorRegistry()
        MultiProcessCollector(all_processes)  # type: ignore[no-untyped-call]
        return generate_latest(all_processes)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fieldwise_{name}_total", text, labels, registry=self.registry)

    def _set_replacements(self, live: Live) -> None:
        self._replacements.set(live.replaced)
        self._replacement_refused.set(live.refused is not None)

    def _count_query(self, store: str, state: str, seconds: float) -> None:
        if state != "ok":
            self._store_failures.labels(store, state).inc()
        if state != "paused":
            self._store_seconds.labels(store).observe(seconds)


def remove_gauges_of_dead_processes() -> None:
    """Remove the live gauges of processes of this server that have ended; their counters stay."""
    for name in glob.glob(f"{os.environ[METRICS_FOLDER_VARIABLE]}/gauge_live*_*.db"):
        process_id = int(Path(name).stem.rpartition("_")[2])
        try:
            os.kill(process_id, 0)
        except (ProcessLookupError, PermissionError):  # the number of another user's process now
            Path(name).unlink(missing_ok=True)
