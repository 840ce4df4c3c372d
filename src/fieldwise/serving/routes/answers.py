"""Responses of routes as JSON."""

from typing import Any

from fastapi import Response
from pydantic_core import to_json

__all__ = ["json_answer"]


def json_answer(answer: dict[str, Any]) -> Response:
    """A response of a known form, which is not validated against the OpenAPI document again.

    >>> json_answer({"predictions": [0.5, float("nan")]}).body
    b'{"predictions":[0.5,null]}'
    """
    return Response(to_json(answer, inf_nan_mode="null"), media_type="application/json")
