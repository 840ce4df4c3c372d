"""What requests and answers look like: the published OpenAPI document is made of this."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fieldwise.serving.stores.complete import Missing

__all__ = [
    "ERRORS",
    "CatalogueItem",
    "Cell",
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
Id = str | int | float | bool  # 3, 3.0 and "3" name the same


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PredictRequest(_Body):
    """Raw rows: every column of the model's fields, or a known user and item; null where a value is not known."""

    rows: Annotated[list[dict[str, Cell]], Field(min_length=1)]


class PredictResponse(BaseModel):
    """For each row `score` (a logit, or a number) and `prediction` (a probability, or a number); of labels by name."""

    predictions: list[dict[str, float]]
    degraded: list[Missing] = []


class RecommendRequest(_Body):
    """For a known user, or for raw user and context fields; given fields count before the user's own.

    `exclude_seen`: whether items that the user has used, by the server's log, must not come; the server's own choice
    where left out, which is true where it has a log.
    """

    user: Id | None = None
    context: dict[str, Cell] = {}
    k: Annotated[int, Field(ge=1)] = 10
    prerank: Annotated[int, Field(ge=1)] = 200
    candidates: list[Id] | None = None
    exclude: list[Id] = []
    where: dict[str, list[Id]] = {}
    exclude_seen: bool | None = None


class CatalogueItem(BaseModel):
    """An item with its columns."""

    id: str
    fields: dict[str, Cell]


class Item(CatalogueItem):
    """An item with its columns; `prediction` is the ranking's (a probability), `prerank_score` IntTower's logit."""

    prerank_score: float | None = None
    prediction: float | None = None
    similarity: float | None = None


class RecommendResponse(BaseModel):
    """The best items first, how many were left after each stage, and what each stage took.

    `ranked` says how they were found: `all` (the bundle scored every item that passes the filters), `preranked` (it
    scored those that IntTower chose) or `tower` (by IntTower's scores alone); `seen` how many items were left out since
    the user has used them.
    """

    items: list[Item]
    ranked: Literal["all", "preranked", "tower"]
    seen: int = 0
    counts: dict[str, int]
    milliseconds: dict[str, float]
    degraded: list[Missing] = []


class ExplainRequest(_Body):
    """Either raw rows, or items of the index for a user or a context.

    With `pairs`, models without terms of pairs have `measured_pairs`: what two fields give together.
    """

    rows: list[dict[str, Cell]] = []
    user: Id | None = None
    context: dict[str, Cell] = {}
    items: list[Id] = []
    pairs: bool = False


class ExplainResponse(BaseModel):
    """For each row what `fieldwise explain --json` prints of it."""

    explanations: list[dict[str, Any]]
    degraded: list[Missing] = []


class SimilarResponse(BaseModel):
    """The nearest items first."""

    items: list[Item]


class ErrorBody(BaseModel):
    """What is wrong, and with which part of the request."""

    message: str
    field: str | None = None


class ErrorResponse(BaseModel):
    """The form of every error."""

    error: ErrorBody


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": text}
    for status, text in {
        400: "The body cannot be read",
        401: "No token, or a wrong one",
        404: "Unknown user or item",
        405: "Another method",
        408: "The body did not arrive in time",
        413: "The body is too large",
        421: "The server is called by a name that it does not have",
        422: "The request cannot be answered as it is",
        431: "The first line and headers are too large",
        503: "The answer took too long, too many requests wait, or a store fails: ask again after Retry-After",
    }.items()
}
