"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, and errors of one form.

Every error is `{"error": {"message": ..., "field": ...}}`: what the rule is, what was found, and which part of the
request is meant. Answers and errors alike are in the published OpenAPI document.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import to_json

from fieldwise.schema import Field as SchemaField
from fieldwise.serving.batching import Batcher, BusyError
from fieldwise.serving.forms import (
    ERRORS,
    Cell,
    ExplainRequest,
    ExplainResponse,
    Id,
    Item,
    PredictRequest,
    PredictResponse,
    RecommendRequest,
    RecommendResponse,
    SimilarResponse,
)
from fieldwise.serving.gate import Gate, Metrics, ServerSettings
from fieldwise.serving.http_errors import add_errors
from fieldwise.serving.index import ItemIndex
from fieldwise.serving.page.known_users import KnownUsers
from fieldwise.serving.page.routes import add_page
from fieldwise.serving.replacement import Live
from fieldwise.serving.rows import RequestError, text_of
from fieldwise.serving.service import Asked, Service
from fieldwise.serving.stores.complete import Missing, Stores
from fieldwise.serving.stores.metrics import StoreMetrics
from fieldwise.version import __version__

__all__ = ["ServerSettings", "create_app"]

A = TypeVar("A")
T = TypeVar("T")
BATCH_ROWS = 10_000  # that requests answered together may rank or score


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
    metrics = Metrics(live)
    store_metrics = StoreMetrics(features, metrics.registry)

    @asynccontextmanager
    async def until_stopped(_: FastAPI) -> AsyncIterator[None]:
        await features.open()
        yield
        await features.close()

    app = FastAPI(
        title="fieldwise",
        version=__version__,
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
    recommendations = batched(recommend_all, cost=lambda asked: live.service.cost(asked))
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
            user=_name(body.user),
            k=body.k if "k" in body.model_fields_set else None,
            prerank=body.prerank,
            candidates=None if body.candidates is None else _names(body.candidates, "candidates"),
            exclude=_names(body.exclude, "exclude"),
            where={column: _names(values, f"where.{column}") for column, values in body.where.items()},
            exclude_seen=body.exclude_seen,
        )
        found = await in_time(recommendations.ask(asked))
        metrics.recommendation(found["ranked"], found["seen"], found["milliseconds"])
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
        tower = now.cascade.prerank if now.cascade else None
        return {
            "status": "ready",
            "model": now.bundle.digest,
            "calibrated": bool(now.bundle.calibration),
            "prerank": tower.digest if tower else None,
            "items": len(index) if index else 0,
            "ranked": now.ranked,
            "index": index.generation if isinstance(index, ItemIndex) else None,
            "replaced": live.replaced,
            "refused": live.refused,
            "stores": await features.states(),
        }

    @app.get("/metrics", include_in_schema=False)
    async def exposition() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    add_errors(app)
    most = {"k": limits.max_k, "rows": limits.max_rows, "explained": limits.max_explained}
    add_page(app, lambda: live.service, KnownUsers(features) if features.users else None, most, title=title)
    app.add_middleware(Gate, limits=limits, metrics=metrics)
    return app


def _json(answer: dict[str, Any]) -> Response:
    """An answer that is known to be in form: it is not checked against the published document once more."""
    return Response(to_json(answer, inf_nan_mode="null"), media_type="application/json")


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
