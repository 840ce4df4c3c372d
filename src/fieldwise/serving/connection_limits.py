"""Limits of a server's connections, and the number of open ones."""

import asyncio
from collections import Counter as Count
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from fieldwise.serving.early_refusal import EarlyRefusal
from fieldwise.serving.shares import Shares

__all__ = ["ConnectionLimits", "Connections"]

HELD = 1.0  # seconds that the answer to a connection is held back


class Refusable(Protocol):
    """A connection that is not let in."""

    def refuse(self, answer: bytes) -> None:
        """Answer and close it."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections.

    Args:
        connections: maximum number of open connections.
        per_address: maximum from one address; all requests through a proxy have its address.
        head_bytes: maximum bytes of a request's first line and headers together.
        head_timeout: maximum seconds from the start of a connection, or the first byte of a head, to the head's end.
        idle_timeout: seconds until a connection without requests, or whose client reads nothing, is closed.
        max_body: maximum bytes of a body; chunked framing may add eight times as many as came, and those of a head.
    """

    connections: int = 1000
    per_address: int = 256
    head_bytes: int = 1 << 15
    head_timeout: float = 10.0
    idle_timeout: float = 5.0
    max_body: int = 1 << 20


class Connections:
    """The number of connections, and their Prometheus metrics.

    >>> open_now = Connections(ConnectionLimits(connections=3, per_address=2), CollectorRegistry())
    >>> [open_now.enter(address) for address in ("a", "a", "a", "b", "b")]
    [None, None, 'address', None, 'all']
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        registry: CollectorRegistry,
        shares: Shares | None = None,
        early: EarlyRefusal | None = None,
    ) -> None:
        self.limits, self.shares, self.early = limits, shares or Shares(), early
        self._by_address: Count[str] = Count()
        self._open = 0
        self._held: dict[Refusable, tuple[bytes, asyncio.TimerHandle]] = {}  # the oldest first
        self.told: Callable[[int], None] = lambda _: None  # how many are open, at every change
        self.stops: Callable[[], bool] = lambda: False  # whether the server stops: a new connection ends soon
        self._gauge = Gauge(
            "fieldwise_connections", "Connections open.", registry=registry, multiprocess_mode="livesum"
        )
        self._refused = Counter(
            "fieldwise_connections_refused_total", "Connections refused.", ("limit",), registry=registry
        )
        self._delayed = Counter(
            "fieldwise_connections_delayed_total",
            "New connections that waited because their address had used more than its share of a busy server.",
            registry=registry,
        )
        self._closed = Counter(
            "fieldwise_connections_closed_total", "Connections closed for a limit.", ("limit",), registry=registry
        )

    def enter(self, address: str) -> str | None:
        """Count a connection and return None, or return the limit that it would exceed: `all` or `address`."""
        limits, limit = self.limits, None
        self._make_room()
        if self._open >= limits.connections:
            limit = "all"
        elif self._by_address[address] >= limits.per_address:
            limit = "address"
        if limit is None:
            self._by_address[address] += 1
            self._change(1)
        else:
            self._refused.labels(limit).inc()
        return limit

    def waits(self, address: str) -> bool:
        """Whether a new connection waits, since its address is over its share; it is counted."""
        waits = self.shares.is_over(address)
        if waits:
            self._delayed.inc()
        return waits

    def leave(self, address: str) -> None:
        """Count the end of a connection."""
        self._change(-1)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def hold(self, one: Refusable, answer: bytes) -> None:
        """Refuse a connection after a second, or once its place is needed: who is told at once comes back at once."""
        self._held[one] = answer, asyncio.get_running_loop().call_later(HELD, self._refuse, one)
        self._make_room()

    def let_go(self, one: Refusable) -> None:
        """Forget a connection that ended while it was held."""
        if one in self._held:
            self._held.pop(one)[1].cancel()

    def _make_room(self) -> None:
        """Refuse the connection that was held longest, if as many are open and held as may be open."""
        if self._held and self._open + len(self._held) >= self.limits.connections:
            self._refuse(next(iter(self._held)))

    def _refuse(self, one: Refusable) -> None:
        answer, timer = self._held.pop(one)
        timer.cancel()
        one.refuse(answer)

    def _change(self, by: int) -> None:
        self._open += by
        self._gauge.set(self._open)
        self.told(self._open)

    def closed(self, limit: str) -> None:
        """Count a connection closed by a limit: `head_bytes`, `head_time`, `body`, `reading` or `form`."""
        self._closed.labels(limit).inc()
