"""Registration of the operators `torch.ops.fieldwise.*`, with types that torch.library lacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library, register_autocast, register_autograd, register_fake

__all__ = ["OPERATORS", "Differentiable", "define", "implement", "implement_with_gradient", "save_with_second_output"]

OPERATORS: Library = Library("fieldwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Declare an operator `torch.ops.fieldwise.NAME` by its schema, in PyTorch's notation."""
    OPERATORS.define(schema)  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], device: str = "CPU") -> None:
    """Register an operator's implementation for a device (a dispatch key: `CPU`, `CUDA`)."""
    OPERATORS.impl(name, function, device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class Differentiable:
    """The functions of an operator NAME with a gradient.

    Args:
        forward: the implementation of NAME.
        backward: the implementation of NAME_backward.
        fake: uninitialised outputs of NAME, for tracing.
        fake_backward: those of NAME_backward.
        save: saves the inputs of `differentiate` in autograd's context (PyTorch's `setup_context`).
        differentiate: a gradient for every input, by NAME_backward.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    fake: Callable[..., Any]
    fake_backward: Callable[..., Any]
    save: Callable[..., None]
    differentiate: Callable[..., Any]


def implement_with_gradient(name: str, functions: Differentiable) -> None:
    """Register CPU implementations, shapes, derivative and autocast of the declared operators NAME and NAME_backward.

    Under autocast NAME computes in float32. A derivative through NAME_backward is an error: PyTorch would warn, and
    skip it.
    """
    gradient = f"{name}_backward"
    implement(name, functions.forward)
    implement(gradient, functions.backward)
    register_fake(f"fieldwise::{name}", functions.fake, lib=OPERATORS)
    register_fake(f"fieldwise::{gradient}", functions.fake_backward, lib=OPERATORS)
    register_autograd(f"fieldwise::{name}", functions.differentiate, setup_context=functions.save, lib=OPERATORS)
    for kind in ("cpu", "cuda"):
        register_autocast(f"fieldwise::{name}", kind, torch.float32, lib=OPERATORS)

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        raise RuntimeError(f"fieldwise::{gradient} has no derivative: for second derivatives use use_ops('plain')")

    register_autograd(f"fieldwise::{gradient}", refuse, lib=OPERATORS)


def save_with_second_output(ctx: Any, inputs: Sequence[Tensor], output: tuple[Tensor, Tensor]) -> None:
    """The `save` of an operator with only tensor inputs, whose second output is for the backward pass."""
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
