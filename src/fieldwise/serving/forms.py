"""Forms of responses, from which the OpenAPI document is generated."""

from typing import Any, Literal

from pydantic import BaseModel

from fieldwise.serving.stores import Missing

__all__ = [
    "ERRORS",
    "CatalogueResponse",
    "Cell",
    "EffectsResponse",
    "ExplainResponse",
    "Id",
    "PredictResponse",
    "RecommendResponse",
    "SimilarResponse",
    "UserResponse",
    "UsersResponse",
]

Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Id = str | int | float | bool  # 3, 3.0 and "3" are the same id


class PredictResponse(BaseModel):
    """`score` (a logit or number) and `prediction` (a probability or number) of each row, by label if several."""

    predictions: list[dict[str, float]]
    degraded: list[Missing] = []


class CatalogueItem(BaseModel):
    """An item with its columns."""

    id: str
    fields: dict[str, Cell]


class Item(CatalogueItem):
    """An item with its columns; `prediction` is from the ranking bundle, `prerank_score` is IntTower's logit."""

    prerank_score: float | None = None
    prediction: float | None = None
    similarity: float | None = None


class RecommendResponse(BaseModel):
    """The best items first, the number of items after each stage, and the time of each stage.

    `ranked`: how the items were ranked: `all` (the bundle scored every item that passes the filters), `preranked` (it
    scored those that IntTower selected) or `tower` (only IntTower's scores). `seen`: number of items excluded because
    of the user's rows (`exclude_seen`).
    """

    items: list[Item]
    ranked: Literal["all", "preranked", "tower"]
    seen: int = 0
    counts: dict[str, int]
    milliseconds: dict[str, float]
    degraded: list[Missing] = []


class ExplainResponse(BaseModel):
    """For each row, the output of `fieldwise explain --json`."""

    explanations: list[dict[str, Any]]
    degraded: list[Missing] = []


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
