"""Bodies: the forms of requests and responses."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from pydantic import BaseModel

from fieldwise.scoring import PRERANK, Seen
from fieldwise.serving.rows import RequestError, text_of
from fieldwise.serving.stores import Missing

__all__ = [
    "CatalogueResponse",
    "EffectsResponse",
    "ExplainRequest",
    "ExplainResponse",
    "PredictRequest",
    "PredictResponse",
    "RecommendRequest",
    "RecommendResponse",
    "SimilarResponse",
    "UserResponse",
    "UsersResponse",
    "WhyNotRequest",
    "WhyNotResponse",
]

Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Count = Annotated[int, Meta(ge=1)]
Id = str | int | float | bool
"""3, 3.0 and "3" are the same id."""
PLACES = {"propertyNames": {"pattern": "^[1-9][0-9]*$"}}
"""Keys of a JSON object are text."""


class PredictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Raw rows: every column of the model's fields, or a known user and item; null for an unknown value."""

    rows: Annotated[list[dict[str, Cell]], Meta(min_length=1)]


class RecommendRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A known user, or raw user and context fields; given fields override the stored ones of the user.

    `k`: number of items; if omitted, 10, or all if there are fewer. `exclude_seen`: which items of
    the user's rows in the server's log to exclude: those of `positive` rows (of all, if the log
    does not say which are positive), all (`true`) or none (`false`). The default is the server's
    setting, which is `positive` if it has a log. `limits`: by item column, the largest number of
    items with one value. `pinned`: items by their place in the list, from 1.
    """

    user: Id | None = None
    context: dict[str, Cell] = {}
    k: Count | None = None
    prerank: Count = PRERANK
    candidates: list[Id] | None = None
    exclude: list[Id] = []
    where: dict[str, list[Id]] = {}
    exclude_seen: Seen | None = None
    limits: dict[str, Count] = {}
    pinned: Annotated[dict[Count, Id], Meta(extra_json_schema=PLACES)] = {}

    def __post_init__(self) -> None:
        """Make strings of the ids and values of filters, whoever made the request: a client, or Python."""
        if self.user is not None:
            self.user = id_texts([self.user], "user")[0]
        if self.candidates is not None:
            self.candidates = id_texts(self.candidates, "candidates")
        self.exclude = id_texts(self.exclude, "exclude")
        self.where = {
            column: id_texts(values, f"where.{column[:60]}")
            for column, values in self.where.items()
        }
        pinned_items = id_texts(list(self.pinned.values()), "pinned")
        self.pinned = dict(zip(self.pinned, pinned_items, strict=True))


class WhyNotRequest(RecommendRequest, forbid_unknown_fields=True, kw_only=True):
    """The request of a list, and an item that may be missing from it."""

    item: Id

    def __post_init__(self) -> None:
        """Make strings of the ids, as `RecommendRequest` does."""
        super().__post_init__()
        self.item = id_texts([self.item], "item")[0]


class ExplainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Either raw rows, or items of the index for a user or a context.

    With `pairs`, `measured_pairs` has the joint effects of two fields, for models without pair
    terms.
    """

    rows: list[dict[str, Cell]] = []
    user: Id | None = None
    context: dict[str, Cell] = {}
    items: list[Id] = []
    pairs: bool = False

    def __post_init__(self) -> None:
        """Make strings of the ids, as `RecommendRequest` does."""
        if self.user is not None:
            self.user = id_texts([self.user], "user")[0]
        self.items = id_texts(self.items, "items")


REQUESTS = (PredictRequest, RecommendRequest, WhyNotRequest, ExplainRequest)


def id_texts(values: Sequence[Id], field: str) -> list[Any]:
    """Ids and values as strings.

    >>> id_texts([3, 3.0, "3"], "items")
    ['3', '3', '3']
    """
    try:
        return [text_of(value) for value in values]
    except (TypeError, ValueError) as e:
        raise RequestError(f"{field} must be {e}", field) from None


class StoredValues(BaseModel):
    """What an answer says of its stored values: the missing ones, and the age of features.

    `features_age`: by store, the age in seconds of the oldest features that were used, if any were.
    """

    degraded: list[Missing] = []
    features_age: dict[str, float] = {}


class PredictResponse(StoredValues):
    """`score` (a logit or number) and `prediction` (a probability or number) of each row, by label if several.

    `unknown` names a row's fields whose values the model does not know, if there are any.
    """

    predictions: list[dict[str, float | list[str]]]


class CatalogueItem(BaseModel):
    """An item with its columns."""

    id: str
    fields: dict[str, Cell]


class Item(CatalogueItem):
    """An item with its columns; `prediction` is from the ranking bundle, `prerank_score` is IntTower's logit.

    `by_score`: its place without limits and pinned items, if the request has some.
    """

    prerank_score: float | None = None
    prediction: float | None = None
    similarity: float | None = None
    by_score: int | None = None


class RecommendResponse(StoredValues):
    """The best items first, the number of items after each stage, and the time of each stage.

    `ranked`: how the items were ranked: `all` (the bundle scored every item that passes the
    filters), `preranked` (it scored those that IntTower selected) or `tower` (only IntTower's
    scores). `seen`: number of items excluded because of the user's rows (`exclude_seen`).
    `changed`: where limits and pinned items changed the list, in sentences.
    """

    items: list[Item]
    ranked: Literal["all", "preranked", "tower"]
    seen: int = 0
    changed: list[str] = []
    counts: dict[str, int]
    milliseconds: dict[str, float]


class Term(BaseModel):
    """A field, its values for the item and for the list's last one, and the difference of their contributions."""

    field: str
    value: str
    other: str
    difference: float


class WhyNotResponse(StoredValues):
    """The output of `fieldwise explain --why-not ITEM --json`.

    `reason`: at which stage the item was lost; `place`: its place there, if it has one; `terms`:
    the fields in which it differs from the list's last item, the largest loss first.
    """

    item: str
    reason: str
    words: str
    sentence: str
    place: int | None
    terms: list[Term]


class ExplainResponse(StoredValues):
    """For each row, the output of `fieldwise explain --json`."""

    explanations: list[dict[str, Any]]


class Effect(BaseModel):
    """The mean prediction if all sample rows had a value of a field, by value; `numbers`: the values if they are."""

    field: str
    values: list[str]
    numbers: list[float] | None = None
    predictions: list[float]


class EffectsResponse(BaseModel):
    """The field with the widest range of predictions first; ids are left out."""

    effects: list[Effect]


class SimilarResponse(BaseModel):
    """The nearest items first."""

    items: list[Item]


class UsersResponse(BaseModel):
    """Ids of users, and the total number, if known."""

    users: list[str]
    count: int | None


class UserResponse(StoredValues):
    """A user's values by column, as in a context, and the position among all users, if known.

    `context`: the context fields of the user's latest row. `seen`: the number of items in the
    user's rows, if the server has a log.
    """

    id: str
    fields: dict[str, Cell]
    context: dict[str, Cell] = {}
    seen: int | None = None
    position: int | None


class CatalogueResponse(BaseModel):
    """Items in the catalogue's order, and the total number."""

    items: list[CatalogueItem]
    count: int


class ErrorBody(BaseModel):
    """The error message, and the part of the request concerned."""

    message: str
    field: str | None = None


class ErrorResponse(BaseModel):
    """The form of every error."""

    error: ErrorBody


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "The body cannot be read",
        401: "Missing or wrong token",
        404: "Unknown user or item",
        405: "Method not allowed",
        408: "The body did not arrive in time",
        413: "The body is too large",
        421: "The request's host name is not one of the server's",
        422: "The request is invalid",
        431: "The first line and headers are too large",
        503: "The answer took too long, too many requests are waiting, or a store failed: retry after Retry-After",
    }.items()
}
