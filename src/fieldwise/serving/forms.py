"""Forms of requests and responses, from which the OpenAPI document is generated."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fieldwise.serving.stores.complete import Missing
from fieldwise.serving.user_log import Seen

__all__ = [
    "ERRORS",
    "CatalogueItem",
    "Cell",
    "Effect",
    "EffectsResponse",
    "ErrorBody",
    "ErrorResponse",
    "ExplainRequest",
    "ExplainResponse",
    "Id",
    "Item",
    "PredictRequest",
    "PredictResponse",
    "RecommendRequest",
    "RecommendResponse",
    "SimilarResponse",
]

Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Id = str | int | float | bool  # 3, 3.0 and "3" are the same id


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRequest(_Body):
    """Raw rows: every column of the model's fields, or a known user and item; null for an unknown value."""

    rows: Annotated[list[dict[str, Cell]], Field(min_length=1)]


class PredictResponse(BaseModel):
    """`score` (a logit or number) and `prediction` (a probability or number) of each row, by label if several."""

    predictions: list[dict[str, float]]
    degraded: list[Missing] = []


class RecommendRequest(_Body):
    """A known user, or raw user and context fields; given fields override the stored ones of the user.

    `exclude_seen`: which items of the user's rows in the server's log to exclude: those of `positive` rows (of all, if
    the log does not say which are positive), all (`true`) or none (`false`). The default is the server's setting,
    which is `positive` if it has a log.
    """

    user: Id | None = None
    context: dict[str, Cell] = {}
    k: Annotated[int, Field(ge=1)] = 10
    prerank: Annotated[int, Field(ge=1)] = 200
    candidates: list[Id] | None = None
    exclude: list[Id] = []
    where: dict[str, list[Id]] = {}
    exclude_seen: Seen | None = None


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


class ExplainRequest(_Body):
    """Either raw rows, or items of the index for a user or a context.

    With `pairs`, `measured_pairs` has the joint effects of two fields, for models without pair terms.
    """

    rows: list[dict[str, Cell]] = []
    user: Id | None = None
    context: dict[str, Cell] = {}
    items: list[Id] = []
    pairs: bool = False


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
