"""`POST /v1/recommend`."""

from typing import Any

from fastapi import APIRouter, Response

from fieldwise.serving.asked import Asked
from fieldwise.serving.forms import RecommendRequest, RecommendResponse
from fieldwise.serving.gate import ServerSettings
from fieldwise.serving.request_checks import check_length, check_number, id_text, id_texts
from fieldwise.serving.routes.answers import json_answer
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that recommends."""
    routes = APIRouter()

    @routes.post("/v1/recommend", response_model=RecommendResponse)
    async def recommend(body: RecommendRequest) -> Response:
        """The best items for a user in a context."""
        _check_size(body, served.limits)
        context, degraded = await served.context(body.user, body.context, served.service.context_fields)
        found = await served.recommend(_asked(body, context))
        served.metrics.recommendation(found["ranked"], found["seen"], found["milliseconds"])
        return json_answer(found | {"degraded": degraded})

    return routes


def _check_size(body: RecommendRequest, limits: ServerSettings) -> None:
    check_number(limits.max_k, body.k, "k")
    check_number(limits.max_prerank, body.prerank, "prerank")
    values = [value for values in body.where.values() for value in values]
    for name, ids in (("candidates", body.candidates or []), ("exclude", body.exclude), ("where", values)):
        check_length(limits.max_ids, ids, name)


def _asked(body: RecommendRequest, context: dict[str, Any]) -> Asked:
    """A request with its ids as texts, and the context that stores completed."""
    return Asked(
        context=context,
        user=id_text(body.user),
        k=body.k if "k" in body.model_fields_set else None,
        prerank=body.prerank,
        candidates=None if body.candidates is None else id_texts(body.candidates, "candidates"),
        exclude=id_texts(body.exclude, "exclude"),
        where={column: id_texts(values, f"where.{column}") for column, values in body.where.items()},
        exclude_seen=body.exclude_seen,
    )
