"""`GET /v1/items/{id}/similar`."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from fieldwise.serving.forms import Item, SimilarResponse
from fieldwise.serving.request_checks import check_number
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that finds similar items."""
    routes = APIRouter()

    @routes.get("/v1/items/{id:path}/similar")
    async def similar(
        id: Annotated[str, Path(max_length=1000)],  # noqa: A002 (the name in the path)
        k: Annotated[int, Query(ge=1)] = 10,
    ) -> SimilarResponse:
        """The items nearest to an item."""
        check_number(served.limits.max_k, k, "k")
        found = await served.work(lambda: served.service.similar(id, k))
        return SimilarResponse(items=[Item(**one) for one in found])

    return routes
