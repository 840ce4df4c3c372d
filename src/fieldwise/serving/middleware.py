"""Middleware before every request: limits, the token, reading of the body, and metrics."""

import asyncio
import contextlib
import hmac
import logging
import re
import time
from dataclasses import dataclass

from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldwise.errors import ConfigError
from fieldwise.serving.batching import MAX_BATCH, MAX_WAITING
from fieldwise.serving.bodies import BODY
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.rows import FAULTS, RequestError

__all__ = ["RequestMiddleware", "ServerSettings", "error_answer"]

FAULT = "internal error of the server; see its log"
PORT = re.compile(r":[0-9]*$")
GONE = 499  # as nginx counts a client that has left
HEALTH = "/healthz"
OPEN = (HEALTH, "/readyz", "/openapi.json", "/", "/docs")  # without a token, and then without what is private
OPEN_FILES = "/page/"
CLOSED = {"Connection": "close"}
LINGER_SECONDS, LINGER_BODIES = 1.0, 4  # how much of a refused request is read: seconds, and bodies of max_body
HEADERS = {  # of errors, by status
    401: {"WWW-Authenticate": "Bearer", **CLOSED},
    408: CLOSED,
    413: CLOSED,
    421: CLOSED,
    503: {"Retry-After": "1"},
}


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Args:
        token: required token in `Authorization: Bearer`; None allows access without a token.
        allow_hosts: allowed values of the header `Host`, lower case, without port; None for any. This protects against
            DNS rebinding.
        max_body: maximum bytes of a request.
        max_rows: maximum rows of a prediction.
        max_ids: maximum ids of a list, and values of all filters.
        max_prerank: maximum items for the ranking bundle.
        max_explained: maximum rows of an explanation.
        max_k: maximum items of a response.
        timeout: maximum seconds for a response.
        max_batch: maximum requests in a batch.
        max_waiting: maximum number of waiting requests; further ones get 503 and `Retry-After` at once.

    Errors:
        ConfigError: an empty token.
    """

    token: str | None = None
    allow_hosts: frozenset[str] | None = None
    max_body: int = 1 << 20
    max_rows: int = 1000
    max_ids: int = 100_000
    max_prerank: int = 10_000
    max_explained: int = 50
    max_k: int = 1000
    timeout: float = 10.0
    max_batch: int = MAX_BATCH
    max_waiting: int = MAX_WAITING

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ConfigError("a token must not be empty: give None to allow access without one")

    def bears_token(self, authorization: bytes) -> bool:
        """Whether a header `Authorization` has the token, or none is required."""
        scheme, _, given = authorization.partition(b" ")
        return self.token is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given, self.token.encode()))


class RequestMiddleware:
    """Middleware that checks the host and the token, reads the body in time, and counts requests and their time.

    Args:
        app: the application.
        limits: limits and token.
        metrics: where requests are counted.
    """

    def __init__(self, app: ASGIApp, limits: ServerSettings, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or another ASGI event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), GONE

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if not limit.expired():
                    limit.reschedule(None)  # a client may take its time to read
            await send(message)

        try:
            async with asyncio.timeout(self.limits.timeout) as limit:
                try:
                    await self._pass(scope, receive, counted)
                except FAULTS:
                    logging.getLogger(__name__).exception("%s %s failed", scope["method"], scope["path"])
                    if status != GONE:
                        raise
                    await error_answer(500, FAULT, "server")(scope, receive, counted)
        except TimeoutError:
            if status != GONE:
                raise
            late = f"an answer may take {self.limits.timeout:g} s, and this one took longer"
            answer = error_answer(503, late, "server")
            if BODY not in scope:
                late = f"a body must arrive within {self.limits.timeout:g} s, and this one did not"
                answer = error_answer(408, late, "body")
            await answer(scope, receive, counted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path_format", getattr(route, "path", "other"))
            self.metrics.requests.labels(scope["method"], path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, read its body, and call the application."""
        headers = dict(scope["headers"])
        ended = False

        async def part() -> Message:
            nonlocal ended
            message = await receive()
            ended = not message.get("more_body", False)
            return message

        try:
            self._check_access(scope, headers)
            scope[BODY] = await self._read(part, headers)
        except RequestError as e:
            size = 0  # closing a connection with unread bytes would lose the answer on its way
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    while not ended and b"expect" not in headers and size < LINGER_BODIES * self.limits.max_body:
                        size += len((await part()).get("body", b""))
            await error_answer(e.status, str(e), e.field)(scope, receive, send)
        except ClientDisconnect:
            pass
        else:
            await self.app(scope, receive, send)

    def _check_access(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # within another application
        host, known = headers.get(b"host", b"").decode("latin-1"), self.limits.allow_hosts
        if known is not None and PORT.sub("", host.lower()) not in known and path != HEALTH:
            names = ", ".join(sorted(known))
            what = (
                f"the host must be {names}, found {host[:100]!r}: start the server with --allow-host for another name"
            )
            raise RequestError(what, "host", 421)
        is_open = path in OPEN or path.startswith(OPEN_FILES)
        if not is_open and not self.limits.bears_token(headers.get(b"authorization", b"")):
            raise RequestError("a request needs the header Authorization: Bearer TOKEN", "authorization", 401)

    async def _read(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        """The body; a RequestError if it is too large, as soon as that is known."""
        length, most = headers.get(b"content-length", b"0"), self.limits.max_body
        parts: list[bytes] = []
        size, more = 0, True
        too_large = length.isdigit() and int(length) > most
        while more and not too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more, too_large = message.get("more_body", False), size > most
        if too_large:
            raise RequestError(f"a body must have at most {most:,} bytes, and this one has more", "body", 413)
        return b"".join(parts)


def error_answer(status: int, message: str, field: str | None, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as a response, of the form `ErrorResponse`; `field` is the part of the request concerned."""
    # Text of a request is not always encodable as UTF-8.
    message = message.encode(errors="replace").decode()
    field = None if field is None else field.encode(errors="replace").decode()
    error = {"error": {"message": message, "field": field}}
    return JSONResponse(error, status, (headers or {}) | HEADERS.get(status, {}))
