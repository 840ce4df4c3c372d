"""Limits of a server's connections: their number, and the time and size of request heads.

uvicorn itself only limits the time between two requests of a connection. This protocol adds the other limits.
"""

import asyncio
import logging
import time
from collections import Counter as Count
from dataclasses import dataclass
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fieldwise.serving.forms import ErrorBody, ErrorResponse
from fieldwise.serving.shares import Shares

__all__ = ["ConnectionLimits", "Connections", "limited_protocol"]

MOST_FIELDS = 100  # maximum header fields of a request
FRAMING = 8  # maximum bytes of chunked framing for each byte of a body
USELESS, BYTE = 4e-4, 2e-9  # assumed seconds of a connection without a good request, and of each of its bytes
LONG = 1 << 16  # bytes of a body that are read at once
LONGEST_WAIT, LOOK = 2.0, 0.4  # seconds that a new connection waits for its address's share, and between looks
LINGER_BYTES, LINGER = 1 << 18, 1.0  # bytes and seconds still read after an error, so that the client sees the response

QUIET = logging.getLogger(__name__)  # no line for each malformed request: they are counted
QUIET.setLevel(logging.ERROR)


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits of connections.

    Args:
        connections: maximum number of open connections.
        per_address: maximum from one address; all requests through a proxy have its address.
        head_bytes: maximum bytes of a request's first line and headers together.
        head_timeout: maximum seconds from the start of a connection, or the first byte of a head, to the head's end.
        idle_timeout: seconds until a connection without requests, or whose client reads nothing, is closed.
        max_body: maximum bytes of a body; chunked framing may add eight times as many.
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

    def __init__(self, limits: ConnectionLimits, registry: CollectorRegistry, shares: Shares | None = None) -> None:
        self.limits, self.shares = limits, shares or Shares()
        self._by_address: Count[str] = Count()
        self._open = 0
        gauge = Gauge("fieldwise_connections", "Connections open.", registry=registry)
        gauge.set_function(lambda: self._open)
        self._refused = Counter(
            "fieldwise_connections_refused_total", "Connections refused.", ("limit",), registry=registry
        )
        self._closed = Counter(
            "fieldwise_connections_closed_total", "Connections closed for a limit.", ("limit",), registry=registry
        )

    def enter(self, address: str) -> str | None:
        """Count a connection and return None, or return the limit that it would exceed: `all` or `address`."""
        limits, limit = self.limits, None
        if self._open >= limits.connections:
            limit = "all"
        elif self._by_address[address] >= limits.per_address:
            limit = "address"
        if limit is None:
            self._open += 1
            self._by_address[address] += 1
        else:
            self._refused.labels(limit).inc()
        return limit

    def leave(self, address: str) -> None:
        """Count the end of a connection."""
        self._open -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def closed(self, limit: str) -> None:
        """Count a connection closed by a limit: `head_bytes`, `head_time`, `body`, `reading` or `form`."""
        self._closed.labels(limit).inc()


def limited_protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Uvicorn's protocol with the limits, for its setting `http`."""

    class LimitedProtocol(_Limited):
        counts = connections
        limits = connections.limits

    return LimitedProtocol


class _Limited(HttpToolsProtocol):
    counts: Connections
    limits: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = QUIET
        self._timer: asyncio.TimerHandle | None = None  # until a head is complete
        self._reader: asyncio.TimerHandle | None = None  # until the client reads something
        self._in_head = self._in_body = self._ended = False
        self._raw = self._unread = self._head = 0  # bytes since the last head or body, of no use, of the head's fields
        self._wrong: tuple[int, str, str] | None = None
        self._cycles: list[Any] = []  # requests without a whole answer: several where a sender does not wait
        self._address = self.client[0] if self.client else ""
        self._asked = False  # a whole head came
        limit = self.counts.enter(self._address)
        self._counted = limit is None
        if limit is None:
            self._expect_head()
            if self.counts.shares.is_over(self._address):  # the loop starts to read after this call
                self.loop.call_soon(self._wait_for_share, time.monotonic() + LONGEST_WAIT)
            return
        self._ended = True
        most = self.limits.connections if limit == "all" else self.limits.per_address
        whose = "" if limit == "all" else " of one address"
        transport.write(
            _answer(503, f"{most:,} connections{whose} may be open, and the limit is reached: try again later")
        )
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted:
            self.counts.leave(self._address)
            self._counted = False
        self._expect_head(False)
        if not self._asked or self._ended:
            self.counts.shares.add(self._address, USELESS + BYTE * (self._raw + self._unread))
        for cycle in self._cycles:
            cycle.disconnected = True
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if self._ended or (self._in_body and cycle.response_complete):  # nothing reads it any more
            self._unread += len(data)
            if self._unread > LINGER_BYTES:
                self.transport.abort()
            if self._ended or self._unread > LINGER_BYTES:
                return
        self._raw += len(data)
        super().data_received(data)
        if self._ended or self.transport.is_closing():
            return
        if self._in_body:
            self._count_body(len(data))
            if self._raw > FRAMING * (self.limits.max_body + self.limits.head_bytes):
                self.counts.closed("body")
                self.transport.abort()
        elif self._in_head and self._raw > self.limits.head_bytes:
            self._end(*self._too_long())
        elif self._timer is None and (self._in_head or self.cycle is None or self.cycle.response_complete):
            self._expect_head()

    # Callbacks of the parser; their exceptions lead to `send_400_response`.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._head > self.limits.head_bytes or len(self.headers) >= MOST_FIELDS:
            self._wrong = self._too_long()
            raise ValueError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._wrong = 400, "form", f"a request needs one header Host, found {hosts}"
            raise ValueError
        if self._head + len(self.url) > self.limits.head_bytes:
            self._wrong = self._too_long()
            raise ValueError
        self._expect_head(False)
        self._in_head, self._in_body, self._raw, self._unread, self._asked = False, True, 0, 0, True
        super().on_headers_complete()
        self._cycles = [*(one for one in self._cycles if not one.response_complete), self.cycle]

    def on_message_complete(self) -> None:
        self._in_body, self._raw = False, 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(*(self._wrong or (400, "form", "a request must be HTTP/1.1, found other bytes")))

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is None:
            self._reader = self.loop.call_later(self.limits.idle_timeout, self._give_up, "reading")

    def resume_writing(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        super().resume_writing()

    def _count_body(self, size: int) -> None:
        """Count the bytes of a body; one that is long waits for its address's share."""
        self.counts.shares.add(self._address, BYTE * size)
        if self._raw > LONG and self.counts.shares.is_over(self._address):
            self._wait_for_share(time.monotonic() + LOOK / 2)

    def _wait_for_share(self, until: float) -> None:
        """Read nothing from a connection while its address is over its share of a busy server."""
        if self.transport.is_closing():
            return
        if self.counts.shares.is_over(self._address) and time.monotonic() < until:
            self.transport.pause_reading()
            self.loop.call_later(LOOK, self._wait_for_share, until)
        elif not self.flow.read_paused:
            self.transport.resume_reading()

    def _expect_head(self, expected: bool = True) -> None:
        """Start or stop the timer for a complete head."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.limits.head_timeout, self._late) if expected else None

    def _late(self) -> None:
        if self._in_head:
            self._end(408, "head_time", f"the head of a request may take {self.limits.head_timeout:g} s to arrive")
        else:
            self._give_up("head_time")

    def _too_long(self) -> tuple[int, str, str]:
        most = f"{self.limits.head_bytes:,} bytes and {MOST_FIELDS} fields"
        return 431, "head_bytes", f"the head of a request may have {most}, and this one has more"

    def _give_up(self, limit: str) -> None:
        self.counts.closed(limit)
        self.transport.abort()

    def _end(self, status: int, limit: str, message: str) -> None:
        """Send an error, and close after the client had time to read it."""
        self.counts.closed(limit)
        self._ended = True
        self._expect_head(False)
        for cycle in self._cycles:  # nothing more can be written for them
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.is_closing():
            return
        self.transport.write(_answer(status, message))
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)


@cache
def _answer(status: int, message: str) -> bytes:
    """An error in the common form, as bytes of HTTP."""
    body = ErrorResponse(error=ErrorBody(message=message, field="connection")).model_dump_json().encode()
    more: Any = b"retry-after: 1\r\n" if status == 503 else b""
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n%s\r\n" % (len(body), more)
    return STATUS_LINE[status] + head + body
