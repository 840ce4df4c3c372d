"""`GET /v1/items`: items to choose from, for the page."""

from typing import Annotated

from fastapi import APIRouter, Query

from fieldwise.serving.forms import CatalogueItem
from fieldwise.serving.page_forms import MOST, CatalogueResponse, Limit, Offset, Search
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that lists items."""
    routes = APIRouter()

    @routes.get("/v1/items")
    async def items(
        id: Annotated[list[str], Query(max_length=MOST)] = [],  # noqa: A002, B006 (read, never written)
        search: Search = "",
        offset: Offset = 0,
        limit: Limit = 10,
    ) -> CatalogueResponse:
        """Items by id (unknown ids are skipped), or items whose id starts with a text or whose title contains it."""
        now = served.service
        found = now.browser(served.title).items(search, id)
        shown = now.items(found[offset : offset + limit])
        return CatalogueResponse(items=[CatalogueItem(**one) for one in shown], count=len(found))

    return routes
