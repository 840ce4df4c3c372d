"""The HTTP application: FastAPI over a `Service`, with limits, tokens, metrics, and errors of one form.

Every error is `{"error": {"message": ..., "field": ...}}`: what the rule is, what was found, and which part of the
request is meant. Answers and errors alike are in the published OpenAPI document.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from fieldwise.serving.forms import ERRORS
from fieldwise.serving.gate import Gate, ServerSettings
from fieldwise.serving.http_errors import add_errors
from fieldwise.serving.replacement import Live
from fieldwise.serving.routes import about, explain, files, items, predict, recommend, similar, status, users
from fieldwise.serving.served import Served
from fieldwise.serving.service import Service
from fieldwise.serving.stores.complete import Stores
from fieldwise.version import __version__

__all__ = ["ServerSettings", "create_app"]

ROUTERS = (predict, recommend, explain, similar, status, about, users, items)  # in the published document's order


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
    features = stores or Stores()
    live = service if isinstance(service, Live) else Live(service)
    live.service.browser(title)  # a wrong title is told at the start
    served = Served(live, settings or ServerSettings(), features, title)

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
    for routes in ROUTERS:
        app.include_router(routes.router(served))
    app.include_router(files.router())
    add_errors(app)
    app.state.registry = served.metrics.registry
    app.add_middleware(Gate, limits=served.limits, metrics=served.metrics, admission=served.admission)
    return app
