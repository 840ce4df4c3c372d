"""`GET /v1/effects`."""

from fastapi import APIRouter

from fieldwise.serving.forms import Effect, EffectsResponse
from fieldwise.serving.served import Served

__all__ = ["router"]


def router(served: Served) -> APIRouter:
    """The route that shows the directions of fields."""
    routes = APIRouter()

    @routes.get("/v1/effects")
    async def effects() -> EffectsResponse:
        """The main label's mean prediction by value of each field, over the bundle's sample rows; computed once."""
        return EffectsResponse(effects=[Effect(**one) for one in await served.effects()])

    return routes
