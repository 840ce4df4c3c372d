"""Checks of settings that Python code gives: types, choices and counts."""

from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from fieldwise.config import check_choice
from fieldwise.errors import SchemaError

_WORDS_OF_TYPES: dict[type, tuple[type, str]] = {
    str: (str, "text"),
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def check_choices(settings: Any, what: str) -> None:
    """Check that every Literal setting has one of its values (guaranteed from TOML, but not from Python)."""
    for attribute in fields(settings):
        value = getattr(settings, attribute.name)
        alternatives = (attribute.type, *get_args(attribute.type))
        choices = [get_args(hint) for hint in alternatives if get_origin(hint) is Literal]
        is_omitted = value is None and type(None) in alternatives
        if choices and not is_omitted:
            check_choice(f"{what}: {attribute.name}", value, choices[0], SchemaError)


def check_types(settings: Any, what: str) -> None:
    """Check that texts, numbers and truth values are such (guaranteed from TOML, but not from Python).

    Numbers of NumPy are numbers.
    """
    for attribute in fields(settings):
        value = getattr(settings, attribute.name)
        alternatives = {attribute.type}
        if isinstance(attribute.type, UnionType):
            alternatives = set(get_args(attribute.type))
        types = alternatives - {type(None)}
        declared = next(iter(types))
        if len(types) > 1 or declared not in _WORDS_OF_TYPES:
            continue
        if value is None and type(None) in alternatives:
            continue
        accepted, words = _WORDS_OF_TYPES[declared]
        is_truth_value = isinstance(value, bool) and declared is not bool
        if not isinstance(value, accepted) or is_truth_value:
            raise SchemaError(f"{what}: {attribute.name} must be {words}, found {value!r}")


def check_count(what: str, count: object) -> None:
    """Check a number of things, at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SchemaError(f"{what} must be a whole number of at least 1, found {count!r}")
