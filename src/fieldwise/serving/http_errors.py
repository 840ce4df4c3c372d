"""Errors of the server in a common form: the rule, the value found, and the part of the request concerned."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from fieldwise.errors import FieldwiseError
from fieldwise.serving.forms import ErrorBody, ErrorResponse
from fieldwise.serving.rows import RequestError

__all__ = ["add_errors", "error_answer"]


def add_errors(app: FastAPI) -> None:
    """Make an application return all errors in the common form."""

    @app.exception_handler(RequestError)
    async def refused(_: Request, e: RequestError) -> JSONResponse:
        return error_answer(e.status, str(e), e.field, {"Retry-After": "1"} if e.status == 503 else None)

    @app.exception_handler(FieldwiseError)
    async def wrong(_: Request, e: FieldwiseError) -> JSONResponse:
        return error_answer(422, str(e), None)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, e: RequestValidationError) -> JSONResponse:
        first = e.errors()[0]
        place = next((str(part) for part in first["loc"] if part not in ("body", "query", "path")), None)
        return error_answer(422, f"{place or 'the body'}: {first['msg']}", place)

    @app.exception_handler(HTTPException)
    async def httperror_answer(_: Request, e: HTTPException) -> JSONResponse:
        return error_answer(e.status_code, str(e.detail), None, dict(e.headers or {}))


def error_answer(status: int, message: str, field: str | None, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as a response; `field` is the part of the request concerned."""
    # Text of a request is not always encodable as UTF-8.
    message = message.encode(errors="replace").decode()
    field = None if field is None else field.encode(errors="replace").decode()
    body = ErrorResponse(error=ErrorBody(message=message, field=field))
    return JSONResponse(body.model_dump(), status_code=status, headers=headers)
