"""What happens to every request before its route: host, token, body, time limit and metrics."""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Mapping
from types import MappingProxyType

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldwise.serving.decode import BODY
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.rows import FAULTS, RequestError
from fieldwise.serving.settings import ServerSettings

PORT = re.compile(r":[0-9]*$")
CLIENT_GONE = 499
"""The status by which nginx counts a client that has left."""
HEALTH = "/healthz"
TOKEN_FREE_PATHS = (HEALTH, "/readyz", "/openapi.json", "/", "/docs")
"""Answered without a token, and then without what is private."""
TOKEN_FREE_FOLDER = "/page/"
LINGER_S = 1.0
"""How long a refused body is read."""
LINGER_BODIES = 4
"""How much of a refused body is read, in multiples of `max_body`."""
CLOSE_CONNECTION = {"Connection": "close"}
ERROR_HEADERS = {
    401: {"WWW-Authenticate": "Bearer", **CLOSE_CONNECTION},
    408: CLOSE_CONNECTION,
    413: CLOSE_CONNECTION,
    421: CLOSE_CONNECTION,
    503: {"Retry-After": "1"},
}
"""By status."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

log = logging.getLogger("fieldwise.serving.http")


class RequestMiddleware:
    """Middleware that checks the host and the token, reads the body in time, and counts requests and their time."""

    def __init__(self, app: ASGIApp, limits: ServerSettings, metrics: Metrics) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or another ASGI event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = CLIENT_GONE

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not time_limit.expired():
                    time_limit.reschedule(None)  # a client may take its time to read
            await send(message)

        try:
            async with asyncio.timeout(self.limits.timeout) as time_limit:
                try:
                    await self._handle(scope, receive, send_observed)
                except FAULTS:
                    log.exception("%s %s failed", scope["method"], scope["path"])
                    if status != CLIENT_GONE:
                        raise
                    answer = error_answer(
                        500, "internal error of the server; see its log", "server"
                    )
                    await answer(scope, receive, send_observed)
        except TimeoutError:
            if status != CLIENT_GONE:
                raise
            answer = self._late_answer(has_body=BODY in scope)
            await answer(scope, receive, send_observed)
        finally:
            route = scope.get("route")
            path = getattr(route, "path_format", getattr(route, "path", "other"))
            self.metrics.requests.labels(scope["method"], path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, read its body, and call the application."""
        headers = dict(scope["headers"])
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # of a mounted application
        body = _IncomingBody(receive, headers)
        max_body = self.limits.max_body
        try:
            self._check_host(headers.get(b"host", b""), path)
            self._check_token(headers.get(b"authorization", b""), path)
            scope[BODY] = await body.read(max_body)
        except RequestError as e:
            await body.discard(LINGER_BODIES * max_body)
            await error_answer(e.status, str(e), e.field)(scope, receive, send)
        except ClientDisconnect:
            pass
        else:
            await self.app(scope, receive, send)

    def _check_host(self, header: bytes, path: str) -> None:
        allowed = self.limits.allow_hosts
        if allowed is None or path == HEALTH:
            return
        host = header.decode("latin-1")
        if PORT.sub("", host.lower()) not in allowed:
            names = ", ".join(sorted(allowed))
            raise RequestError(
                f"the host must be {names}, found {host[:100]!r}: start the server with --allow-host "
                "for another name",
                "host",
                421,
            )

    def _check_token(self, authorization: bytes, path: str) -> None:
        if path in TOKEN_FREE_PATHS or path.startswith(TOKEN_FREE_FOLDER):
            return
        if not self.limits.bears_token(authorization):
            raise RequestError(
                "a request needs the header Authorization: Bearer TOKEN", "authorization", 401
            )

    def _late_answer(self, *, has_body: bool) -> JSONResponse:
        """The error of a request that took too long: computing its answer, or sending its body."""
        limit = f"{self.limits.timeout:g} s"
        if has_body:
            return error_answer(
                503, f"an answer may take {limit}, and this one took longer", "server"
            )
        return error_answer(408, f"a body must arrive within {limit}, and this one did not", "body")


class _IncomingBody:
    """The body of a request, as it arrives in parts."""

    def __init__(self, receive: Receive, headers: Mapping[bytes, bytes]) -> None:
        self.receive = receive
        length = headers.get(b"content-length", b"0")
        self.declared_bytes = int(length) if length.isdigit() else 0
        self.received_bytes = 0
        self.has_ended = False
        # such a client sends its body when it is asked for it
        self.is_withheld = b"expect" in headers

    async def read(self, max_bytes: int) -> bytes:
        """The whole body; a RequestError if it has more than `max_bytes`."""
        parts: list[bytes] = []
        while not self.has_ended and not self._is_larger_than(max_bytes):
            parts.append(await self._read_part())
        if self._is_larger_than(max_bytes):
            raise RequestError(
                f"a body must have at most {max_bytes:,} bytes, and this one has more", "body", 413
            )
        return b"".join(parts)

    async def discard(self, max_bytes: int) -> None:
        """Read for a moment what is left: closing a connection with unread bytes would lose the answer on its way."""
        self.received_bytes = 0
        with contextlib.suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(LINGER_S):
                while not (self.has_ended or self.is_withheld) and self.received_bytes < max_bytes:
                    await self._read_part()

    def _is_larger_than(self, max_bytes: int) -> bool:
        return max(self.received_bytes, self.declared_bytes) > max_bytes

    async def _read_part(self) -> bytes:
        self.is_withheld = False
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self.has_ended = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        self.received_bytes += len(part)
        return part


def error_answer(
    status: int, message: str, field: str | None, headers: Mapping[str, str] = NO_HEADERS
) -> JSONResponse:
    """An error as a response, of the form `ErrorResponse`; `field` is the part of the request concerned."""
    # text of a request is not always encodable as UTF-8
    message = message.encode(errors="replace").decode()
    if field is not None:
        field = field.encode(errors="replace").decode()
    return JSONResponse(
        {"error": {"message": message, "field": field}},
        status,
        {**headers, **ERROR_HEADERS.get(status, {})},
    )
