"""The page at `/`, and what it asks for beyond predictions: fields, users and items to choose from; the API at `/docs`.

A page is plain HTML, CSS and JavaScript modules, served from here alone; its files hold no data and need no token.
"""

import hashlib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel

from fieldwise.serving.page.known_users import KnownUsers, filled
from fieldwise.serving.rows import RequestError, values_of
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Missing

__all__ = ["PAGE", "add_page", "is_page"]

PAGE = "/"
PAGES = {"index.html": PAGE, "docs.html": "/docs"}
FILES = "/page/"
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
MOST = 100  # users or items of an answer

Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Search = Annotated[str, Query(max_length=200)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=MOST)]


class AboutModel(BaseModel):
    """A bundle."""

    name: str
    digest: str


class AboutRanker(AboutModel):
    """The bundle that scores; `quality` says in words how good it was on the test rows of its run, where it knows."""

    quality: list[str]


class AboutLabel(BaseModel):
    """What is predicted: a probability (`binary`), or a number, in a range where it has one (`regression`).

    `meaning` says what a prediction is in words, by the label's rule.
    """

    name: str
    meaning: str
    task: str
    range: tuple[float, float] | None


class AboutField(BaseModel):
    """A column that requests give.

    `values` are its known values where they are few; `usual` is the most frequent one, or the median; `items` says that
    a list holds ids of the catalogue; a model reads the last `max_length` values of a history.
    """

    name: str
    column: str
    role: str
    kind: str
    values: list[str] | None
    usual: Cell
    items: bool
    max_length: int | None


class AboutColumn(BaseModel):
    """A column of the items, with its values where they are few, to filter by."""

    name: str
    values: list[str] | None


class AboutItems(BaseModel):
    """The catalogue: how many items, the columns of their ids and of their names for people, and who pre-ranks them.

    Without pre-ranking (`prerank`), the bundle ranks every item; where no bundle ranks (`ranked`), the order is that of
    pre-ranking. `seen`: whether the server knows what users have used; `exclude_seen`: whether it leaves that out
    unless asked otherwise.
    """

    count: int
    column: str
    title: str | None
    columns: list[AboutColumn]
    prerank: AboutModel | None
    ranked: bool
    seen: bool
    exclude_seen: bool


class AboutUsers(BaseModel):
    """The users: the column of their ids, and how many there are, where they are counted."""

    column: str
    count: int | None


class AboutLimits(BaseModel):
    """The most of what a request may ask for."""

    k: int
    rows: int
    explained: int


class AboutResponse(BaseModel):
    """What this server scores with, and what it can be asked for."""

    model: AboutRanker
    labels: list[AboutLabel]
    fields: list[AboutField]
    items: AboutItems | None
    users: AboutUsers | None
    limits: AboutLimits


class UsersResponse(BaseModel):
    """Users by id, and how many there are in all, where they are counted."""

    users: list[str]
    count: int | None


class UserResponse(BaseModel):
    """A user's values by column, as a context has them, and the place among all users where they are counted.

    `context` are the context fields of the user's latest row, and `seen` counts the items that the user has used, where
    the server has a log.
    """

    id: str
    fields: dict[str, Cell]
    context: dict[str, Cell] = {}
    seen: int | None = None
    position: int | None
    degraded: list[Missing] = []


class CatalogueItem(BaseModel):
    """An item with its columns."""

    id: str
    fields: dict[str, Cell]


class CatalogueResponse(BaseModel):
    """Items in the catalogue's order, and how many there are from the first to the last."""

    items: list[CatalogueItem]
    count: int


def is_page(path: str) -> bool:
    """Whether a path is a page's own: such files are given without a token.

    >>> is_page("/"), is_page("/docs"), is_page("/page/page.js"), is_page("/v1/about")
    (True, True, True, False)
    """
    return path in PAGES.values() or path.startswith(FILES)


def add_page(
    app: FastAPI,
    service: Callable[[], Service],
    users: KnownUsers | None,
    limits: Mapping[str, int],
    *,
    title: str | None = None,
) -> None:
    """Add the page and its requests to an application.

    Args:
        app: without a route at `/` yet.
        service: what answers now; asked anew with every request, so that it may be replaced.
        users: those to choose from.
        limits: the server's `k`, `rows` and `explained`.
        title: the item column that names items for people; chosen by rule where left out.

    Errors:
        ConfigError: items have no such column.
    """
    service().browser(title)  # a wrong title is told at the start

    @app.get("/v1/about")
    def about() -> AboutResponse:
        """What this server scores with: bundles, labels, fields with usual values, items, users."""
        known = None if users is None else AboutUsers(column=users.column, count=users.count)
        now = service()
        found = now.browser(title).about
        if found["items"] is not None:
            found = found | {"items": found["items"] | {"seen": now.log is not None, "exclude_seen": now.exclude_seen}}
        return AboutResponse(**found, users=known, limits=AboutLimits(**limits))

    @app.get("/v1/users")
    async def find_users(search: Search = "", offset: Offset = 0, limit: Limit = 10) -> UsersResponse:
        """Users whose ids begin with a text; none where the server cannot list any."""
        found, count = ([], 0) if users is None else await users.find(search, offset, limit)
        return UsersResponse(users=found, count=count)

    @app.get("/v1/users/{id:path}")
    async def user(id: Annotated[str, Path(max_length=1000)]) -> UserResponse:  # noqa: A002 (the name in the path)
        """A user's own values of the models' fields."""
        if users is None:
            raise RequestError("this server has no users: give their fields as context", "user", 404)
        now = service()
        fields = now.browser(title).user_fields
        values, position, degraded = await users.of(id, fields)
        answer = UserResponse(id=id, fields=values, position=position, degraded=degraded)
        if now.log is not None:
            latest, columns = now.log.context(id), values.keys()
            named = [field for field in fields if field.column in latest and field.column not in columns]
            answer.context = {name: filled(one) for name, one in values_of(latest, named, "context").items()}
            answer.seen = len(now.log.used(id))
        return answer

    @app.get("/v1/items")
    def items(
        id: Annotated[list[str], Query(max_length=MOST)] = [],  # noqa: A002, B006 (read, never written)
        search: Search = "",
        offset: Offset = 0,
        limit: Limit = 10,
    ) -> CatalogueResponse:
        """Items of some ids (unknown ones are left out), or whose ids begin with a text or titles have it."""
        now = service()
        found = now.browser(title).items(search, id)
        shown = now.items(found[offset : offset + limit])
        return CatalogueResponse(items=[CatalogueItem(**one) for one in shown], count=len(found))

    for name, content in _files().items():
        app.add_api_route(PAGES.get(name, FILES + name), _sender(name, content), include_in_schema=False)


def _files() -> dict[str, bytes]:
    folder = resources.files("fieldwise.serving") / "static"
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.name.rpartition(".")[2] in TYPES}


def _sender(name: str, content: bytes) -> Callable[[Request], Response]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    kind = TYPES[name.rpartition(".")[2]]

    def send(request: Request) -> Response:
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return send
