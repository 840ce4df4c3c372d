"""Checks of a request beyond its form: limits, and ids as strings."""

from collections.abc import Sequence
from typing import Any

from fieldwise.serving.forms import Id
from fieldwise.serving.rows import RequestError, text_of

__all__ = ["check_length", "check_number", "id_text", "id_texts"]


def check_length(most: int, values: Sequence[Any], name: str) -> None:
    """Check that a part of a request has at most `most` values.

    Errors:
        RequestError: too many values.
    """
    if len(values) > most:
        raise RequestError(f"{name} must be at most {most:,}, found {len(values):,}", name)


def check_number(most: int, value: int, name: str) -> None:
    """Check that a number of a request is at most `most`.

    Errors:
        RequestError: the number is too large.
    """
    if value > most:
        raise RequestError(f"{name} must be at most {most:,}, found {value:,}", name)


def id_text(value: Id | None) -> str | None:
    """A user's id as a string; None stays None.

    Errors:
        RequestError: as for `id_texts`.
    """
    return None if value is None else id_texts([value], "user")[0]


def id_texts(values: Sequence[Id], where: str) -> list[str]:
    """Ids and values as strings.

    Errors:
        RequestError: one cannot be converted to a string.

    >>> id_texts([3, 3.0, "3"], "items")
    ['3', '3', '3']
    """
    try:
        return [text_of(value) for value in values]
    except ValueError as e:
        raise RequestError(f"{where} must be {e}", where) from None
