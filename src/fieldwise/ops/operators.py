"""PyTorch's registry of operators `torch.ops.fieldwise.*`, with types for what torch.library leaves untyped."""

from collections.abc import Callable
from typing import Any

from torch.library import Library

__all__ = ["OPERATORS", "define", "implement"]

OPERATORS: Library = Library("fieldwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Declare `torch.ops.fieldwise.NAME` by its schema, in PyTorch's notation."""
    OPERATORS.define(schema)  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], device: str = "CPU") -> None:
    """What the operator runs on a device (a dispatch key: `CPU`, `CUDA`)."""
    OPERATORS.impl(name, function, device)  # type: ignore[no-untyped-call]
