"""The OpenAPI document of an application, with the limits that its options set."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from fieldwise.serving.gate import ServerSettings

__all__ = ["Application"]


class Application(FastAPI):
    """A FastAPI application whose document states `ServerSettings`' maxima of numbers and lists.

    Args:
        limits: the settings.
        more: as for FastAPI.
    """

    def __init__(self, *, limits: ServerSettings, **more: Any) -> None:
        super().__init__(**more)
        self._limits = limits
        self._texts: dict[str, bytes] = {}  # of the document, by where the application is mounted

    def setup(self) -> None:
        """Add the document's route; its text is made once, since writing it as JSON takes longer than the rest."""

        async def document(request: Request) -> Response:
            root = request.scope.get("root_path", "").rstrip("/")
            if root not in self._texts:
                servers = {"servers": [{"url": root}]} if root else {}
                self._texts[root] = bytes(JSONResponse(self.openapi() | servers).body)
            return Response(self._texts[root], media_type="application/json")

        self.add_route("/openapi.json", document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        """The document; made at the first call."""
        if self.openapi_schema is None:
            _add_limits(super().openapi(), self._limits)
        assert self.openapi_schema is not None, "FastAPI keeps the document that it has made"
        return self.openapi_schema


def _add_limits(document: dict[str, Any], limits: ServerSettings) -> None:
    schemas = document["components"]["schemas"]
    recommend, explain = (schemas[name]["properties"] for name in ("RecommendRequest", "ExplainRequest"))
    schemas["PredictRequest"]["properties"]["rows"]["maxItems"] = limits.max_rows
    recommend["k"]["maximum"], recommend["prerank"]["maximum"] = limits.max_k, limits.max_prerank
    recommend["exclude"]["maxItems"] = limits.max_ids
    for choice in recommend["candidates"]["anyOf"]:
        if choice["type"] == "array":
            choice["maxItems"] = limits.max_ids
    for name in ("rows", "items"):
        explain[name]["maxItems"] = limits.max_explained
    for parameter in document["paths"]["/v1/items/{id}/similar"]["get"]["parameters"]:
        if parameter["name"] == "k":
            parameter["schema"]["maximum"] = limits.max_k
