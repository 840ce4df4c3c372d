"""Middleware before every request: limits, the token, reading of the body, and metrics."""

import asyncio
import hmac
import logging
import re
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldwise.errors import ConfigError
from fieldwise.serving.batching import DEADLINE
from fieldwise.serving.faults import FAULTS
from fieldwise.serving.http_errors import error_answer
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.routes.files import is_page

__all__ = ["RequestMiddleware", "ServerSettings"]

FAULT = "internal error of the server; see its log"
PORT = re.compile(r":[0-9]*$")
CLOSED = {"Connection": "close"}  # the rest of a body is not waited for
GONE = 499  # as nginx counts a client that has left
HEALTH = "/healthz"
OPEN = (HEALTH, "/readyz")  # without a token


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
        batch_window: seconds that a request waits for others to form a batch, if the worker is idle.
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
    max_batch: int = 32
    batch_window: float = 0.0
    max_waiting: int = 256

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ConfigError("a token must not be empty: give None to allow access without one")

    def bears_token(self, authorization: bytes) -> bool:
        """Whether a header `Authorization` has the token, or none is required."""
        scheme, _, given = authorization.partition(b" ")
        return self.token is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given, self.token.encode()))


class RequestMiddleware:
    """Middleware that checks the host, the token and the body's size, and counts requests and their time.

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
        began, status, began_answer = time.perf_counter(), GONE, False

        async def counted(message: Message) -> None:
            nonlocal status, began_answer
            if message["type"] == "http.response.start":
                status, began_answer = message["status"], True
            await send(message)

        DEADLINE.set(asyncio.get_running_loop().time() + self.limits.timeout)
        try:
            await self._pass(scope, receive, counted)
        except FAULTS:
            logging.getLogger(__name__).exception("%s %s failed", scope["method"], scope["path"])
            if began_answer:
                raise
            await error_answer(500, FAULT, "server")(scope, receive, counted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path_format", getattr(route, "path", "other"))
            self.metrics.requests.labels(scope["method"], path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    def _is_called(self, host: bytes) -> bool:
        """Whether the header `Host` is allowed."""
        known = self.limits.allow_hosts
        return known is None or PORT.sub("", host.decode("latin-1").lower()) in known

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # within another application
        if not self._is_called(headers.get(b"host", b"")) and path != HEALTH:
            name = headers.get(b"host", b"")[:100].decode("latin-1")
            known = ", ".join(sorted(self.limits.allow_hosts or ()))
            what = f"the host must be {known}, found {name!r}: start the server with --allow-host for another name"
            await error_answer(421, what, "host", CLOSED)(scope, receive, send)
            return
        if path not in OPEN and not is_page(path) and not self.limits.bears_token(headers.get(b"authorization", b"")):
            refused = error_answer(
                401, "a request needs the header Authorization: Bearer TOKEN", "authorization", CLOSED
            )
            refused.headers["WWW-Authenticate"] = "Bearer"
            await refused(scope, receive, send)
            return
        await self._whole(scope, receive, send, headers)

    async def _whole(self, scope: Scope, receive: Receive, send: Send, headers: dict[bytes, bytes]) -> None:
        """Read the body, then call the application."""
        deadline = DEADLINE.get()
        parts: list[bytes] = []
        size, more = 0, True
        length = headers.get(b"content-length", b"0")
        too_long = length.isdigit() and int(length) > self.limits.max_body
        try:
            async with asyncio.timeout_at(deadline):
                while more and not too_long:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more, too_long = message.get("more_body", False), size > self.limits.max_body
        except TimeoutError:
            late = f"a body must arrive within {self.limits.timeout:g} s, and this one did not"
            await error_answer(408, late, "body", CLOSED)(scope, receive, send)
            return
        if too_long:
            what = f"a body must have at most {self.limits.max_body:,} bytes, and this one has more"
            await error_answer(413, what, "body", CLOSED)(scope, receive, send)
            return
        given_once = False

        async def again() -> Message:
            nonlocal given_once
            if given_once:
                return await receive()
            given_once = True
            return {"type": "http.request", "body": b"".join(parts), "more_body": False}

        await self.app(scope, again, send)
