"""`POST /v1/explain`."""

from typing import Any, cast

from fastapi import APIRouter, Response

from fieldwise.serving.asked import Explained
from fieldwise.serving.forms import ExplainRequest, ExplainResponse
from fieldwise.serving.request_checks import check_length
from fieldwise.serving.routes.answers import json_answer
from fieldwise.serving.rows import RequestError
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that explains scores."""
    routes = APIRouter(route_class=served.body_route)

    @routes.post("/v1/explain", response_model=ExplainResponse)
    async def explain(body: ExplainRequest) -> Response:
        """Explain the scores of rows, or of items for a user."""
        _check(body, served.limits.max_explained)
        context: dict[str, Any] = {}
        rows, degraded = await served.complete(body.rows)
        if body.items:
            context, degraded = await served.context(body.user, body.context, served.service.explained_fields)
        items = cast(list[str], body.items)
        found = await served.explain(Explained(rows=rows, context=context, items=items), body.pairs)
        return json_answer({"explanations": found, "degraded": degraded})

    return routes


def _check(body: ExplainRequest, most: int) -> None:
    """Check that a request has either rows or items, and not too many."""
    if bool(body.rows) == bool(body.items):
        raise RequestError("an explanation needs either rows or items: give one of the two", "rows")
    if body.rows and (body.user is not None or body.context):
        name = "context" if body.context else "user"
        raise RequestError(f"{name} is only for items: rows must have all values themselves", name)
    check_length(most, body.rows or body.items, "rows" if body.rows else "items")
