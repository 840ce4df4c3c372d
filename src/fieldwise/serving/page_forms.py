"""What the page asks for and is given beyond the API's own requests; in the published OpenAPI document too."""

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel

from fieldwise.serving.forms import CatalogueItem, Cell
from fieldwise.serving.stores import Missing

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

MOST = 100  # users or items of an answer

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
    """A column that requests give. A `cell` is a category (one text), a number or a list of texts.

    `values` are its known values where they are few; `usual` is the most frequent one, or the median; `items` says that
    a list holds ids of the catalogue; a model reads the last `max_length` values of a history.
    """

    name: str
    column: str
    role: str
    kind: str
    cell: Literal["category", "number", "list"]
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


class CatalogueResponse(BaseModel):
    """Items in the catalogue's order, and how many there are from the first to the last."""

    items: list[CatalogueItem]
    count: int
