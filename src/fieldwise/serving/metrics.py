"""Prometheus metrics of a server's requests, recommendations and replacements."""

import math
import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from fieldwise.serving.replacement import Live

__all__ = ["Metrics"]

SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client keeps the metrics of several processes
EXPOSING = 0.05  # maximum seconds per second that are spent on the text of all metrics


class Metrics:
    """Prometheus metrics of one application."""

    def __init__(self, live: Live) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self.requests = Counter("fieldwise_requests_total", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram("fieldwise_seconds", "Seconds an answer took.", ("path",), registry=self.registry)
        self.recommended = Counter(
            "fieldwise_recommendations_total", "Recommendations made.", ("ranked",), registry=self.registry
        )
        self.seen = Counter(
            "fieldwise_seen_items_total", "Items excluded because of the user's rows.", registry=self.registry
        )
        self.stage = Histogram("fieldwise_stage_seconds", "Seconds a stage took.", ("stage",), registry=self.registry)

        self._replaced = Gauge(
            "fieldwise_replacements",
            "Bundles or indexes replaced since start, by all workers.",
            registry=self.registry,
            multiprocess_mode="livemin",
        )
        self._refused = Gauge(
            "fieldwise_replacement_refused",
            "1 while the newest on disk is refused.",
            registry=self.registry,
            multiprocess_mode="livemax",
        )
        self._text, self._made, self._spent = b"", -math.inf, 0.0
        live.told = self._tell
        self._tell(live)

    def _tell(self, live: Live) -> None:
        self._replaced.set(live.replaced)
        self._refused.set(live.refused is not None)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' format: those of all workers together, if this process is one of several.

        Who asks without a pause gets the last text again, so that making them takes at most a twentieth of the time.
        """
        began = time.perf_counter()
        self._spent *= math.exp(self._made - began)  # a mean over about a second
        if self._spent < EXPOSING:
            self._text = self._exposition()
            self._spent += time.perf_counter() - began
        self._made = began
        return self._text

    def _exposition(self) -> bytes:
        if not os.environ.get(SHARED_METRICS):
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def recommendation(self, ranked: str, seen: int, milliseconds: dict[str, float]) -> None:
        """Count a recommendation: its kind of ranking, excluded items, and times of stages."""
        self.recommended.labels(ranked).inc()
        self.seen.inc(seen)
        for stage, value in milliseconds.items():
            self.stage.labels(stage).observe(value / 1000)
