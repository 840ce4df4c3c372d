"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, and errors of one form.

Every error is `{"error": {"message": ..., "field": ...}}`: what the rule is, what was found, and which part of the
request is meant. Answers and errors alike are in the published OpenAPI document.
"""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import fieldwise
from fieldwise.config import nearest
from fieldwise.errors import FieldwiseError
from fieldwise.schema import Field as SchemaField
from fieldwise.serving.batching import Batcher, BusyError
from fieldwise.serving.known_users import KnownUsers
from fieldwise.serving.page import add_page, is_page
from fieldwise.serving.replacement import Live
from fieldwise.serving.rows import RequestError, text_of
from fieldwise.serving.service import Asked, Service
from fieldwise.serving.stores.complete import Missing, Stores
from fieldwise.serving.stores.metrics import StoreMetrics

__all__ = ["ServerSettings", "create_app"]

A = TypeVar("A")
T = TypeVar("T")
Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Id = str | int | float | bool  # 3, 3.0 and "3" name the same
OPEN = ("/healthz", "/readyz")  # without a token
BATCH_ROWS = 10_000  # that requests answered together may rank or score


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server.

    Args:
        token: what `Authorization: Bearer` must hold; None lets everyone in.
        max_body: bytes of a request.
        max_rows: rows of a prediction.
        max_ids: ids of a list, and values of all filters.
        max_prerank: items that the ranking bundle sees.
        max_explained: rows of an explanation.
        max_k: items of an answer.
        timeout: seconds that an answer may take.
        max_batch: requests that are answered at once.
        batch_window: seconds that a request which finds no other at work waits for more to come.
        max_waiting: requests that may wait for an answer; further ones get 503 at once.
    """

    token: str | None = None
    max_body: int = 1 << 20
    max_rows: int = 1000
    max_ids: int = 100_000
    max_prerank: int = 10_000
    max_explained: int = 50
    max_k: int = 1000
    timeout: float = 10.0
    max_batch: int = 32
    batch_window: float = 0.0
    max_waiting: int = 1000


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRequest(_Body):
    """Raw rows: every column of the model's fields, or a known user and item; null where a value is not known."""

    rows: Annotated[list[dict[str, Cell]], Field(min_length=1)]


class PredictResponse(BaseModel):
    """For each row `score` (a logit, or a number) and `prediction` (a probability, or a number); of labels by name."""

    predictions: list[dict[str, float]]
    degraded: list[Missing] = []


class RecommendRequest(_Body):
    """For a known user, or for raw user and context fields; given fields count before the user's own."""

    user: Id | None = None
    context: dict[str, Cell] = {}
    k: Annotated[int, Field(ge=1)] = 10
    prerank: Annotated[int, Field(ge=1)] = 200
    candidates: list[Id] | None = None
    exclude: list[Id] = []
    where: dict[str, list[Id]] = {}


class Item(BaseModel):
    """An item with its columns; `prediction` is the ranking's (a probability), `prerank_score` IntTower's logit."""

    id: str
    fields: dict[str, Cell]
    prerank_score: float | None = None
    prediction: float | None = None
    similarity: float | None = None


class RecommendResponse(BaseModel):
    """The best items first, how many were left after each stage, and what each stage took."""

    items: list[Item]
    counts: dict[str, int]
    milliseconds: dict[str, float]
    degraded: list[Missing] = []


class ExplainRequest(_Body):
    """Either raw rows, or items of the index for a user or a context.

    With `pairs`, models without terms of pairs have `measured_pairs`: what two fields give together.
    """

    rows: list[dict[str, Cell]] = []
    user: Id | None = None
    context: dict[str, Cell] = {}
    items: list[Id] = []
    pairs: bool = False


class ExplainResponse(BaseModel):
    """For each row what `fieldwise explain --json` prints of it."""

    explanations: list[dict[str, Any]]
    degraded: list[Missing] = []


class SimilarResponse(BaseModel):
    """The nearest items first."""

    items: list[Item]


class ErrorBody(BaseModel):
    """What is wrong, and with which part of the request."""

    message: str
    field: str | None = None


class ErrorResponse(BaseModel):
    """The form of every error."""

    error: ErrorBody


BODIES: dict[str, type[BaseModel]] = {
    "/v1/predict": PredictRequest,
    "/v1/recommend": RecommendRequest,
    "/v1/explain": ExplainRequest,
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "The body cannot be read",
        401: "No token, or a wrong one",
        404: "Unknown user or item",
        408: "The body did not arrive in time",
        413: "The body is too large",
        422: "The request cannot be answered as it is",
        503: "The answer took too long, too many requests wait, or a store fails: ask again after Retry-After",
    }.items()
}


def create_app(
    service: Service | Live,
    settings: ServerSettings | None = None,
    stores: Stores | None = None,
    *,
    title: str | None = None,
) -> FastAPI:
    """The application of a service.

    Args:
        service: what answers, or who holds what answers now; the work runs in one thread, so that requests do not
            fight for the cores.
        settings: limits and token.
        stores: fields of known users and items; opened and closed with the application.
        title: the item column that the page names items by; chosen by rule where left out.

    Errors:
        ConfigError: items have no such column.
    """
    limits, features = settings or ServerSettings(), stores or Stores()
    live = service if isinstance(service, Live) else Live(service)
    worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise")
    metrics = _Metrics(live)
    store_metrics = StoreMetrics(features, metrics.registry)

    @asynccontextmanager
    async def until_stopped(_: FastAPI) -> AsyncIterator[None]:
        await features.open()
        yield
        await features.close()

    app = FastAPI(
        title="fieldwise",
        version=fieldwise.__version__,
        responses=ERRORS,
        lifespan=until_stopped,
        docs_url=None,  # the page's own: those of FastAPI run scripts from elsewhere
        redoc_url=None,
    )

    def batched(run: Callable[[list[A]], Sequence[T | Exception]], cost: Callable[[A], int]) -> Batcher[A, T]:
        return Batcher(
            worker,
            run,
            most=limits.max_batch,
            cost=cost,
            budget=BATCH_ROWS,
            window=limits.batch_window,
            waiting=limits.max_waiting,
        )

    def predict_all(requests: Sequence[list[dict[str, Any]]]) -> Sequence[list[dict[str, float]] | Exception]:
        return live.service.predict_all(requests)

    def recommend_all(requests: Sequence[Asked]) -> Sequence[dict[str, Any] | Exception]:
        return live.service.recommend_all(requests)

    predictions = batched(predict_all, cost=len)
    recommendations = batched(recommend_all, cost=lambda asked: asked.prerank)
    working = 0

    async def in_time(answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(limits.timeout):
                return await answer
        except TimeoutError:
            raise RequestError(
                f"an answer may take {limits.timeout:g} s, and this one took longer", "server", 503
            ) from None
        except BusyError:
            raise RequestError(
                f"{limits.max_waiting:,} requests may wait, and so many do: ask again later", "server", 503
            ) from None

    async def queued(call: Callable[[], T]) -> T:
        nonlocal working
        if working >= limits.max_waiting:
            raise BusyError
        working += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(worker, call)
        finally:
            working -= 1

    async def work(call: Callable[[], T]) -> T:
        return await in_time(queued(call))

    async def whole(rows: list[dict[str, Cell]]) -> tuple[list[dict[str, Any]], list[Missing]]:
        now = live.service
        items = now.item_rows if now.cascade else None
        return store_metrics.counted(await features.rows(rows, now.bundle.schema.fields, items))

    async def known(
        user: Id | None, context: dict[str, Cell], fields: list[SchemaField]
    ) -> tuple[dict[str, Any], list[Missing]]:
        return store_metrics.counted(await features.context(_name(user), context, fields))

    @app.post("/v1/predict", response_model=PredictResponse)
    async def predict(body: PredictRequest) -> Response:
        """Score raw rows."""
        _at_most(limits.max_rows, body.rows, "rows")
        rows, degraded = await whole(body.rows)
        return _json({"predictions": await in_time(predictions.ask(rows)), "degraded": degraded})

    @app.post("/v1/recommend", response_model=RecommendResponse)
    async def recommend(body: RecommendRequest) -> Response:
        """The best items for a user in a context."""
        _at_most_number(limits.max_k, body.k, "k")
        _at_most_number(limits.max_prerank, body.prerank, "prerank")
        values = [value for values in body.where.values() for value in values]
        for name, ids in (("candidates", body.candidates or []), ("exclude", body.exclude), ("where", values)):
            _at_most(limits.max_ids, ids, name)
        context, degraded = await known(body.user, body.context, live.service.context_fields)
        asked = Asked(
            context=context,
            k=body.k if "k" in body.model_fields_set else None,
            prerank=body.prerank,
            candidates=None if body.candidates is None else _names(body.candidates, "candidates"),
            exclude=_names(body.exclude, "exclude"),
            where={column: _names(values, f"where.{column}") for column, values in body.where.items()},
        )
        found = await in_time(recommendations.ask(asked))
        metrics.stages(found["milliseconds"])
        return _json(found | {"degraded": degraded})

    @app.post("/v1/explain")
    async def explain(body: ExplainRequest) -> ExplainResponse:
        """Why rows, or items for a user, have their scores."""
        if bool(body.rows) == bool(body.items):
            raise RequestError("an explanation is of rows or of items: give one of the two", "rows")
        if body.rows and (body.user is not None or body.context):
            name = "context" if body.context else "user"
            raise RequestError(f"{name} belongs to items: rows hold all values themselves", name)
        _at_most(limits.max_explained, body.rows or body.items, "rows" if body.rows else "items")
        context: dict[str, Any] = {}
        rows, degraded = await whole(body.rows)
        if body.items:
            context, degraded = await known(body.user, body.context, live.service.explained_fields)
        items = _names(body.items, "items")
        found = await work(lambda: live.service.explain(rows=rows, context=context, items=items, pairs=body.pairs))
        return ExplainResponse(explanations=found, degraded=degraded)

    @app.get("/v1/items/{id:path}/similar")
    async def similar(
        id: Annotated[str, Path(max_length=1000)],  # noqa: A002 (the name in the path)
        k: Annotated[int, Query(ge=1)] = 10,
    ) -> SimilarResponse:
        """The items nearest to an item."""
        _at_most_number(limits.max_k, k, "k")
        return SimilarResponse(items=[Item(**found) for found in await work(lambda: live.service.similar(id, k))])

    @app.get("/healthz", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    async def ready() -> dict[str, Any]:
        now = live.service
        index = now.cascade.index if now.cascade else None
        return {
            "status": "ready",
            "model": now.bundle.digest,
            "calibrated": bool(now.bundle.calibration),
            "prerank": now.cascade.prerank.digest if now.cascade else None,
            "items": len(index) if index else 0,
            "index": index.generation if index else None,
            "replaced": live.replaced,
            "refused": live.refused,
            "stores": await features.states(),
        }

    @app.get("/metrics", include_in_schema=False)
    async def exposition() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(RequestError)
    async def refused(_: Request, e: RequestError) -> JSONResponse:
        return _error(e.status, str(e), e.field, {"Retry-After": "1"} if e.status == 503 else None)

    @app.exception_handler(FieldwiseError)
    async def wrong(_: Request, e: FieldwiseError) -> JSONResponse:
        return _error(422, str(e), None)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, e: RequestValidationError) -> JSONResponse:
        first = e.errors()[0]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 2:
            name = str(first["loc"][1])
            kind = BODIES.get(request.url.path.removeprefix(request.scope.get("root_path", "")))
            return _error(
                422,
                f"{name[:60]} is no part of such a request: {nearest(name, kind.model_fields if kind else ())}",
                name,
            )
        if first["type"] == "json_invalid":
            return _error(422, f"a body must be JSON, found other text at character {first['loc'][-1]}", None)
        if first["loc"] == ("body",) and first["type"] in ("model_attributes_type", "missing"):
            what = "a body must be a JSON object, sent with the header Content-Type: application/json"
            return _error(422, what, "body")
        parts = [part for part in first["loc"] if part not in ("body", "query", "path")]
        cell = (len(parts) > 3 and parts[0] == "rows") or (len(parts) > 2 and parts[0] == "context")
        kept = parts[:3] if parts[:1] == ["rows"] else parts[:2]  # behind a cell stand the types that it is not
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in kept).lstrip(".")
        what = "must be text, a number, true, false, null or a list of these" if cell else first["msg"]
        return _error(422, f"{place or 'the body'}: {what}", place or None)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, e: HTTPException) -> JSONResponse:
        return _error(e.status_code, str(e.detail), None, dict(e.headers or {}))

    most = {"k": limits.max_k, "rows": limits.max_rows, "explained": limits.max_explained}
    add_page(app, lambda: live.service, KnownUsers(features) if features.users else None, most, title=title)
    app.add_middleware(_Gate, limits=limits, metrics=metrics)
    return app


def _json(answer: dict[str, Any]) -> Response:
    """An answer that is known to be in form: it is not checked against the published document once more."""
    return Response(to_json(answer, inf_nan_mode="null"), media_type="application/json")


def _error(status: int, message: str, field: str | None, headers: dict[str, str] | None = None) -> JSONResponse:
    # What a request holds may be no text that can be sent back.
    message = message.encode(errors="replace").decode()
    field = None if field is None else field.encode(errors="replace").decode()
    body = ErrorResponse(error=ErrorBody(message=message, field=field))
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)


def _name(value: Id | None) -> str | None:
    return None if value is None else _names([value], "user")[0]


def _names(values: Sequence[Id], where: str) -> list[str]:
    """Ids and values as texts."""
    try:
        return [text_of(value) for value in values]
    except ValueError as e:
        raise RequestError(f"{where} must be {e}", where) from None


def _at_most(most: int, values: list[Any], name: str) -> None:
    if len(values) > most:
        raise RequestError(f"{name} must be at most {most:,}, found {len(values):,}", name)


def _at_most_number(most: int, value: int, name: str) -> None:
    if value > most:
        raise RequestError(f"{name} must be at most {most:,}, found {value:,}", name)


class _Metrics:
    """Prometheus' counters of one application."""

    def __init__(self, live: Live) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "path", "status")
        self.requests = Counter("fieldwise_requests_total", "Requests answered.", labels, registry=self.registry)
        self.seconds = Histogram("fieldwise_seconds", "Seconds an answer took.", ("path",), registry=self.registry)
        self.stage = Histogram("fieldwise_stage_seconds", "Seconds a stage took.", ("stage",), registry=self.registry)

        replaced = Gauge("fieldwise_replacements", "Bundles or indexes replaced since start.", registry=self.registry)
        replaced.set_function(lambda: live.replaced)
        refused = Gauge(
            "fieldwise_replacement_refused", "1 while the newest on disk is refused.", registry=self.registry
        )
        refused.set_function(lambda: live.refused is not None)

    def stages(self, milliseconds: dict[str, float]) -> None:
        for stage, value in milliseconds.items():
            self.stage.labels(stage).observe(value / 1000)


class _Gate:
    """Before everything else: the token, the size of the body as it comes in, and what is counted."""

    def __init__(self, app: ASGIApp, limits: ServerSettings, metrics: _Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._pass(scope, receive, counted)
        finally:
            route = scope.get("route")
            path = getattr(route, "path_format", getattr(route, "path", "other"))
            self.metrics.requests.labels(scope["method"], path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # within another application
        if self.limits.token is not None and path not in OPEN and not is_page(path):
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self.limits.token.encode()):
                refused = _error(401, "a request needs the header Authorization: Bearer TOKEN", "authorization")
                refused.headers["WWW-Authenticate"] = "Bearer"
                await refused(scope, receive, send)
                return
        body, more = b"", True
        length = headers.get(b"content-length", b"0")
        too_long = length.isdigit() and int(length) > self.limits.max_body
        try:
            async with asyncio.timeout(self.limits.timeout):
                while more and not too_long:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more, too_long = message.get("more_body", False), len(body) > self.limits.max_body
        except TimeoutError:
            late = f"a body may take {self.limits.timeout:g} s to arrive, and this one did not"
            await _error(408, late, "body", {"Connection": "close"})(scope, receive, send)
            return
        if too_long:
            await _error(413, f"a body may have {self.limits.max_body:,} bytes, and this one has more", "body")(
                scope, receive, send
            )
            return
        given_once = False

        async def again() -> Message:
            nonlocal given_once
            if given_once:
                return await receive()
            given_once = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)
