"""Variants by name: a preset defines every choice of a model, and a setting that is given overrides it."""

import dataclasses
from typing import Any, TypeVar

__all__ = ["choices"]

C = TypeVar("C")


def choices(settings: Any, preset: C) -> C:
    """The preset, overridden by every field of the same name in `settings` that is not None.

    Args:
        settings: a model's settings; None in a field means the variant's value.
        preset: a frozen dataclass of the choices of one variant.

    >>> from dataclasses import dataclass
    >>> from types import SimpleNamespace
    >>> @dataclass(frozen=True)
    ... class Choices:
    ...     scale: bool = False
    ...     bias: bool = True
    >>> choices(SimpleNamespace(scale=True, bias=None), Choices())
    Choices(scale=True, bias=True)
    """
    given = {f.name: getattr(settings, f.name) for f in dataclasses.fields(preset)}  # type: ignore[arg-type]
    given = {name: value for name, value in given.items() if value is not None}
    chosen: C = dataclasses.replace(preset, **given)  # type: ignore[type-var]
    return chosen
