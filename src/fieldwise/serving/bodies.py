"""Parsing of request bodies: lengths before elements, up to the first error, large ones outside the event loop.

The forms (`forms.py`) are Pydantic models, from which the OpenAPI document is generated. Their large parts (rows,
contexts, lists of ids) are checked here instead: Pydantic collects every error of every element while holding the
interpreter lock, so 1 MiB of `{}` as ids would block the server for seconds.
"""

import asyncio
import gc
import inspect
import json
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from fieldwise.config import nearest
from fieldwise.serving.pieces import timed_call
from fieldwise.serving.request_checks import check_length, id_texts
from fieldwise.serving.rows import RequestError

__all__ = ["BodyLimits", "body_route", "parsed"]

LARGE = 1 << 16  # bodies of at least this many bytes are parsed outside the event loop
BRIEF, REST = 0.002, 5  # seconds of parsing without a rest; length of a rest, in multiples of the time before it
NO_OBJECT = "a body must be a JSON object, sent with the header Content-Type: application/json"
SCALARS = frozenset((str, int, float, bool, type(None)))
IDS = SCALARS - {type(None)}

Checked = Callable[[Any, str, "BodyLimits"], Any]


@dataclass(frozen=True, kw_only=True)
class BodyLimits:
    """Maximum lengths of the parts of a body.

    Args:
        rows: maximum rows of a prediction or an explanation.
        ids: maximum length of a list of ids or values, and of all filters together.
    """

    rows: int
    ids: int


def body_route(limits: BodyLimits, others: Callable[[], bool] = lambda: False) -> type[APIRoute]:
    """A route class whose function takes one argument, `body`, parsed by this module, and returns a `Response`.

    Args:
        limits: maximum lengths.
        others: whether other requests are being served; then the parser of large bodies, which holds Python's
            interpreter lock, rests after each for a multiple of its time.
    """
    worker = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-bodies")
    turn = asyncio.Lock()

    async def elsewhere(content: bytes, kind: type[BaseModel]) -> BaseModel:
        call = partial(timed_call, partial(_large, content, kind, limits))
        async with turn:
            seconds, body = await asyncio.get_running_loop().run_in_executor(worker, call)
            if seconds > BRIEF and others():
                await asyncio.sleep(REST * seconds)
        if isinstance(body, Exception):
            raise body
        return body

    class BodyRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            kind = inspect.signature(self.endpoint).parameters["body"].annotation

            async def handle(request: Request) -> Response:
                content = await request.body()
                if not _is_json(request.headers.get("content-type", "")):
                    raise RequestError(NO_OBJECT, "body")
                body = parsed(content, kind, limits) if len(content) < LARGE else await elsewhere(content, kind)
                answer: Response = await self.endpoint(body=body)
                return answer

            return handle

    return BodyRoute


def parsed(content: bytes, kind: type[BaseModel], limits: BodyLimits) -> BaseModel:
    """Parse a body into its form; ids and values of filters become strings.

    Errors:
        RequestError, RequestValidationError: the first error in it.

    >>> from fieldwise.serving.forms import RecommendRequest
    >>> limits = BodyLimits(rows=1000, ids=2)
    >>> parsed(b'{"user": 7, "exclude": [7.0]}', RecommendRequest, limits).exclude
    ['7']
    >>> parsed(b'{"exclude": [{}, {}, {}]}', RecommendRequest, limits)
    Traceback (most recent call last):
        ...
    fieldwise.serving.rows.RequestError: exclude must be at most 2, found 3
    """
    found = _json(content)
    if not isinstance(found, dict):
        raise RequestError(NO_OBJECT, "body")
    for name in found:
        if name not in kind.model_fields:
            known = nearest(name[:60], list(kind.model_fields))
            raise RequestError(f"{name[:60]} is not a field of this request: {known}", name[:60])
    large, small = {}, dict(found)
    for name, (of, check, stand_in) in LARGE_PARTS.items():
        if name in kind.model_fields and type(found.get(name)) is of:
            large[name] = check(found[name], name, limits)
            small[name] = stand_in if found[name] else found[name]
    try:
        return kind.model_validate(small).model_copy(update=large)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        raise RequestValidationError([{**first, "loc": ("body", *first["loc"])}]) from None


def _large(content: bytes, kind: type[BaseModel], limits: BodyLimits) -> BaseModel | Exception:
    """Parse a large body, or return its error; without garbage collection, which would traverse all of it."""
    gc.disable()
    try:
        return parsed(content, kind, limits)
    except (RequestError, RequestValidationError) as e:
        return e
    finally:
        gc.enable()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as e:
        if not content:
            raise RequestError(NO_OBJECT, "body") from None
        raise RequestError(f"a body must be JSON, found other text at character {e.pos}", "body") from None
    except UnicodeDecodeError as e:
        raise RequestError(f"a body must be text in UTF-8, found another byte at {e.start}", "body", 400) from None
    except (RecursionError, ValueError):
        what = "a body must be JSON with less nesting, and integers of at most 4,300 digits"
        raise RequestError(what, "body") from None


def _is_json(kind: str) -> bool:
    """Whether a content type is JSON: `application/json`, or anything with `+json`."""
    name = kind.partition(";")[0].strip().lower()
    return name == "application/json" or (name.startswith("application/") and name.endswith("+json"))


def _rows(rows: list[Any], name: str, limits: BodyLimits) -> list[Any]:
    check_length(limits.rows, rows, name)
    for number, row in enumerate(rows):
        if type(row) is not dict:
            raise RequestError(f"{name}[{number}] must be an object of columns and their values", f"{name}[{number}]")
        _cells(row, f"{name}[{number}]", limits)
    return rows


def _cells(row: dict[str, Any], name: str, limits: BodyLimits) -> dict[str, Any]:
    for column, cell in row.items():
        kind = type(cell)
        if kind is list:
            if len(cell) > limits.ids:
                check_length(limits.ids, cell, f"{name}.{column[:60]}")
            if SCALARS.issuperset(map(type, cell)):
                continue
        if kind not in SCALARS:
            place = f"{name}.{column[:60]}"
            raise RequestError(f"{place} must be text, a number, true, false, null or a list of these", place)
    return row


def _ids(ids: list[Any], name: str, limits: BodyLimits) -> list[str]:
    check_length(limits.ids, ids, name)
    if not IDS.issuperset(map(type, ids)):
        number = next(number for number, one in enumerate(ids) if type(one) not in IDS)
        raise RequestError(f"{name}[{number}] must be text, a number, true or false", f"{name}[{number}]")
    return id_texts(ids, name)


def _filters(filters: dict[str, Any], name: str, limits: BodyLimits) -> dict[str, list[str]]:
    for column, values in filters.items():
        if type(values) is not list:
            raise RequestError(f"{name}.{column[:60]} must be a list of values", f"{name}.{column[:60]}")
    total = sum(map(len, filters.values()))
    if total > limits.ids:
        raise RequestError(f"{name} must be at most {limits.ids:,}, found {total:,}", name)
    return {column: _ids(values, f"{name}.{column[:60]}", limits) for column, values in filters.items()}


# By name: the required JSON type, the check, and the placeholder that Pydantic gets instead.
LARGE_PARTS: Mapping[str, tuple[type, Checked, Any]] = {
    "rows": (list, _rows, [{}]),
    "context": (dict, _cells, {}),
    "candidates": (list, _ids, []),
    "exclude": (list, _ids, []),
    "items": (list, _ids, []),
    "where": (dict, _filters, {}),
}
