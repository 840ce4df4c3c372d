"""`POST /v1/predict`."""

from fastapi import APIRouter, Response

from fieldwise.serving.forms import PredictRequest, PredictResponse
from fieldwise.serving.routes.answers import json_answer
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that scores rows."""
    routes = APIRouter(route_class=served.body_route)

    @routes.post("/v1/predict", response_model=PredictResponse)
    async def predict(body: PredictRequest) -> Response:
        """Score raw rows."""
        rows, degraded = await served.complete(body.rows)
        return json_answer({"predictions": await served.predict(rows), "degraded": degraded})

    return routes
