"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, errors of one form, and a web page.

Every error is `{"error": {"message": ..., "field": ...}}`: the rule, the value found, and the part
of the request concerned. Responses and errors are both in the published OpenAPI document.
"""

import asyncio
import contextlib
import hmac
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.explain.effects import shown_fields, widest_first
from fieldwise.scoring import MAX_BODY, PRERANK, TIMEOUT_S
from fieldwise.serving import bodies
from fieldwise.serving.batching import MAX_BATCH, MAX_WAITING, Batcher, ChunkQueue
from fieldwise.serving.bodies import BODY, check_most, read_body
from fieldwise.serving.browser import filled
from fieldwise.serving.replacement import Live
from fieldwise.serving.rows import FAULTS, RequestError, values_of
from fieldwise.serving.service import Service, explanations, tried
from fieldwise.serving.stores import REASON_TEXTS, Missing, StoreError, StoreRefusedError, Stores
from fieldwise.version import __version__

__all__ = ["ServerSettings", "create_app"]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "img-src 'self'", "img-src 'self' data:"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
CHUNK_ROWS = 10  # rows explained at once
BATCH_ROWS = 10_000  # maximum rows to rank in a batch of requests
# maximum rows to score in a batch of requests: other requests wait until they are done
SCORED_ROWS = 1_000
# where prometheus_client keeps the metrics of several processes
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
REJECTED = "the newest files were rejected: use the token for details, or see the server's log"  # paths are private

PORT = re.compile(r":[0-9]*$")
GONE = 499  # as nginx counts a client that has left
HEALTH = "/healthz"
# Answered without a token, and then without what is private.
TOKEN_FREE_PATHS = (HEALTH, "/readyz", "/openapi.json", "/", "/docs")
OPEN_FILES = "/page/"
CLOSE_CONNECTION = {"Connection": "close"}
# how much of a refused request is read: seconds, and bodies of max_body
LINGER_SECONDS = 1.0
LINGER_BODIES = 4
ERROR_HEADERS = {  # of errors, by status
    401: {"WWW-Authenticate": "Bearer", **CLOSE_CONNECTION},
    408: CLOSE_CONNECTION,
    413: CLOSE_CONNECTION,
    421: CLOSE_CONNECTION,
    503: {"Retry-After": "1"},
}
MOST = 100  # maximum users or items of a response
Search = Annotated[str, Query(max_length=200)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=MOST)]
AnyId = Annotated[str, Path(max_length=1000)]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Args:
        token: required token in `Authorization: Bearer`; None allows access without a token.
        allow_hosts: allowed values of the header `Host`, lower case, without port; None for any.
            This protects against DNS rebinding.
        max_body: maximum bytes of a request.
        max_rows: maximum rows of a prediction.
        max_ids: maximum ids of a list, and values of all filters.
        max_prerank: maximum items for the ranking bundle.
        max_explained: maximum rows of an explanation.
        max_k: maximum items of a response.
        timeout: maximum seconds for a response.
        max_batch: maximum requests in a batch.
        max_waiting: maximum number of waiting requests; further ones get 503 and `Retry-After` at
            once.

    Errors:
        ConfigError: an empty token.
    """

    token: str | None = None
    allow_hosts: frozenset[str] | None = None
    max_body: int = MAX_BODY
    max_rows: int = 1000
    max_ids: int = 100_000
    max_prerank: int = 10_000
    max_explained: int = 50
    max_k: int = 1000
    timeout: float = TIMEOUT_S
    max_batch: int = MAX_BATCH
    max_waiting: int = MAX_WAITING

    def __post_init__(self) -> None:
        if self.token is not None and not self.token.strip():
            raise ConfigError("a token must not be empty: give None to allow access without one")

    def bears_token(self, authorization: bytes) -> bool:
        """Whether a header `Authorization` has the token, or none is required."""
        scheme, _, given = authorization.partition(b" ")
        return self.token is None or (
            scheme.lower() == b"bearer" and hmac.compare_digest(given, self.token.encode())
        )


def create_app(
    service: Service | Live, settings: ServerSettings | None = None, stores: Stores | None = None
) -> FastAPI:
    """Create the application for a service.

    Args:
        service: the service, or the holder of a replaceable one; it computes in one thread, so that
            requests do not compete for the cores.
        settings: limits and token.
        stores: features of known users and items; opened and closed with the application.
    """
    features = stores or Stores()
    live = service if isinstance(service, Live) else Live(service)
    state = AppState(live, settings or ServerSettings(), features)

    @contextlib.asynccontextmanager
    async def until_stopped(_: FastAPI) -> AsyncIterator[None]:
        async with features.opened():
            yield

    app = FastAPI(
        title="fieldwise",
        version=__version__,
        responses=bodies.ERRORS,
        lifespan=until_stopped,
        # the routes below have the document and its page: FastAPI's loads scripts from other sites
        openapi_url=None,
    )
    for routes in (
        _scoring_routes(state),
        _query_routes(state),
        _user_routes(state),
        _unlisted_routes(state),
    ):
        app.include_router(routes)
    _add_requests(app.openapi(), state.limits)
    _add_errors(app, state)
    app.state.registry = state.metrics.registry
    app.add_middleware(RequestMiddleware, limits=state.limits, metrics=state.metrics)
    return app


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
        text = "Requests refused because a store's values were missing."
        self.store_refused = counter("store_refused", text, "store", "reason")
        failures = counter("store_failures", "Queries that failed.", "store", "reason")

        histogram = partial(Histogram, registry=registry)
        self.seconds = histogram("fieldwise_seconds", "Seconds an answer took.", ("path",))
        self.stage = histogram("fieldwise_stage_seconds", "Seconds a stage took.", ("stage",))
        queries = histogram(
            "fieldwise_store_seconds", "Duration of a query.", ("store",), buckets=STORE_BUCKETS
        )
        gauge = partial(Gauge, registry=registry)
        text = "Bundles or indexes replaced since start, by all workers."
        replaced = gauge("fieldwise_replacements", text, multiprocess_mode="livemin")
        text = "1 while the newest on disk is refused."
        refused = gauge("fieldwise_replacement_refused", text, multiprocess_mode="livemax")

        def set_replacements(live: Live) -> None:
            replaced.set(live.replaced)
            refused.set(live.refused is not None)

        def count_query(store: str, state: str, seconds: float) -> None:
            if state != "ok":
                failures.labels(store, state).inc()
            if state != "paused":
                queries.labels(store).observe(seconds)

        live.on_change = set_replacements
        set_replacements(live)
        for lookup in stores.lookups:
            lookup.observe = count_query


class AppState:
    """What an application's routes share."""

    def __init__(self, live: Live, limits: ServerSettings, stores: Stores) -> None:
        self.live = live
        self.limits = limits
        self.stores = stores
        self.metrics = Metrics(live, stores)
        worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise")
        waiting = limits.max_waiting
        queue: Callable[..., Batcher[Any, Any]] = partial(
            Batcher, worker, most=limits.max_batch, waiting=waiting
        )

        # the service is read once a batch: it can be replaced
        self.predictions = queue(
            lambda requests: live.service.predict_all(requests), budget=SCORED_ROWS, cost=len
        )
        self.recommendations = queue(
            lambda requests: live.service.recommend_all(requests),
            budget=BATCH_ROWS,
            cost=lambda one: live.service.cost(one),
        )
        self.calls = queue(lambda requests: [tried(lambda call: call(), one) for one in requests])
        others = (self.predictions, self.recommendations)
        self.explanations = ChunkQueue(worker, waiting, lambda: any(one.at_work for one in others))

    def check_context(self, context: Mapping[str, Any]) -> None:
        """Check that a context has no column that nothing here has: it may be a wrong spelling."""
        known = self.live.service.known_columns
        if context.keys() <= known:
            return
        lookups = self.stores.lookups
        named = known.union(one.column for one in lookups)
        # other columns of a store stay private
        known = named.union(*(one.store.columns for one in lookups))
        for name in (name[:60] for name in context if name not in known):
            what = f"a context must have columns that the server knows, found {name!r}: {nearest(name, named)}"
            raise RequestError(what, f"context.{name}")

    def is_trusted(self, request: Request) -> bool:
        """Whether a request has the token, or none is required."""
        return self.limits.bears_token(request.headers.get("authorization", "").encode())

    def answer(self, content: dict[str, Any], degraded: Sequence[Missing]) -> Response:
        """A response of a known form, which is not validated against the OpenAPI document again; NaN becomes null."""
        for store, reason in {(one.store, one.reason) for one in degraded}:
            self.metrics.degraded.labels(store, reason).inc()
        return Response(
            to_json(content | {"degraded": degraded}, inf_nan_mode="null"),
            media_type="application/json",
        )


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
        status = GONE

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
                    logging.getLogger(__name__).exception(
                        "%s %s failed", scope["method"], scope["path"]
                    )
                    if status != GONE:
                        raise
                    answer = error_answer(
                        500, "internal error of the server; see its log", "server"
                    )
                    await answer(scope, receive, counted)
        except TimeoutError:
            if status != GONE:
                raise
            most = f"{self.limits.timeout:g} s"
            answer = error_answer(
                503, f"an answer may take {most}, and this one took longer", "server"
            )
            if BODY not in scope:
                answer = error_answer(
                    408, f"a body must arrive within {most}, and this one did not", "body"
                )
            await answer(scope, receive, counted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path_format", getattr(route, "path", "other"))
            self.metrics.requests.labels(scope["method"], path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, read its body, and call the application."""
        headers = dict(scope["headers"])
        limits = self.limits
        most = self.limits.max_body
        length = headers.get(b"content-length", b"0")
        declared = int(length) if length.isdigit() else 0
        # such a client sends its body when it is asked for it
        ended = False
        withheld = b"expect" in headers
        size, parts = 0, list[bytes]()

        async def read_part() -> bytes:
            nonlocal ended, withheld, size
            withheld = False
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            ended = not message.get("more_body", False)
            body: bytes = message.get("body", b"")
            size += len(body)
            return body

        try:
            # within another application
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            host = headers.get(b"host", b"").decode("latin-1")
            known = limits.allow_hosts
            if known is not None and PORT.sub("", host.lower()) not in known and path != HEALTH:
                names = ", ".join(sorted(known))
                to_do = "start the server with --allow-host for another name"
                raise RequestError(
                    f"the host must be {names}, found {host[:100]!r}: {to_do}", "host", 421
                )
            is_open = path in TOKEN_FREE_PATHS or path.startswith(OPEN_FILES)
            if not is_open and not limits.bears_token(headers.get(b"authorization", b"")):
                raise RequestError(
                    "a request needs the header Authorization: Bearer TOKEN", "authorization", 401
                )
            while not ended and max(size, declared) <= most:
                parts.append(await read_part())
            if max(size, declared) > most:
                raise RequestError(
                    f"a body must have at most {most:,} bytes, and this one has more", "body", 413
                )
            scope[BODY] = b"".join(parts)
            parts.clear()  # else a request that waits would hold its body twice
        except RequestError as e:
            size = 0  # closing a connection with unread bytes would lose the answer on its way
            with contextlib.suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(LINGER_SECONDS):
                    while not (ended or withheld) and size < LINGER_BODIES * most:
                        await read_part()
            await error_answer(e.status, str(e), e.field)(scope, receive, send)
        except ClientDisconnect:
            pass
        else:
            await self.app(scope, receive, send)


def error_answer(
    status: int, message: str, field: str | None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error as a response, of the form `ErrorResponse`; `field` is the part of the request concerned."""
    # Text of a request is not always encodable as UTF-8.
    message = message.encode(errors="replace").decode()
    field = None if field is None else field.encode(errors="replace").decode()
    error = {"error": {"message": message, "field": field}}
    return JSONResponse(error, status, (headers or {}) | ERROR_HEADERS.get(status, {}))


class BodyRoute(APIRoute):
    """A route whose function reads the request and makes the response itself, without FastAPI's validation."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


def _body(name: str) -> dict[str, Any]:
    """The body of a request in the document."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _scoring_routes(state: AppState) -> APIRouter:
    """Predictions, recommendations and explanations."""
    routes = APIRouter(route_class=BodyRoute)
    limits = state.limits
    stores = state.stores
    read = partial(read_body, max_rows=limits.max_rows, max_ids=limits.max_ids)

    async def completed(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Missing]]:
        now = state.live.service
        items = now.item_rows if now.cascade else None
        return await stores.rows(rows, now.bundle.schema.fields, items, missing=now.missing)

    @routes.post(
        "/v1/predict", response_model=bodies.PredictResponse, openapi_extra=_body("PredictRequest")
    )
    async def predict(request: Request) -> Response:
        """Score raw rows."""
        body = await read(request, bodies.PredictRequest)
        rows, degraded = await completed(body.rows)
        return state.answer({"predictions": await state.predictions.ask(rows)}, degraded)

    @routes.post(
        "/v1/recommend",
        response_model=bodies.RecommendResponse,
        openapi_extra=_body("RecommendRequest"),
    )
    async def recommend(request: Request) -> Response:
        """The best items for a user in a context."""
        body = await read(request, bodies.RecommendRequest)
        check_most(limits.max_k, body.k or 1, "k")
        check_most(limits.max_prerank, body.prerank, "prerank")
        state.check_context(body.context)
        now = state.live.service
        fields = now.context_fields
        body.context, degraded = await stores.context(
            body.user, body.context, fields, missing=now.missing
        )
        result = await state.recommendations.ask(body)
        state.metrics.recommended.labels(result["ranked"]).inc()
        state.metrics.seen.inc(result["seen"])
        for stage, milliseconds in result["milliseconds"].items():
            state.metrics.stage.labels(stage).observe(milliseconds / 1000)
        return state.answer(result, degraded)

    @routes.post(
        "/v1/explain", response_model=bodies.ExplainResponse, openapi_extra=_body("ExplainRequest")
    )
    async def explain(request: Request) -> Response:
        """Explain the scores of rows, or of items for a user."""
        body = await read(request, bodies.ExplainRequest)
        if bool(body.rows) == bool(body.items):
            raise RequestError(
                "an explanation needs either rows or items: give one of the two", "rows"
            )
        if body.rows and (body.user is not None or body.context):
            name = "context" if body.context else "user"
            raise RequestError(
                f"{name} is only for items: rows must have all values themselves", name
            )
        check_most(
            limits.max_explained, len(body.rows or body.items), "rows" if body.rows else "items"
        )
        state.check_context(body.context)
        body.rows, degraded = await completed(body.rows)
        now = state.live.service
        if body.items:
            fields = now.explained_fields
            body.context, degraded = await stores.context(
                body.user, body.context, fields, missing=now.missing
            )
        # measuring pairs takes long
        step = CHUNK_ROWS if not body.pairs or _has_pair_terms(now.bundle) else 1

        def chunks() -> list[Callable[[], list[dict[str, Any]]]]:
            frame = now.explained_rows(body)
            parts = (frame[start : start + step] for start in range(0, frame.height, step))
            return [partial(explanations, now.bundle, part, pairs=body.pairs) for part in parts]

        return state.answer({"explanations": await state.explanations.run(chunks)}, degraded)

    return routes


def _has_pair_terms(bundle: Bundle) -> bool:
    """Whether the network of the main label has a term for each pair of fields, so that none need be measured."""
    network = (
        cast(nn.ModuleList, bundle.network.heads)[0]
        if bundle.schema.more_labels
        else bundle.network
    )
    return bool(getattr(network, "pair_terms", False))


def _query_routes(state: AppState) -> APIRouter:
    """The directions of fields, similar items, and what the page shows of this server and its items."""
    routes = APIRouter()
    most = state.limits.max_k
    users = state.stores.users

    @routes.get("/v1/effects", response_model=bodies.EffectsResponse)
    async def effects() -> Any:
        """The main label's mean prediction by value of each field, over the bundle's sample rows; computed once."""
        now = state.live.service
        calls = [partial(now.effect, field) for field in shown_fields(now.bundle.schema)]
        return {"effects": widest_first(await state.explanations.run(lambda: calls))}

    @routes.get("/v1/items/{id:path}/similar", response_model=bodies.SimilarResponse)
    async def similar(
        id: AnyId,  # noqa: A002 (the name in the path)
        k: Annotated[int, Query(ge=1, json_schema_extra={"maximum": most})] = 10,
    ) -> Any:
        """The items nearest to an item."""
        check_most(most, k, "k")
        return {"items": await state.calls.ask(lambda: state.live.service.similar(id, k))}

    @routes.get("/v1/about")
    async def about() -> dict[str, Any]:
        """Describe this server as its page needs it: bundles, labels, fields with usual values, items, users, limits.

        `items` also says whether the server has a log of users' rows (`seen`), the rule of a
        positive row in words (`positive`), and which items of a user's rows are excluded by default
        (`exclude_seen`, as in a request).
        """
        now = state.live.service
        limits = state.limits
        result = now.browser.about
        if result["items"] is not None:
            positive = now.log and now.log.positive
            known = {
                "seen": now.log is not None,
                "positive": positive,
                "exclude_seen": now.exclude_seen,
            }
            result = result | {"items": result["items"] | known}
        maxima = {
            "k": limits.max_k,
            "rows": limits.max_rows,
            "explained": limits.max_explained,
            "prerank": PRERANK,
        }
        people = None if users is None else {"column": users.column, "count": users.store.count}
        return result | {"users": people, "limits": maxima}

    @routes.get("/v1/items", response_model=bodies.CatalogueResponse)
    async def items(
        id: Annotated[list[str], Query(max_length=MOST)] = [],  # noqa: A002, B006 (read, never written)
        search: Search = "",
        offset: Offset = 0,
        limit: Limit = 10,
    ) -> Any:
        """Items by id (unknown ids are skipped), or items whose id starts with a text or whose title contains it."""
        now = state.live.service
        result = now.browser.items(search, id)
        return {"items": now.items(result[offset : offset + limit]), "count": len(result)}

    return routes


def _user_routes(state: AppState) -> APIRouter:
    """What the page shows of users."""
    routes = APIRouter()
    users = state.stores.users

    @routes.get("/v1/users", response_model=bodies.UsersResponse)
    async def find_users(search: Search = "", offset: Offset = 0, limit: Limit = 10) -> Any:
        """Users whose ids start with a text; none if the server cannot list users."""
        if users is None:
            return {"users": [], "count": 0}
        if offset and users.store.count is None:
            raise RequestError(
                "offset must be 0, because this server's store does not count its users", "offset"
            )
        try:
            result, count = await users.search(search, offset, limit)
        except StoreError as e:
            raise RequestError(
                f"the users' store {REASON_TEXTS[e.reason]}: try again later", "search", 503
            ) from None
        return {"users": result, "count": count}

    @routes.get("/v1/users/{id:path}", response_model=bodies.UserResponse)
    async def user(id: AnyId) -> Any:  # noqa: A002 (the name in the path)
        """A user's values of the models' fields."""
        if users is None:
            raise RequestError(
                "this server has no users: give their fields as context", "user", 404
            )
        now = state.live.service
        fields = now.browser.user_fields
        held = {*users.store.columns, users.column}
        stored = [field for field in fields if field.column in held]
        values, degraded = await state.stores.context(id, {}, stored, missing=now.missing)
        values = {column: filled(value) for column, value in values.items()}
        answer = {
            "id": id,
            "fields": values,
            "position": users.store.position(id),
            "degraded": degraded,
        }
        if now.log is not None:
            latest = now.log.context(id)
            named = [
                field for field in fields if field.column in latest and field.column not in values
            ]
            own = values_of(latest, named, "context", missing=now.missing)
            context = {name: filled(one) for name, one in own.items()}
            answer |= {"context": context, "seen": len(now.log.used(id))}
        return answer

    return routes


def _unlisted_routes(state: AppState) -> APIRouter:
    """Routes outside the OpenAPI document: the document, the page, and the status for orchestrators and Prometheus.

    A client without the server's token gets the document without examples, which are rows of the
    bundle. The page's files run and load only what is from this server; they hold no data and need
    no token.
    """
    routes = APIRouter(include_in_schema=False)
    static = StaticFiles(packages=[("fieldwise.serving", "static"), ("fastapi_offline", "static")])

    @routes.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz")
    async def ready(request: Request) -> dict[str, Any]:
        now = state.live.service
        live = state.live
        trusted = state.is_trusted(request)
        return now.status | {
            "replaced": live.replaced,
            "refused": live.refused if trusted or live.refused is None else REJECTED,
            "watcher": live.watched() if trusted else live.watched().partition(":")[0],
            "stores": await state.stores.states(),
        }

    @routes.get("/metrics")
    async def exposition() -> Response:
        registry = state.metrics.registry
        # this process is one of several, whose metrics are added
        if os.environ.get(SHARED_METRICS):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/openapi.json")
    async def document(request: Request) -> Response:
        result = request.app.openapi()
        root = request.scope.get("root_path", "").rstrip("/")
        if state.is_trusted(request):
            result = deepcopy(result)
            for path, example in state.live.service.examples(min(2, state.limits.max_rows)).items():
                result["paths"][path]["post"]["requestBody"]["content"]["application/json"][
                    "example"
                ] = example
        return JSONResponse(result | ({"servers": [{"url": root}]} if root else {}))

    @routes.get("/docs")
    @routes.get("/")
    @routes.get("/page/{name}")
    async def file(request: Request) -> Response:
        is_docs = request.scope["route"].path == "/docs"
        name = request.path_params.get("name") or ("docs.html" if is_docs else "index.html")
        response = await static.get_response(name, request.scope)
        response.headers.update(
            HEADERS | {"Content-Security-Policy": DOCS_POLICY if is_docs else POLICY}
        )
        return response

    return routes


def _add_errors(app: FastAPI, state: AppState) -> None:
    """Make an application return all errors in the common form."""

    @app.exception_handler(RequestError)
    async def refused(_: Request, e: RequestError) -> JSONResponse:
        if isinstance(e, StoreRefusedError):
            state.metrics.store_refused.labels(e.store, e.reason).inc()
        return error_answer(e.status, str(e), e.field)

    @app.exception_handler(FieldwiseError)
    async def wrong(_: Request, e: FieldwiseError) -> JSONResponse:
        return error_answer(422, str(e), None)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, e: RequestValidationError) -> JSONResponse:
        first = e.errors()[0]
        place = next(
            (str(part) for part in first["loc"] if part not in ("body", "query", "path")), None
        )
        return error_answer(422, f"{place or 'the body'}: {first['msg']}", place)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, e: HTTPException) -> JSONResponse:
        return error_answer(e.status_code, str(e.detail), None, dict(e.headers or {}))


def _add_requests(document: dict[str, Any], limits: ServerSettings) -> None:
    """Add the forms of requests to an OpenAPI document, with the maxima of the settings, and the token."""
    _, forms = msgspec.json.schema_components(
        bodies.REQUESTS, ref_template="#/components/schemas/{name}"
    )
    for name, key, maxima in (
        ("PredictRequest", "maxItems", {"rows": limits.max_rows}),
        ("RecommendRequest", "maximum", {"k": limits.max_k, "prerank": limits.max_prerank}),
        ("RecommendRequest", "maxItems", {"candidates": limits.max_ids, "exclude": limits.max_ids}),
        ("ExplainRequest", "maxItems", dict.fromkeys(("rows", "items"), limits.max_explained)),
    ):
        for field, most in maxima.items():
            form = forms[name]["properties"][field]
            form.get("anyOf", [form])[0][key] = most
    document["components"]["schemas"] |= forms
    if limits.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
