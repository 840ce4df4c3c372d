"""PyTorch's registry of operators `torch.ops.fieldwise.*`, with types for what torch.library leaves untyped."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch.library import Library, register_autograd

__all__ = ["OPERATORS", "define", "implement", "refuse_derivative"]

OPERATORS: Library = Library("fieldwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Declare `torch.ops.fieldwise.NAME` by its schema, in PyTorch's notation."""
    OPERATORS.define(schema)  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], device: str = "CPU") -> None:
    """What the operator runs on a device (a dispatch key: `CPU`, `CUDA`)."""
    OPERATORS.impl(name, function, device)  # type: ignore[no-untyped-call]


def refuse_derivative(name: str) -> None:
    """Make a derivative through this operator, a backward pass itself, an error: PyTorch would warn and skip it."""

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        raise RuntimeError(f"fieldwise::{name} has no derivative: for second derivatives run under use_ops('plain')")

    register_autograd(f"fieldwise::{name}", refuse, lib=OPERATORS)
