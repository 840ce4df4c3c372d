"""Shared checks of model settings; each raises a ConfigError that names the setting."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, get_args

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout

__all__ = [
    "check_at_least",
    "check_choice",
    "check_fields",
    "check_flags",
    "check_positive",
    "check_shares",
    "check_sizes",
    "sides",
]


def check_at_least(minimum: int, **settings: int) -> None:
    """Check that every setting is a whole number of at least `minimum`.

    >>> check_at_least(1, heads=0)
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: heads must be a whole number of at least 1, found 0
    """
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(f"{name} must be a whole number of at least {minimum}, found {value!r}")


def check_flags(settings: Any) -> None:
    """Check that every setting declared as bool (or None) is one: any text would count as true.

    >>> from fieldwise.models import DCN
    >>> DCN(batch_norm="no")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: batch_norm must be True or False, found 'no'
    """
    hints = typing.get_type_hints(type(settings))
    for f in dataclasses.fields(settings):
        kinds, value = get_args(hints[f.name]) or (hints[f.name],), getattr(settings, f.name)
        if set(kinds) <= {bool, type(None)} and not isinstance(value, kinds):
            raise ConfigError(f"{f.name} must be True or False, found {value!r}")


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Check that a setting is a tuple of at least one size, each a whole number of at least 1."""
    if not isinstance(sizes, tuple):
        raise ConfigError(f"{name} must be a tuple of sizes, as in (400, 400), found {sizes!r}")
    if not sizes:
        raise ConfigError(f"{name} must name the size of at least one layer, as in (400, 400), found {sizes!r}")
    for i, size in enumerate(sizes):
        check_at_least(1, **{f"{name}[{i}]": size})


def check_shares(**settings: float) -> None:
    """Check that every setting is a dropout rate: at least 0 and less than 1."""
    for name, value in settings.items():
        if not _is_number(value) or not 0 <= value < 1:
            raise ConfigError(f"{name} must be at least 0 and less than 1, found {value!r}")


def check_positive(*, zero: bool = False, **settings: float) -> None:
    """Check that every setting is finite and above 0 (or 0, if allowed)."""
    for name, value in settings.items():
        if not _is_number(value) or not (0 < value < float("inf") or (zero and value == 0)):
            raise ConfigError(f"{name} must be {'0 or more' if zero else 'above 0'} and finite, found {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_choice(name: str, value: str, choices: Any) -> None:
    """Check that a setting is one of the values of a Literal."""
    if value not in get_args(choices):
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, get_args(choices)))}, found {value!r}")


def check_fields(layout: Layout, minimum: int, model: str, why: str) -> None:
    """Check that the layout has at least `minimum` fields; `why` is part of the message: "attends to pairs".

    >>> check_fields(Layout.of_sizes([3]), 2, "AFM", "attends to pairs")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: AFM attends to pairs and needs at least 2 fields, found 1: add fields to the schema
    """
    if layout.num_fields < minimum:
        needed = f"{minimum} field{'s' if minimum > 1 else ''}"
        raise ConfigError(
            f"{model} {why} and needs at least {needed}, found {layout.num_fields or 'none'}: add fields to the schema"
        )


def sides(layout: Layout, model: str) -> tuple[list[int], list[int]]:
    """Positions of a two-tower model's user side (user and context fields) and item side; neither may be empty.

    >>> sides(Layout.of_sizes([3, 4, 2], ["context", "item", "user"]), "DSSM")
    ([0, 2], [1])
    """
    user = sorted(layout.positions(role="user") + layout.positions(role="context"))
    item = layout.positions(role="item")
    if not user or not item:
        side, needed = ("user", "user or context") if not user else ("item", "item")
        raise ConfigError(f"{model}'s {side} tower needs a field of role {needed}, found none: set fields' roles")
    return user, item
