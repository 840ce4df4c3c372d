"""Forms of the requests that only the page makes; also in the OpenAPI document."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel

from fieldwise.serving.forms import CatalogueItem, Cell
from fieldwise.serving.stores import Missing
from fieldwise.serving.user_log import Seen

__all__ = [
    "MOST",
    "AboutColumn",
    "AboutField",
    "AboutItems",
    "AboutLabel",
    "AboutLimits",
    "AboutModel",
    "AboutRanker",
    "AboutResponse",
    "AboutUsers",
    "CatalogueResponse",
    "Limit",
    "Offset",
    "Search",
    "UserResponse",
    "UsersResponse",
]

MOST = 100  # maximum users or items of a response

Search = Annotated[str, Query(max_length=200)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Limit = Annotated[int, Query(ge=1, le=MOST)]


class AboutModel(BaseModel):
    """A bundle."""

    name: str
    digest: str


class AboutRanker(AboutModel):
    """The scoring bundle; `quality` describes its test metrics, if known."""

    quality: list[str]


class AboutLabel(BaseModel):
    """A prediction target: a probability (`binary`), or a number, possibly with a range (`regression`).

    `meaning` describes a prediction in words, according to the label's rule.
    """

    name: str
    meaning: str
    task: str
    range: tuple[float, float] | None


class AboutField(BaseModel):
    """A column of requests. Its `cell` is a category (one text), a number or a list of texts.

    `values`: its known values, if they are few. `usual`: the most frequent value, or the median. `items`: whether a
    list contains ids of the catalogue. `max_length`: a model reads at most this number of the last values of a history.
    `user`: whether the values are ids of users.
    """

    name: str
    column: str
    role: str
    kind: str
    cell: Literal["category", "number", "list"]
    values: list[str] | None
    usual: Cell
    items: bool
    user: bool
    max_length: int | None


class AboutColumn(BaseModel):
    """A column of the items to filter by, with its values if they are few."""

    name: str
    values: list[str] | None


class AboutItems(BaseModel):
    """The catalogue: the number of items, the columns of their ids and display names, and the pre-ranking bundle.

    Without pre-ranking (`prerank`), the bundle ranks every item. Without a ranking bundle (`ranked`), the order is that
    of pre-ranking. `seen`: whether the server has a log of users' rows. `positive`: the rule of a positive row in
    words, if the log has the label. `exclude_seen`: which items of a user's rows are excluded by default, as in a
    request.
    """

    count: int
    column: str
    title: str | None
    columns: list[AboutColumn]
    prerank: AboutModel | None
    ranked: bool
    seen: bool
    positive: str | None
    exclude_seen: Seen


class AboutUsers(BaseModel):
    """The users: the column of their ids, and their number, if known."""

    column: str
    count: int | None


class AboutLimits(BaseModel):
    """Limits of a request."""

    k: int
    rows: int
    explained: int


class AboutResponse(BaseModel):
    """The server's bundles, fields, items and limits."""

    model: AboutRanker
    labels: list[AboutLabel]
    fields: list[AboutField]
    items: AboutItems | None
    users: AboutUsers | None
    limits: AboutLimits


class UsersResponse(BaseModel):
    """Ids of users, and the total number, if known."""

    users: list[str]
    count: int | None


class UserResponse(BaseModel):
    """A user's values by column, as in a context, and the position among all users, if known.

    `context`: the context fields of the user's latest row. `seen`: the number of items in the user's rows, if the
    server has a log.
    """

    id: str
    fields: dict[str, Cell]
    context: dict[str, Cell] = {}
    seen: int | None = None
    position: int | None
    degraded: list[Missing] = []


class CatalogueResponse(BaseModel):
    """Items in the catalogue's order, and the total number."""

    items: list[CatalogueItem]
    count: int
