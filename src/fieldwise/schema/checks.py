"""Checks of settings that Python code gives: types, choices and counts."""

from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from fieldwise.config import check_choice
from fieldwise.errors import SchemaError

_WORDS_OF_TYPES: dict[type, tuple[type, str]] = {
    str: (str, "text"),
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def check_types(settings: object, what: str) -> None:
    """Check that texts, numbers, truth values and choices are such (guaranteed from TOML, but not from Python).

    Numbers of NumPy are numbers.
    """
    kind: Any = type(settings)
    for name, declared, may_be_none in _declared(kind):
        value = getattr(settings, name)
        if value is None and may_be_none:
            continue
        if get_origin(declared) is Literal:
            check_choice(f"{what}: {name}", value, get_args(declared), SchemaError)
            continue
        accepted, words = _WORDS_OF_TYPES[declared]
        is_truth_value = isinstance(value, bool) and declared is not bool
        if not isinstance(value, accepted) or is_truth_value:
            raise SchemaError(f"{what}: {name} must be {words}, found {value!r}")


@cache
def _declared(kind: Any) -> list[tuple[str, Any, bool]]:
    """The settings of a class that are checked, each with its type without None, and whether it may be None."""
    declared = []
    for attribute in fields(kind):
        alternatives = get_args(attribute.type)
        may_be_none = NoneType in alternatives
        types = [hint for hint in alternatives if hint is not NoneType]
        if not may_be_none:
            types = [attribute.type]
        if len(types) == 1 and (types[0] in _WORDS_OF_TYPES or get_origin(types[0]) is Literal):
            declared.append((attribute.name, types[0], may_be_none))
    return declared


def check_count(what: str, count: object) -> None:
    """Check a number of things, at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SchemaError(f"{what} must be a whole number of at least 1, found {count!r}")
