"""`GET /v1/about`: the server's bundles, fields and items, for the page."""

from fastapi import APIRouter

from fieldwise.serving.page_forms import AboutLimits, AboutResponse, AboutUsers
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that describes this server."""
    routes = APIRouter()
    limits = AboutLimits(k=served.limits.max_k, rows=served.limits.max_rows, explained=served.limits.max_explained)

    @routes.get("/v1/about")
    async def about() -> AboutResponse:
        """Describe this server: bundles, labels, fields with usual values, items, users."""
        users = None if served.users is None else AboutUsers(column=served.users.column, count=served.users.count)
        now = served.service
        found = now.browser(served.title).about
        if found["items"] is not None:
            log = now.log
            known = {"seen": log is not None, "positive": log and log.positive, "exclude_seen": now.exclude_seen}
            found = found | {"items": found["items"] | known}
        return AboutResponse(**found, users=users, limits=limits)

    return routes
