"""Uvicorn's protocol with limits of connections: their number, and the time and size of request heads.

uvicorn itself only limits the time between two requests of a connection. This protocol adds the other limits.
"""

import asyncio
import logging
import re
import time
from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from fieldwise.serving.connection_limits import ConnectionLimits, Connections
from fieldwise.serving.early_refusal import EarlyRefusal, plain_path
from fieldwise.serving.http_errors import error_bytes

__all__ = ["limited_protocol"]

ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
MOST_FIELDS = 100  # maximum header fields of a request
FRAMING = 8  # maximum bytes of chunked framing for each byte of a body, besides those of a head
USELESS = 2e-3  # seconds charged for a connection without a good request: several times what it costs
BYTE = 2e-9  # assumed seconds of a byte that such a connection, or a body, sends
LONG = 1 << 16  # bytes of a body that are read at once
PIECE = 1 << 12  # bytes parsed at once: no more requests can wait behind one of the same connection
LONGEST_WAIT, CHECK = 2.0, 0.4  # seconds: how long a new connection waits for its address's share; between checks
DRAIN = 0.1  # seconds in which a server that stops still reads requests that were sent to it
LINGER_BYTES, LINGER = 1 << 18, 1.0  # bytes and seconds still read after an error, so that the client sees the response
KEPT = 0.5  # seconds in which the idle time is not counted again after a refusal

QUIET = logging.getLogger(__name__)  # no line for each malformed request: they are counted
QUIET.setLevel(logging.ERROR)


def limited_protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Uvicorn's protocol with the limits, for its setting `http`."""

    class LimitedProtocol(_Limited):
        counts = connections
        limits = connections.limits

    return LimitedProtocol


class _Flow(FlowControl):
    held = False  # requests wait behind another of the connection: nothing is read until they are answered

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class _Refused:
    """Stands for the cycle of a request that was answered when its head was read."""

    response_complete = True
    message_event = SimpleNamespace(set=lambda: None)


REFUSED: Any = _Refused()
FULL = b"".join(
    [
        STATUS_LINE[503],
        b"content-type: application/json\r\nretry-after: 1\r\n",
        b"content-length: %d\r\n\r\n%s" % (len(EarlyRefusal.answer), EarlyRefusal.answer),
    ]
)


class _Limited(HttpToolsProtocol):
    counts: Connections
    limits: ConnectionLimits
    flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger, self.flow = QUIET, _Flow(transport)
        self._timer: asyncio.TimerHandle | None = None  # until a head is complete
        self._reader: asyncio.TimerHandle | None = None  # until the client reads something
        self._in_head = self._in_body = self._ended = self._stops = False
        self._raw = self._unread = 0  # bytes since the last head or body, and of no use
        self._head = self._body = 0  # bytes of the newest head's fields, and of its body
        self._wrong: tuple[int, str, str] | None = None
        self._cycles: list[Any] = []  # requests without a whole answer: several where a sender does not wait
        self._address = self.client[0] if self.client else ""
        self._asked = False  # a whole head came
        self._is_new, self._later = False, b""  # waits for its share; bytes that are not parsed yet
        self._kept = 0.0  # time when the idle time of refused requests was counted from
        limit = self.counts.enter(self._address)
        self._counted = limit is None
        if limit is None:
            self._expect_head()
            if self.counts.stops():  # those that were open before have been told
                self.loop.call_soon(self.shutdown)
            self._is_new = self.counts.waits(self._address)
            if self._is_new:  # the loop starts to read after this call
                self.loop.call_soon(self._wait_for_share, time.monotonic() + LONGEST_WAIT)
            return
        self._ended = True
        most = self.limits.connections if limit == "all" else self.limits.per_address
        whose = "" if limit == "all" else " of one address"
        full = error_bytes(503, f"{most:,} connections{whose} may be open, and the limit is reached: try again later")
        if limit == "address" and self.counts.shares.is_over(self._address):
            self.counts.hold(self, full)
        else:
            self.refuse(full)

    def refuse(self, answer: bytes) -> None:
        """Answer a connection that is not let in, and close it."""
        self.transport.write(answer)
        self.transport.close()

    def shutdown(self) -> None:
        """Close once what was sent is answered: also a request that is not, or not wholly, read yet."""
        self._stops = True
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
        self.loop.call_later(DRAIN, self._close_idle)

    def _close_idle(self) -> None:
        is_busy = self.cycle is not None and not self.cycle.response_complete
        if not (is_busy or self._in_head or self._later or self.transport.is_closing()):
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted:
            self.counts.leave(self._address)
            self._counted = False
        self.counts.let_go(self)
        self._later = b""
        self._expect_head(False)
        if not self._asked or self._ended:
            self.counts.shares.add(self._address, USELESS + BYTE * (self._raw + self._unread))
        for cycle in self._cycles:
            cycle.disconnected = True
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_new or self.flow.held:
            self._later += data
            return
        cycle = self.cycle
        if self._ended or (self._in_body and cycle.response_complete):  # nothing reads it any more
            self._unread += len(data)
            if self._unread > LINGER_BYTES:
                self._stop()
            if self._ended:
                return
        elif not self._in_head and self._refuses_unread(data):
            return
        self._later = data
        self._parse_later()

    def _parse_later(self) -> None:
        """Parse what has come until requests wait behind another: then the rest waits for their answers."""
        was_held = self.flow.held
        while self._later and not self.pipeline and not self._ended and not self.transport.is_closing():
            piece, self._later = self._later[:PIECE], self._later[PIECE:]
            self._parse(piece)
        self.flow.held = bool(self.pipeline) and not self._ended
        if self.flow.held:
            self.flow.pause_reading()
        elif was_held:
            self.flow.resume_reading()
            if self._in_head and self._timer is None and not self._ended:
                self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.flow.held and not self.pipeline:
            self.loop.call_soon(self._parse_later)

    def _parse(self, data: bytes) -> None:
        self._raw += len(data)
        super().data_received(data)
        if self._ended or self.transport.is_closing():
            return
        if self._in_body:
            self._count_body(len(data))
            if self._raw > FRAMING * self._body + self.limits.head_bytes:
                most = f"{FRAMING} bytes for each of the body, and {self.limits.head_bytes:,}"
                self._end(413, "body", f"the framing of a body may have {most}, and this one has more")
        elif self._in_head and self._raw > self.limits.head_bytes:
            self._end(*self._too_long())
        elif (
            self._timer is None
            and not self.pipeline
            and (self._in_head or self.cycle is None or (self.cycle.response_complete and self.cycle is not REFUSED))
        ):
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
        if absolute := ABSOLUTE.match(self.url):  # its host is the one that is asked, whatever the header says
            self.headers[:] = [one for one in self.headers if one[0] != b"host"] + [(b"host", absolute[1])]
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._wrong = 400, "form", f"a request needs one header Host, found {hosts}"
            raise ValueError
        if self._head + len(self.url) > self.limits.head_bytes:
            self._wrong = self._too_long()
            raise ValueError
        self._expect_head(False)
        self._in_head, self._in_body, self._raw, self._unread, self._asked = False, True, 0, 0, True
        self._body = 0
        if self._is_refused():
            self.cycle = REFUSED
            self.transport.write(FULL)
            self.on_response_complete()
            self._wait_for_share(time.monotonic() + LONGEST_WAIT)
            return
        super().on_headers_complete()
        if self._stops:
            self.cycle.keep_alive = False
        self._cycles = [*(one for one in self._cycles if not one.response_complete), self.cycle]

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

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

    def _refuses_unread(self, data: bytes) -> bool:
        """Refuse a plain and whole request without parsing it, if the server is full."""
        early = self.counts.early
        if (
            early is None
            or self._stops
            or self._in_body
            or (self.cycle is not None and not self.cycle.response_complete)
        ):
            return False
        if not early.is_overloaded(self._address) or not early.refuses(plain_path(data), self._address):
            return False
        self.transport.write(FULL)
        self._asked = True
        self._expect_head(False)
        self.server_state.total_requests += 1
        now = self.loop.time()
        if self.timeout_keep_alive_task is None or now > self._kept + KEPT:
            self._kept = now
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True

    def _is_refused(self) -> bool:
        """Whether the request is refused at once, if it is a short one on a connection that can be used again."""
        early = self.counts.early
        if early is None or self._stops or self.parser.get_method() != b"POST" or self.expect_100_continue:
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        if self.parser.get_http_version() != "1.1" or not self.parser.should_keep_alive():
            return False
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        if not length.isdigit() or int(length) > LONG:
            return False
        if early.refuses(self.url, self._address):
            return True
        early.announce(self.url)
        return False

    def _count_body(self, size: int) -> None:
        """Count the bytes of a body; one that is long waits for its address's share."""
        self.counts.shares.add(self._address, BYTE * size)
        if self._raw > LONG and self.counts.shares.is_over(self._address):
            self._wait_for_share(time.monotonic() + CHECK / 2)

    def _wait_for_share(self, until: float) -> None:
        """Read nothing from a connection while its address is over its share of a busy server."""
        if self._ended or self.transport.is_closing():
            return
        if self.counts.shares.is_over(self._address) and time.monotonic() < until:
            self.transport.pause_reading()
            self.loop.call_later(CHECK, self._wait_for_share, until)
            return
        if not self.flow.read_paused:
            self.transport.resume_reading()
        if self._is_new:
            self._is_new = False
            first, self._later = self._later, b""
            if first:
                self.data_received(first)

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
        self.transport.write(error_bytes(status, message))
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)

    def _stop(self) -> None:
        """Read nothing more from a sender that goes on after its answer, and close after a while.

        One whose connection breaks at once opens the next.
        """
        if not self._ended:
            self._ended = True
            self.loop.call_later(LINGER, self.transport.abort)
        self.transport.pause_reading()
