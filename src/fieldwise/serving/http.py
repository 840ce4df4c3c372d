"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, errors of one form, and a web page.

Every error is `{"error": {"message": ..., "field": ...}}`: the rule, the value found, and the part
of the request concerned. Responses and errors are both in the published OpenAPI document.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fieldwise.bundle.bundle import BUNDLE
from fieldwise.errors import FieldwiseError
from fieldwise.serving import bodies
from fieldwise.serving.app_state import AppState
from fieldwise.serving.index import INDEX
from fieldwise.serving.loader import ServiceLoader
from fieldwise.serving.metrics import Metrics
from fieldwise.serving.middleware import RequestMiddleware, error_answer
from fieldwise.serving.replacement import Live, Watcher
from fieldwise.serving.routes import (
    page_routes,
    query_routes,
    scoring_routes,
    status_routes,
    user_routes,
)
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service
from fieldwise.serving.settings import ServerSettings, Sources
from fieldwise.serving.stores import StoreRefusedError, Stores
from fieldwise.version import __version__

__all__ = ["ServerSettings", "Sources", "create_app", "load_app"]


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
    live = service if isinstance(service, Live) else Live(service)
    state = AppState(live, settings or ServerSettings(), stores or Stores())

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with state.stores.opened():
            yield

    app = FastAPI(
        title="fieldwise",
        version=__version__,
        responses=bodies.ERRORS,
        lifespan=lifespan,
        # the routes below have the document and its page: FastAPI's loads scripts from other sites
        openapi_url=None,
    )
    app.include_router(scoring_routes(state))
    app.include_router(query_routes(state))
    app.include_router(user_routes(state))
    app.include_router(status_routes(state))
    app.include_router(page_routes(state))
    _document_requests(app.openapi(), state.limits)
    _add_error_handlers(app, state.metrics)
    app.state.registry = state.metrics.registry
    app.add_middleware(RequestMiddleware, limits=state.limits, metrics=state.metrics)
    return app


def load_app(
    sources: Sources,
    settings: ServerSettings | None = None,
    *,
    watch: float = 0.0,
    note: Callable[[str], None] = lambda _: None,
    shared: Path | None = None,
) -> FastAPI:
    """Create the application of files and stores, as `fieldwise serve` does.

    Args:
        sources: the files and stores.
        settings: limits and token.
        watch: seconds between checks for a newer bundle or index on disk, which then replaces the
            current one; 0: never.
        note: called with messages: how the sources are read, and what is replaced.
        shared: the folder of files that the processes of a server share, where a first one has made
            them and has said how it read the sources; None with one process.

    Errors:
        FieldwiseError: something of the sources cannot be read, or does not fit the rest.
    """
    # these change when they are replaced
    watched_files = [folder / BUNDLE.manifest for folder in sources.folders]
    if sources.index is not None:
        watched_files.append(sources.index / INDEX.manifest)
    state = Watcher.state(watched_files)
    loader = ServiceLoader(sources, note if shared is None else lambda _: None, shared)
    live = Live(loader())
    app = create_app(live, settings, loader.stores())
    if watch:
        Watcher(live, loader, watched_files, every=watch, note=note, state=state).start()
    return app


def _add_error_handlers(app: FastAPI, metrics: Metrics) -> None:
    """Make an application return all errors in the common form."""

    @app.exception_handler(RequestError)
    async def request_error(_: Request, e: RequestError) -> JSONResponse:
        if isinstance(e, StoreRefusedError):
            metrics.store_refused.labels(e.store, e.reason).inc()
        return error_answer(e.status, str(e), e.field)

    @app.exception_handler(FieldwiseError)
    async def fieldwise_error(_: Request, e: FieldwiseError) -> JSONResponse:
        return error_answer(422, str(e), None)

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, e: RequestValidationError) -> JSONResponse:
        first = e.errors()[0]
        names = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
        field = names[0] if names else None
        return error_answer(422, f"{field or 'the body'}: {first['msg']}", field)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, e: HTTPException) -> JSONResponse:
        return error_answer(e.status_code, str(e.detail), None, e.headers or {})


def _document_requests(document: dict[str, Any], limits: ServerSettings) -> None:
    """Add the forms of requests to an OpenAPI document, with the maxima of the settings, and the token."""
    _, forms = msgspec.json.schema_components(
        bodies.REQUESTS, ref_template="#/components/schemas/{name}"
    )

    def set_limit(form_name: str, field: str, keyword: str, limit: int) -> None:
        form = forms[form_name]["properties"][field]
        if "anyOf" in form:  # of a field that may be null
            form = form["anyOf"][0]
        form[keyword] = limit

    set_limit("PredictRequest", "rows", "maxItems", limits.max_rows)
    for form_name in ("RecommendRequest", "WhyNotRequest"):
        set_limit(form_name, "k", "maximum", limits.max_k)
        set_limit(form_name, "prerank", "maximum", limits.max_prerank)
        set_limit(form_name, "candidates", "maxItems", limits.max_ids)
        set_limit(form_name, "exclude", "maxItems", limits.max_ids)
    set_limit("ExplainRequest", "rows", "maxItems", limits.max_explained)
    set_limit("ExplainRequest", "items", "maxItems", limits.max_explained)

    document["components"]["schemas"] |= forms
    if limits.token is not None:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
