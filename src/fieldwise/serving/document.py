"""The OpenAPI document of an application: with the limits that its options set, and a prediction as an example."""

from copy import deepcopy
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from fieldwise.serving.middleware import ServerSettings
from fieldwise.serving.rows import RequestError
from fieldwise.serving.served import Served
from fieldwise.serving.service import Service
from fieldwise.serving.stores.plain import plain_value

__all__ = ["Application"]

SHOWN = 2  # rows of the example


class Application(FastAPI):
    """A FastAPI application whose document states `ServerSettings`' maxima of numbers and lists.

    Args:
        served: has the settings, and answers the example.
        more: as for FastAPI.
    """

    def __init__(self, *, served: Served, **more: Any) -> None:
        super().__init__(**more)
        self._served, self._limits = served, served.limits
        self._texts: dict[str, tuple[Service, bytes]] = {}  # of the document, by where the application is mounted

    def setup(self) -> None:
        """Add the document's route; its text is made once, since writing it as JSON takes longer than the rest."""

        async def document(request: Request) -> Response:
            root = request.scope.get("root_path", "").rstrip("/")
            now, (made_of, text) = self._served.service, self._texts.get(root, (None, b""))
            if made_of is not now:
                servers = {"servers": [{"url": root}]} if root else {}
                text = bytes(JSONResponse(await self._with_example(now) | servers).body)
                self._texts[root] = now, text
            return Response(text, media_type="application/json")

        self.add_route("/openapi.json", document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        """The document; made at the first call."""
        if self.openapi_schema is None:
            _add_limits(super().openapi(), self._limits)
        assert self.openapi_schema is not None, "FastAPI keeps the document that it has made"
        return self.openapi_schema

    async def _with_example(self, now: Service) -> dict[str, Any]:
        """The document with sample rows of the bundle as a request, and the bundle's answer."""
        found = deepcopy(self.openapi())
        columns = [name for name in now.bundle.schema.columns if name in now.bundle.samples.columns]
        samples = now.bundle.samples.select(columns).head(min(SHOWN, self._limits.max_rows)).to_dicts()
        rows = [{name: plain_value(value) for name, value in row.items()} for row in samples]
        try:
            answer = {"predictions": await self._served.predict(rows), "degraded": []}
        except RequestError:  # the server is overloaded
            return found
        operation = found["paths"]["/v1/predict"]["post"]
        for place, example in ((operation["requestBody"], {"rows": rows}), (operation["responses"]["200"], answer)):
            place["content"]["application/json"]["example"] = example
        return found


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
