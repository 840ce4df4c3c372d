"""The routes: scoring, queries about the catalogue and users, the page, and the status for orchestrators."""

from collections.abc import Callable, Coroutine
from copy import deepcopy
from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.explain.effects import shown_fields, widest_first
from fieldwise.scoring import PRERANK
from fieldwise.serving import bodies
from fieldwise.serving.app_state import AppState
from fieldwise.serving.browser import filled
from fieldwise.serving.decode import check_most, read_body
from fieldwise.serving.middleware import HEALTH
from fieldwise.serving.rows import RequestError, values_of
from fieldwise.serving.service import Service, explanations
from fieldwise.serving.settings import ServerSettings
from fieldwise.serving.stores import REASON_TEXTS, StoreError, StoreFacts

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
DOCS_CONTENT_SECURITY_POLICY = CONTENT_SECURITY_POLICY.replace(
    "style-src 'self'", "style-src 'self' 'unsafe-inline'"
).replace("img-src 'self'", "img-src 'self' data:")
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
ROWS_PER_EXPLANATION_CHUNK = 10
REFUSED_WITHOUT_DETAILS = (
    "the newest files were rejected: use the token for details, or see the server's log"
)
"""Paths are private."""

MAX_LISTED = 100
"""Users or items of a response."""
Search = Annotated[str, Query(max_length=200)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED)]
AnyId = Annotated[str, Path(max_length=1000)]


class BodyRoute(APIRoute):
    """A route whose function reads the request and makes the response itself, without FastAPI's validation."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function of the route."""
        return self.endpoint


def _body(name: str) -> dict[str, Any]:
    """The body of a request in the document."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    return {"requestBody": {"required": True, "content": content}}


def scoring_routes(state: AppState) -> APIRouter:
    """Predictions, recommendations and explanations."""
    routes = APIRouter(route_class=BodyRoute)
    limits = state.limits
    stores = state.stores
    read = partial(read_body, max_rows=limits.max_rows, max_ids=limits.max_ids)

    @routes.post(
        "/v1/predict", response_model=bodies.PredictResponse, openapi_extra=_body("PredictRequest")
    )
    async def predict(request: Request) -> Response:
        """Score raw rows."""
        body = await read(request, bodies.PredictRequest)
        rows, facts = await _with_stored_values(state, body.rows)
        predictions = await state.predictions.ask(rows)
        return state.answer({"predictions": predictions}, facts)

    @routes.post(
        "/v1/recommend",
        response_model=bodies.RecommendResponse,
        openapi_extra=_body("RecommendRequest"),
    )
    async def recommend(request: Request) -> Response:
        """The best items for a user in a context."""
        body = await read(request, bodies.RecommendRequest)
        facts = await _complete_list_request(state, body)
        recommended = await state.recommendations.ask(body)
        state.metrics.count_recommendation(recommended)
        return state.answer(recommended, facts)

    @routes.post(
        "/v1/why-not", response_model=bodies.WhyNotResponse, openapi_extra=_body("WhyNotRequest")
    )
    async def why_not(request: Request) -> Response:
        """Why an item is not in the list of `/v1/recommend`: at which stage it was lost, or how far it is behind."""
        body = await read(request, bodies.WhyNotRequest)
        facts = await _complete_list_request(state, body)
        service = state.live.service
        answers = await state.explanations.run(lambda: [lambda: [service.why_not(body)]])
        return state.answer(answers[0], facts)

    @routes.post(
        "/v1/explain", response_model=bodies.ExplainResponse, openapi_extra=_body("ExplainRequest")
    )
    async def explain(request: Request) -> Response:
        """Explain the scores of rows, or of items for a user."""
        body = await read(request, bodies.ExplainRequest)
        _check_explain_request(body, limits)
        state.check_context(body.context)
        facts = StoreFacts()
        if body.rows:
            body.rows, facts = await _with_stored_values(state, body.rows)
        service = state.live.service
        if body.items:
            body.context, facts = await stores.context(
                body.user,
                body.context,
                service.explained_fields,
                missing=service.missing,
                features=service.features,
            )
            body.context = service.with_time(body.context)
        explained = await state.explanations.run(partial(_explanation_chunks, service, body))
        return state.answer({"explanations": explained}, facts)

    return routes


async def _complete_list_request(state: AppState, body: bodies.RecommendRequest) -> StoreFacts:
    """Check the request of a list, add the stored values of its user, and say what the stored ones are."""
    limits = state.limits
    check_most(limits.max_k, body.k or 1, "k")
    check_most(limits.max_prerank, body.prerank, "prerank")
    state.check_context(body.context)
    service = state.live.service
    body.context, facts = await state.stores.context(
        body.user,
        body.context,
        service.context_fields,
        missing=service.missing,
        features=service.features,
    )
    body.context = service.with_time(body.context)
    return facts


async def _with_stored_values(
    state: AppState, rows: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], StoreFacts]:
    """Rows with the values of stores and of the catalogue, and what the stored ones are."""
    service = state.live.service
    items = service.item_rows if service.ranker else None
    fields = service.bundle.schema.fields
    rows = service.with_times(rows)
    return await state.stores.rows(
        rows, fields, items, missing=service.missing, features=service.features
    )


def _check_explain_request(body: bodies.ExplainRequest, limits: ServerSettings) -> None:
    """Check that a request has either rows, or items for a user, and not too many."""
    if bool(body.rows) == bool(body.items):
        raise RequestError("an explanation needs either rows or items: give one of the two", "rows")
    if body.items:
        check_most(limits.max_explained, len(body.items), "items")
        return
    if body.user is not None or body.context:
        name = "context" if body.context else "user"
        raise RequestError(f"{name} is only for items: rows must have all values themselves", name)
    check_most(limits.max_explained, len(body.rows), "rows")


def _explanation_chunks(
    service: Service, body: bodies.ExplainRequest
) -> list[Callable[[], list[dict[str, Any]]]]:
    """Functions that each explain some rows of a request: one row where pairs are measured, which takes long."""
    measures_pairs = body.pairs and not _has_pair_terms(service.bundle)
    rows = 1 if measures_pairs else ROWS_PER_EXPLANATION_CHUNK
    frame = service.explained_rows(body)
    parts = [frame[start : start + rows] for start in range(0, frame.height, rows)]
    return [partial(explanations, service.bundle, part, pairs=body.pairs) for part in parts]


def _has_pair_terms(bundle: Bundle) -> bool:
    """Whether the network of the main label has a term for each pair of fields, so that none need be measured."""
    network = bundle.network
    if bundle.schema.more_labels:
        network = cast(nn.ModuleList, network.heads)[0]
    return bool(getattr(network, "pair_terms", False))


def query_routes(state: AppState) -> APIRouter:
    """The directions of fields, similar items, and what the page shows of this server and its items."""
    routes = APIRouter()
    limits = state.limits
    users = state.stores.users

    @routes.get("/v1/effects", response_model=bodies.EffectsResponse)
    async def effects() -> Any:
        """The main label's mean prediction by value of each field, over the bundle's sample rows; computed once."""
        service = state.live.service
        chunks = [partial(service.effect, field) for field in shown_fields(service.bundle.schema)]
        return {"effects": widest_first(await state.explanations.run(lambda: chunks))}

    @routes.get("/v1/items/{id:path}/similar", response_model=bodies.SimilarResponse)
    async def similar(
        id: AnyId,  # noqa: A002 (the name in the path)
        k: Annotated[int, Query(ge=1, json_schema_extra={"maximum": limits.max_k})] = 10,
    ) -> Any:
        """The items nearest to an item."""
        check_most(limits.max_k, k, "k")
        return {"items": await state.calls.ask(lambda: state.live.service.similar(id, k))}

    @routes.get("/v1/about")
    async def about() -> dict[str, Any]:
        """Describe this server as its page needs it: bundles, labels, fields with usual values, items, users, limits.

        `items` also says whether the server has a log of users' rows (`seen`), the rule of a
        positive row in words (`positive`), and which items of a user's rows are excluded by default
        (`exclude_seen`, as in a request).
        """
        service = state.live.service
        about = dict(service.browser.about)
        if about["items"] is not None:
            about["items"] = about["items"] | {
                "seen": service.log is not None,
                "positive": service.log and service.log.positive,
                "exclude_seen": service.exclude_seen,
            }
        about["users"] = None
        if users is not None:
            about["users"] = {"column": users.column, "count": users.store.count}
        about["limits"] = {
            "k": limits.max_k,
            "rows": limits.max_rows,
            "explained": limits.max_explained,
            "prerank": PRERANK,
        }
        return about

    @routes.get("/v1/items", response_model=bodies.CatalogueResponse)
    async def items(
        id: Annotated[list[str], Query(max_length=MAX_LISTED)] = [],  # noqa: A002, B006 (read, never written)
        search: Search = "",
        offset: Offset = 0,
        limit: Limit = 10,
    ) -> Any:
        """Items by id (unknown ids are skipped), or items whose id starts with a text or whose title contains it."""
        service = state.live.service
        positions = service.browser.items(search, id)
        return {
            "items": service.items(positions[offset : offset + limit]),
            "count": len(positions),
        }

    return routes


def user_routes(state: AppState) -> APIRouter:
    """What the page shows of users."""
    routes = APIRouter()
    users = state.stores.users

    @routes.get("/v1/users", response_model=bodies.UsersResponse)
    async def find_users(search: Search = "", offset: Offset = 0, limit: Limit = 10) -> Any:
        """Users whose ids start with a text; none if the server cannot list users."""
        if users is None:
            return {"users": [], "count": 0}
        if offset and users.store.count is None:
            raise RequestError(
                "offset must be 0, because this server's store does not count its users", "offset"
            )
        try:
            ids, count = await users.search(search, offset, limit)
        except StoreError as e:
            raise RequestError(
                f"the users' store {REASON_TEXTS[e.reason]}: try again later", "search", 503
            ) from None
        return {"users": ids, "count": count}

    @routes.get("/v1/users/{id:path}", response_model=bodies.UserResponse)
    async def user(id: AnyId) -> Any:  # noqa: A002 (the name in the path)
        """A user's values of the models' fields."""
        if users is None:
            raise RequestError(
                "this server has no users: give their fields as context", "user", 404
            )
        service = state.live.service
        fields = service.browser.user_fields
        store_columns = {*users.store.columns, users.column}
        stored_fields = [field for field in fields if field.column in store_columns]
        stored, facts = await state.stores.context(
            id, {}, stored_fields, missing=service.missing, features=service.features
        )
        answer: dict[str, Any] = {
            "id": id,
            "fields": {column: filled(value) for column, value in stored.items()},
            "context": {},
            "seen": None,
            "position": users.store.position(id),
        }
        if service.log is not None:
            latest = service.log.context(id)
            context_fields = [
                field for field in fields if field.column in latest and field.column not in stored
            ]
            context = values_of(latest, context_fields, "context", missing=service.missing)
            answer["context"] = {column: filled(value) for column, value in context.items()}
            answer["seen"] = len(service.log.used(id))
        return state.answer(answer, facts)

    return routes


def status_routes(state: AppState) -> APIRouter:
    """The status for orchestrators and Prometheus, which is not in the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(HEALTH)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz")
    async def ready(request: Request) -> dict[str, Any]:
        service = state.live.service
        refused = state.live.refused
        watcher_status = state.live.watched()
        watcher = str(watcher_status)
        if not state.is_trusted(request):
            if refused is not None:
                refused = REFUSED_WITHOUT_DETAILS
            watcher = watcher_status.state
        return service.status | {
            "replaced": state.live.replaced,
            "refused": refused,
            "watcher": watcher,
            "stores": await state.stores.states(),
        }

    @routes.get("/metrics")
    async def exposition() -> Response:
        return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    return routes


def page_routes(state: AppState) -> APIRouter:
    """The OpenAPI document and the page, which are not in the document.

    A client without the server's token gets the document without examples, which are rows of the
    bundle. The page's files run and load only what is from this server; they hold no data and need
    no token.
    """
    routes = APIRouter(include_in_schema=False)
    static = StaticFiles(packages=[("fieldwise.serving", "static"), ("fastapi_offline", "static")])

    @routes.get("/openapi.json")
    async def document(request: Request) -> Response:
        document = request.app.openapi()
        if state.is_trusted(request):
            document = deepcopy(document)
            examples = state.live.service.examples(min(2, state.limits.max_rows))
            for path, example in examples.items():
                body = document["paths"][path]["post"]["requestBody"]
                body["content"]["application/json"]["example"] = example
        root = request.scope.get("root_path", "").rstrip("/")
        if root:
            document = document | {"servers": [{"url": root}]}
        return JSONResponse(document)

    @routes.get("/docs")
    @routes.get("/")
    @routes.get("/page/{name}")
    async def file(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        policy = CONTENT_SECURITY_POLICY
        if request.scope["route"].path == "/docs":
            name = "docs.html"
            policy = DOCS_CONTENT_SECURITY_POLICY
        response = await static.get_response(name, request.scope)
        response.headers.update({**PAGE_HEADERS, "Content-Security-Policy": policy})
        return response

    return routes
