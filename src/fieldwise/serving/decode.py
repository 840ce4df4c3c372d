"""Decoding of requests' bodies by msgspec up to the first error, which is put into plain words, and their limits."""

import asyncio
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from msgspec import Struct, ValidationError

from fieldwise.config import nearest
from fieldwise.serving.bodies import (
    REQUESTS,
    Cell,
    Count,
    ExplainRequest,
    Id,
    PredictRequest,
    RecommendRequest,
    WhyNotRequest,
)
from fieldwise.serving.rows import RequestError

BODY = "fieldwise.body"
"""The key of a scope under which the middleware puts a body."""
LARGE_BODY_BYTES = 1 << 16
"""Bodies of at least this size are decoded outside the event loop."""
DECODING_THREAD = ThreadPoolExecutor(1, thread_name_prefix="fieldwise-bodies")
"""Started by the first large body."""
DECODERS: dict[type[Struct], msgspec.json.Decoder[Any]] = {
    form: msgspec.json.Decoder(form) for form in REQUESTS
}

NO_OBJECT = "a body must be a JSON object, sent with the header Content-Type: application/json"
SCALAR_WORDS = "text, a number, true or false"
WHOLE_NUMBER = "a whole number"
EXCLUDE_SEEN_WORDS = "true, false, 'positive' or null"
EXPECTED = "Expected "
EXPECTED_WORDS = {
    "bool | int | float | str | array | null": f"{SCALAR_WORDS}, null or a list of these",
    "bool | int | float | str | null": f"{SCALAR_WORDS}, or null",
    "bool | int | float | str": SCALAR_WORDS,
    "bool | str | null": EXCLUDE_SEEN_WORDS,
    "bool": "true or false",
    "int >= 1": f"{WHOLE_NUMBER} of at least 1",
    "int": WHOLE_NUMBER,
    "int | null": f"{WHOLE_NUMBER} or null",
    "array of length >= 1": "a list that is not empty",
    "array": "a list",
    "array | null": "a list or null",
    "object": "an object",
}
"""What msgspec expects, by how it writes it."""
FOUND_WORDS = {
    "str": "text",
    "int": WHOLE_NUMBER,
    "float": "a number with a fraction",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
"""What msgspec got, likewise."""
INVALID_ENUM = "Invalid enum value "
"""`exclude_seen` has the only enum."""
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")
UNNAMED_KEY = "[...]"
"""How msgspec writes a key of a mapping, such as a column."""

KEY_OF = "key` in `"
"""How msgspec writes that a key of a mapping is wrong, not its value."""
CELL_FORMS: Mapping[str, Any] = {"where": list[Id], "limits": Count, "pinned": Id}
"""Of an object's values, by the object's name."""
B = TypeVar("B", PredictRequest, RecommendRequest, WhyNotRequest, ExplainRequest)


async def read_body(request: Request, form: type[B], max_rows: int, max_ids: int) -> B:
    """The body of a request, as `decoded`; large ones in another thread, one at a time."""
    content = request.scope[BODY]
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json_variant = media_type.startswith("application/") and media_type.endswith("+json")
    if media_type != "application/json" and not is_json_variant:
        raise RequestError(NO_OBJECT, "body")
    if len(content) < LARGE_BODY_BYTES:
        return decoded(content, form, max_rows, max_ids)
    return await asyncio.get_running_loop().run_in_executor(
        DECODING_THREAD, decoded, content, form, max_rows, max_ids
    )


def decoded(content: bytes, form: type[B], max_rows: int, max_ids: int) -> B:
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
        body: B = DECODERS[form].decode(content)
    except ValidationError as e:
        if isinstance(e.__cause__, RequestError):  # of an id
            raise e.__cause__ from None
        raise _form_error(str(e), content, form) from None
    except UnicodeDecodeError:
        raise RequestError(
            "a body must be text in UTF-8, found another byte", "body", 400
        ) from None
    except (msgspec.DecodeError, RecursionError) as e:
        raise RequestError(f"a body must be JSON: {e}" if content else NO_OBJECT, "body") from None

    rows = getattr(body, "rows", [])
    check_most(max_rows, len(rows), "rows")
    for name in ("candidates", "exclude", "items", "pinned"):
        ids = getattr(body, name, None) or ()
        check_most(max_ids, len(ids), name)
    if isinstance(body, RecommendRequest):
        check_most(max_ids, sum(map(len, body.where.values())), "where")
    if len(content) > 2 * max_ids:  # a list of n elements has more bytes than 2 n
        for number, row in enumerate(rows):
            _check_lists(max_ids, row, f"rows[{number}]")
        _check_lists(max_ids, getattr(body, "context", {}), "context")
    return body


def check_most(most: int, number: int, name: str) -> None:
    """Check that a number or a length of a request is at most `most`."""
    if number > most:
        raise RequestError(f"{name} must be at most {most:,}, found {number:,}", name)


def _check_lists(most: int, row: Mapping[str, Cell], path: str) -> None:
    """Check the length of the lists in a row's cells."""
    for column, cell in row.items():
        if isinstance(cell, list):
            check_most(most, len(cell), f"{path}.{column[:60]}")


def _form_error(error: str, content: bytes, form: type[Struct]) -> RequestError:
    """The error of a body that has another form, from that of msgspec."""
    text, _, path = error.partition(" - at `")
    place = path.removeprefix(KEY_OF).removeprefix("$").removesuffix("`").removeprefix(".")
    if path.startswith(KEY_OF):
        return RequestError(
            f"{place} must have items by their place, {WHOLE_NUMBER} of at least 1{_found_place(content)}",
            place,
        )
    if UNNAMED_KEY in place:
        place = _with_column(place, content)

    unknown = UNKNOWN_FIELD.match(text)
    if unknown:
        name = unknown[1][:60]
        hint = nearest(name, form.__struct_fields__)
        return RequestError(f"{name} is not a field of this request: {hint}", name)
    missing = MISSING_FIELD.match(text)
    if missing:
        return RequestError(f"a body must have {missing[1]}", missing[1])
    if not place:
        return RequestError(NO_OBJECT, "body")
    text = _in_plain_words(text)
    separator = " " if text.startswith("must be") else ": "
    return RequestError(f"{place}{separator}{text}", place)


def _found_place(content: bytes) -> str:
    """The first key of `pinned` that is no place, as the end of a sentence; empty if the body cannot be read."""
    with suppress(msgspec.MsgspecError, RecursionError):
        for key in msgspec.json.decode(content)["pinned"]:
            try:
                msgspec.convert({key: None}, dict[Count, None], str_keys=True)
            except ValidationError:
                return f", found {key[:60]!r}"
    return ""


def _with_column(path: str, content: bytes) -> str:
    """A path in a body with the first column whose cell has another form, which msgspec does not name."""
    before, _, after = path.partition(UNNAMED_KEY)
    with suppress(
        msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError, AttributeError
    ):
        row = msgspec.json.decode(content)
        for key in re.findall(r"\w+", before):
            row = row[int(key) if key.isdigit() else key]
        for column, cell in row.items():
            try:
                msgspec.convert(cell, CELL_FORMS.get(before, Cell))
            except ValidationError:
                return f"{before}.{column[:60]}{after}"
    return path


def _in_plain_words(text: str) -> str:
    """An error of msgspec in the words of JSON, as the end of a sentence."""
    text = text.replace("`", "")
    if text.startswith(INVALID_ENUM):
        return f"must be {EXCLUDE_SEEN_WORDS}, found {text.removeprefix(INVALID_ENUM)}"
    if not text.startswith(EXPECTED):
        return text
    expected, comma, found = text.removeprefix(EXPECTED).partition(", got ")
    sentence = f"must be {EXPECTED_WORDS.get(expected, expected)}"
    if comma:
        sentence += f", found {FOUND_WORDS.get(found, found)}"
    return sentence
