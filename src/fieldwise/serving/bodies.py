"""Bodies: the forms of requests and responses, and decoding by msgspec up to the first error."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Request
from msgspec import Meta, Struct, ValidationError
from pydantic import BaseModel

from fieldwise.config import nearest
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
]

BODY = "fieldwise.body"  # the key of a scope under which the middleware puts a body
LARGE = 1 << 16  # bodies of at least this many bytes are decoded outside the event loop
NO_OBJECT = "a body must be a JSON object, sent with the header Content-Type: application/json"
SCALAR = "text, a number, true or false"
Scalar = str | int | float | bool | None
Cell = Scalar | list[Scalar]
Id = str | int | float | bool  # 3, 3.0 and "3" are the same id
SEEN = "true, false, 'positive' or null"
UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(.*)`")


class PredictRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Raw rows: every column of the model's fields, or a known user and item; null for an unknown value."""

    rows: Annotated[list[dict[str, Cell]], Meta(min_length=1)]


class RecommendRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A known user, or raw user and context fields; given fields override the stored ones of the user.

    `k`: number of items; if omitted, 10, or all if there are fewer. `exclude_seen`: which items of
    the user's rows in the server's log to exclude: those of `positive` rows (of all, if the log
    does not say which are positive), all (`true`) or none (`false`). The default is the server's
    setting, which is `positive` if it has a log.
    """

    user: Id | None = None
    context: dict[str, Cell] = {}
    k: Annotated[int, Meta(ge=1)] | None = None
    prerank: Annotated[int, Meta(ge=1)] = PRERANK
    candidates: list[Id] | None = None
    exclude: list[Id] = []
    where: dict[str, list[Id]] = {}
    exclude_seen: Seen | None = None

    def __post_init__(self) -> None:
        """Make strings of the ids and values of filters, whoever made the request: a client, or Python."""
        self.user = None if self.user is None else id_texts([self.user], "user")[0]
        self.candidates = (
            None if self.candidates is None else id_texts(self.candidates, "candidates")
        )
        self.exclude = id_texts(self.exclude, "exclude")
        self.where = {
            column: id_texts(values, f"where.{column[:60]}")
            for column, values in self.where.items()
        }


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
        self.user = None if self.user is None else id_texts([self.user], "user")[0]
        self.items = id_texts(self.items, "items")


REQUESTS = (PredictRequest, RecommendRequest, ExplainRequest)
DECODERS: dict[type[Struct], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in REQUESTS
}
# started by the first large body
THREAD = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-bodies")
B = TypeVar("B", PredictRequest, RecommendRequest, ExplainRequest)


async def read_body(request: Request, kind: type[B], max_rows: int, max_ids: int) -> B:
    """The body of a request, as `decoded`; large ones in another thread, one at a time."""
    content = request.scope[BODY]
    name = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if name != "application/json" and not (
        name.startswith("application/") and name.endswith("+json")
    ):
        raise RequestError(NO_OBJECT, "body")
    if len(content) < LARGE:
        return decoded(content, kind, max_rows, max_ids)
    return await asyncio.get_running_loop().run_in_executor(
        THREAD, decoded, content, kind, max_rows, max_ids
    )


def decoded(content: bytes, kind: type[B], max_rows: int, max_ids: int) -> B:
    """The decoded body of a request.

    A RequestError if it is no such form, or has more than `max_rows` rows, or more than `max_ids`
    ids or values in a list or in all filters together.

    >>> decoded(b'{"user": 7, "exclude": [7.0]}', RecommendRequest, 1000, 2).exclude
    ['7']
    >>> decoded(b'{"exclude": [1, 2, 3]}', RecommendRequest, 1000, 2)
    Traceback (most recent call last):
        ...
    fieldwise.serving.rows.RequestError: exclude must be at most 2, found 3
    """
    try:
        body: B = DECODERS[kind].decode(content)
    except ValidationError as e:
        if isinstance(e.__cause__, RequestError):  # of an id
            raise e.__cause__ from None
        raise _refused(str(e), content, kind) from None
    except UnicodeDecodeError:
        raise RequestError(
            "a body must be text in UTF-8, found another byte", "body", 400
        ) from None
    except (msgspec.DecodeError, RecursionError) as e:
        raise RequestError(f"a body must be JSON: {e}" if content else NO_OBJECT, "body") from None
    check_most(max_rows, len(getattr(body, "rows", ())), "rows")
    for name in ("candidates", "exclude", "items"):
        check_most(max_ids, len(getattr(body, name, None) or ()), name)
    if isinstance(body, RecommendRequest):
        check_most(max_ids, sum(map(len, body.where.values())), "where")
    if len(content) > 2 * max_ids:  # a list of n elements has more bytes than 2 n
        rows = {f"rows[{number}]": row for number, row in enumerate(getattr(body, "rows", ()))}
        for place, row in (rows | {"context": getattr(body, "context", {})}).items():
            for column, cell in row.items():
                if isinstance(cell, list):
                    check_most(max_ids, len(cell), f"{place}.{column[:60]}")
    return body


def _refused(error: str, content: bytes, kind: type[Struct]) -> RequestError:
    """The error of a body that has another form, from that of msgspec."""
    text, _, path = error.partition(" - at `$")
    place = path.removesuffix("`").removeprefix(".")
    before, unnamed, after = place.partition("[...]")
    if unnamed:  # msgspec does not name a column
        with suppress(
            msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError, AttributeError
        ):
            row = msgspec.json.decode(content)
            for part in re.findall(r"\w+", before):
                row = row[int(part) if part.isdigit() else part]
            for column, cell in row.items():
                try:
                    msgspec.convert(cell, list[Id] if before == "where" else Cell)
                except ValidationError:
                    place = f"{before}.{column[:60]}{after}"
                    break
    if unknown := UNKNOWN.match(text):
        name = unknown[1][:60]
        return RequestError(
            f"{name} is not a field of this request: {nearest(name, kind.__struct_fields__)}", name
        )
    if missing := MISSING.match(text):
        return RequestError(f"a body must have {missing[1]}", missing[1])
    if not place:
        return RequestError(NO_OBJECT, "body")
    text = text.replace("`", "").replace("Expected ", "must be ").replace(", got ", ", found ")
    text = text.replace(
        "bool | int | float | str | array | null", f"{SCALAR}, null or a list of these"
    )
    text = text.replace("bool | int | float | str", SCALAR).replace("bool | str | null", SEEN)
    # `exclude_seen` has the only one
    text = text.replace("Invalid enum value ", f"must be {SEEN}, found ")
    return RequestError(
        f"{place} {text}" if text.startswith("must be") else f"{place}: {text}", place
    )


def check_most(most: int, number: int, name: str) -> None:
    """Check that a number or a length of a request is at most `most`."""
    if number > most:
        raise RequestError(f"{name} must be at most {most:,}, found {number:,}", name)


def id_texts(values: Sequence[Id], where: str) -> list[Any]:
    """Ids and values as strings.

    >>> id_texts([3, 3.0, "3"], "items")
    ['3', '3', '3']
    """
    try:
        return [text_of(value) for value in values]
    except (TypeError, ValueError) as e:
        raise RequestError(f"{where} must be {e}", where) from None


class PredictResponse(BaseModel):
    """`score` (a logit or number) and `prediction` (a probability or number) of each row, by label if several.

    `unknown` names a row's fields whose values the model does not know, if there are any.
    """

    predictions: list[dict[str, float | list[str]]]
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

    `ranked`: how the items were ranked: `all` (the bundle scored every item that passes the
    filters), `preranked` (it scored those that IntTower selected) or `tower` (only IntTower's
    scores). `seen`: number of items excluded because of the user's rows (`exclude_seen`).
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

    `context`: the context fields of the user's latest row. `seen`: the number of items in the
    user's rows, if the server has a log.
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
