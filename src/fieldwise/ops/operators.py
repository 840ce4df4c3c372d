"""PyTorch's registry of operators `torch.ops.fieldwise.*`, with types for what torch.library leaves untyped."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library, register_autocast, register_autograd, register_fake

__all__ = ["OPERATORS", "define", "implement", "implement_with_gradient", "save_with_second_output"]

OPERATORS: Library = Library("fieldwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Declare `torch.ops.fieldwise.NAME` by its schema, in PyTorch's notation."""
    OPERATORS.define(schema)  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], device: str = "CPU") -> None:
    """What the operator runs on a device (a dispatch key: `CPU`, `CUDA`)."""
    OPERATORS.impl(name, function, device)  # type: ignore[no-untyped-call]


def implement_with_gradient(
    name: str,
    *,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    fake: Callable[..., Any],
    fake_backward: Callable[..., Any],
    save: Callable[..., None],
    differentiate: Callable[..., Any],
) -> None:
    """All rules of an operator NAME and of NAME_backward, both declared: on the CPU, of shapes, derivative, autocast.

    Under autocast NAME computes in float32. A derivative through NAME_backward is an error: PyTorch would warn, and
    skip it.

    Args:
        name: NAME.
        forward: what NAME runs.
        backward: what NAME_backward runs.
        fake: the outputs of NAME, not filled.
        fake_backward: those of NAME_backward.
        save: keeps in autograd's context what `differentiate` reads (PyTorch's `setup_context`).
        differentiate: a gradient for every input, by NAME_backward.
    """
    gradient = f"{name}_backward"
    implement(name, forward)
    implement(gradient, backward)
    register_fake(f"fieldwise::{name}", fake, lib=OPERATORS)
    register_fake(f"fieldwise::{gradient}", fake_backward, lib=OPERATORS)
    register_autograd(f"fieldwise::{name}", differentiate, setup_context=save, lib=OPERATORS)
    register_autocast(f"fieldwise::{name}", "cpu", torch.float32, lib=OPERATORS)

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        raise RuntimeError(
            f"fieldwise::{gradient} has no derivative: for second derivatives run under use_ops('plain')"
        )

    register_autograd(f"fieldwise::{gradient}", refuse, lib=OPERATORS)


def save_with_second_output(ctx: Any, inputs: Sequence[Tensor], output: tuple[Tensor, Tensor]) -> None:
    """The `save` of an operator of tensors alone, whose second output is there for the backward pass."""
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
