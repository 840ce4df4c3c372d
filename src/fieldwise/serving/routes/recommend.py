"""`POST /v1/recommend`."""

from typing import Any, cast

from fastapi import APIRouter, Response

from fieldwise.serving.asked import Asked
from fieldwise.serving.forms import RecommendRequest, RecommendResponse
from fieldwise.serving.request_checks import check_number, id_text
from fieldwise.serving.routes.answers import json_answer
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that recommends."""
    routes = APIRouter(route_class=served.body_route)

    @routes.post("/v1/recommend", response_model=RecommendResponse)
    async def recommend(body: RecommendRequest) -> Response:
        """The best items for a user in a context."""
        check_number(served.limits.max_k, body.k, "k")
        check_number(served.limits.max_prerank, body.prerank, "prerank")
        context, degraded = await served.context(body.user, body.context, served.service.context_fields)
        found = await served.recommend(_asked(body, context))
        served.metrics.recommendation(found["ranked"], found["seen"], found["milliseconds"])
        return json_answer(found | {"degraded": degraded})

    return routes


def _asked(body: RecommendRequest, context: dict[str, Any]) -> Asked:
    """A request with the context that stores completed; its ids are texts already."""
    return Asked(
        context=context,
        user=id_text(body.user),
        k=body.k if "k" in body.model_fields_set else None,
        prerank=body.prerank,
        candidates=None if body.candidates is None else cast(list[str], body.candidates),
        exclude=cast(list[str], body.exclude),
        where=cast(dict[str, list[str]], body.where),
        exclude_seen=body.exclude_seen,
    )
