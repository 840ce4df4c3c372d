"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, and errors of one form.

Every error is `{"error": {"message": ..., "field": ...}}`: the rule, the value found, and the part of the request
concerned. Responses and errors are both in the published OpenAPI document.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fieldwise.serving.document import Application
from fieldwise.serving.forms import ERRORS
from fieldwise.serving.http_errors import add_errors
from fieldwise.serving.middleware import RequestMiddleware, ServerSettings
from fieldwise.serving.replacement import Live
from fieldwise.serving.routes import about, effects, explain, files, items, predict, recommend, similar, status, users
from fieldwise.serving.served import Served
from fieldwise.serving.service import Service
from fieldwise.serving.stores.complete import Stores
from fieldwise.version import __version__

__all__ = ["ServerSettings", "create_app"]

ROUTERS = (predict, recommend, explain, effects, similar, status, about, users, items)  # in the document's order


def create_app(
    service: Service | Live,
    settings: ServerSettings | None = None,
    stores: Stores | None = None,
    *,
    title: str | None = None,
) -> FastAPI:
    """Create the application for a service.

    Args:
        service: the service, or the holder of a replaceable one; it computes in one thread, so that requests do not
            compete for the cores.
        settings: limits and token.
        stores: features of known users and items; opened and closed with the application.
        title: the item column that the page shows as the item's name; chosen by a rule if omitted.

    Errors:
        ConfigError: items do not have this column.
    """
    features = stores or Stores()
    live = service if isinstance(service, Live) else Live(service)
    live.service.browser(title)  # report an unknown title at startup
    served = Served(live, settings or ServerSettings(), features, title)

    @asynccontextmanager
    async def until_stopped(_: FastAPI) -> AsyncIterator[None]:
        await features.open()
        try:
            yield
        finally:
            await features.close()

    app = Application(
        served=served,
        title="fieldwise",
        version=__version__,
        responses=ERRORS,
        lifespan=until_stopped,
        docs_url=None,  # replaced by our own page: FastAPI's loads scripts from other sites
        redoc_url=None,
    )
    for routes in ROUTERS:
        app.include_router(routes.router(served))
    app.include_router(files.router())
    add_errors(app)
    app.state.registry = served.metrics.registry
    app.add_middleware(RequestMiddleware, limits=served.limits, metrics=served.metrics)
    return app
