"""`GET /healthz`, `GET /readyz` and `GET /metrics`, for orchestrators and Prometheus."""

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from fieldwise.serving.index import ItemIndex
from fieldwise.serving.served import Served

__all__ = ["router"]

UNTOLD = "the newest files were rejected: use the token for details, or see the server's log"  # paths are private


def router(served: Served) -> APIRouter:
    """The routes of the server's status; they are not in the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz")
    async def ready(request: Request) -> dict[str, Any]:
        now, live = served.service, served.live
        trusted = served.limits.bears_token(request.headers.get("authorization", "").encode())
        index = now.cascade.index if now.cascade else None
        tower = now.cascade.prerank if now.cascade else None
        return {
            "status": "ready",
            "model": now.bundle.digest,
            "calibrated": bool(now.bundle.calibration),
            "prerank": tower.digest if tower else None,
            "items": len(index) if index else 0,
            "ranked": now.ranked,
            "index": index.generation if isinstance(index, ItemIndex) else None,
            "replaced": live.replaced,
            "refused": live.refused if trusted or live.refused is None else UNTOLD,
            "watcher": live.watched() if trusted else live.watched().partition(":")[0],
            "stores": await served.stores.states(),
        }

    @routes.get("/metrics")
    async def exposition() -> Response:
        return Response(served.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return routes
