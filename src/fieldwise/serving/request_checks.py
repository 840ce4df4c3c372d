"""Checks of a request beyond its form: how much it may ask for, and ids as texts."""

from collections.abc import Sequence
from typing import Any

from fieldwise.serving.forms import Id
from fieldwise.serving.rows import RequestError, text_of

__all__ = ["check_length", "check_number", "id_text", "id_texts"]


def check_length(most: int, values: Sequence[Any], name: str) -> None:
    """Refuse a part of a request that has more than `most` values.

    Errors:
        RequestError: it names the part, the limit and how many there are.
    """
    if len(values) > most:
        raise RequestError(f"{name} must be at most {most:,}, found {len(values):,}", name)


def check_number(most: int, value: int, name: str) -> None:
    """Refuse a number of a request that is above `most`.

    Errors:
        RequestError: it names the number, the limit and what was found.
    """
    if value > most:
        raise RequestError(f"{name} must be at most {most:,}, found {value:,}", name)


def id_text(value: Id | None) -> str | None:
    """A user's id as text; None stays None.

    Errors:
        RequestError: as of `id_texts`.
    """
    return None if value is None else id_texts([value], "user")[0]


def id_texts(values: Sequence[Id], where: str) -> list[str]:
    """Ids and values as texts.

    Errors:
        RequestError: one cannot be written as text; it names the part of the request.

    >>> id_texts([3, 3.0, "3"], "items")
    ['3', '3', '3']
    """
    try:
        return [text_of(value) for value in values]
    except ValueError as e:
        raise RequestError(f"{where} must be {e}", where) from None
