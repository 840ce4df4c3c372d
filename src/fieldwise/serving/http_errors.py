"""Every error of the server in one form: what the rule is, what was found, and which part of the request is meant."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fieldwise.config import nearest
from fieldwise.errors import FieldwiseError
from fieldwise.serving.forms import BODIES, ErrorBody, ErrorResponse
from fieldwise.serving.rows import RequestError

__all__ = ["add_errors", "error_answer"]


def add_errors(app: FastAPI) -> None:
    """Let an application answer its errors, and those of a request's form, in the one form."""

    @app.exception_handler(RequestError)
    async def refused(_: Request, e: RequestError) -> JSONResponse:
        return error_answer(e.status, str(e), e.field, {"Retry-After": "1"} if e.status == 503 else None)

    @app.exception_handler(FieldwiseError)
    async def wrong(_: Request, e: FieldwiseError) -> JSONResponse:
        return error_answer(422, str(e), None)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, e: RequestValidationError) -> JSONResponse:
        first = e.errors()[0]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 2:
            name = str(first["loc"][1])
            kind = BODIES.get(request.url.path.removeprefix(request.scope.get("root_path", "")))
            return error_answer(
                422,
                f"{name[:60]} is no part of such a request: {nearest(name, kind.model_fields if kind else ())}",
                name,
            )
        if first["type"] == "json_invalid":
            return error_answer(422, f"a body must be JSON, found other text at character {first['loc'][-1]}", None)
        if first["loc"] == ("body",) and first["type"] in ("model_attributes_type", "missing"):
            what = "a body must be a JSON object, sent with the header Content-Type: application/json"
            return error_answer(422, what, "body")
        parts = [part for part in first["loc"] if part not in ("body", "query", "path")]
        cell = (len(parts) > 3 and parts[0] == "rows") or (len(parts) > 2 and parts[0] == "context")
        kept = parts[:3] if parts[:1] == ["rows"] else parts[:2]  # behind a cell stand the types that it is not
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in kept).lstrip(".")
        what = "must be text, a number, true, false, null or a list of these" if cell else first["msg"]
        return error_answer(422, f"{place or 'the body'}: {what}", place or None)

    @app.exception_handler(HTTPException)
    async def httperror_answer(_: Request, e: HTTPException) -> JSONResponse:
        return error_answer(e.status_code, str(e.detail), None, dict(e.headers or {}))


def error_answer(status: int, message: str, field: str | None, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as an answer; `field` is the part of the request that is meant."""
    # What a request holds may be no text that can be sent back.
    message = message.encode(errors="replace").decode()
    field = None if field is None else field.encode(errors="replace").decode()
    body = ErrorResponse(error=ErrorBody(message=message, field=field))
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)
